//! Who let holds of a sale lapse.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Answer;
use super::sales::named_sale;
use crate::admin::paging::limit;
use crate::admin::sales::LapsedHolds;
use crate::domain::ids::{Invalid, SaleId};
use crate::http::Ask;
use crate::http::codes::problems;

/// Who let holds lapse, most first.
#[derive(Serialize, ToSchema)]
struct LapsedLines {
    lapsed: Vec<LapsedHolds>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LapsedQuery {
    /// One line for each `buyer` (by default), or for each `address`: an IPv4 address, or an IPv6 /64.
    #[param(nullable = false, pattern = "^(buyer|address)$")]
    by: Option<String>,
    /// The most lines to return; 100 by default.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

problems!(NotListed: InvalidRequest, SignedOut, Forbidden, NotFound, TemporarilyUnavailable);

/// Who let holds of a sale lapse, most first
///
/// For operators. A hold lapses when it is not paid in time. A buyer with many lapsed holds keeps others from buying.
#[utoipa::path(
    get,
    path = "/api/v1/admin/sales/{id}/lapsed-holds",
    operation_id = "lapsed_holds",
    params(("id" = SaleId, Path, description = "The sale"), LapsedQuery),
    responses((status = 200, description = "By buyer, or by address", body = LapsedLines), NotListed),
)]
pub async fn list(ask: Ask) -> Answer {
    ask.answer(async |console, caller| {
        let (sale, query) = (named_sale(caller)?, caller.query::<LapsedQuery>()?);
        let by_address = match query.by.as_deref() {
            None | Some("buyer") => false,
            Some("address") => true,
            Some(_) => return Err(Invalid::new("by", "must be buyer or address").into()),
        };
        let lapsed = console.lapsed_holds(&caller.account, sale, by_address, limit(&query.limit)?).await?;
        Ok(LapsedLines { lapsed })
    })
    .await
}
