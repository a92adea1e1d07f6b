//! The overview, the first page after signing in.

use super::{Answer, NotRead};
use crate::admin::overview::Overview;
use crate::http::Ask;

/// How the sales stand, and what needs a person
///
/// Viewers see sales and alarms; alarms that name an application are for admins.
#[utoipa::path(
    get,
    path = "/api/v1/admin/overview",
    responses((status = 200, description = "The overview", body = Overview), NotRead),
)]
pub async fn overview(ask: Ask) -> Answer {
    ask.answer(async |console, caller| console.overview(&caller.account).await).await
}
