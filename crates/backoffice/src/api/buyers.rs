//! What the law may ask of a shop about one buyer.

use actix_web::HttpResponse;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Answer, NotMade};
use crate::api::Ask;
use seckill_domain::ids::UserId;
use seckill_postgres::sales::erasure::ErasureReport;

/// The buyer to erase.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EraseBuyer {
    /// The buyer's id, as in the token: 1 to 128 bytes of UTF-8.
    #[schema(pattern = "^[^\\u0000-\\u001F\\u007F-\\u009F]{1,128}$")]
    user: String,
}

/// Erase a buyer
///
/// For operators. A pseudonym takes the place of the buyer's id in every table and in Redis; orders and sums stay. The answer and the
/// audit log say where the id was. Refused while a sale of this buyer runs, or an order of theirs is accepted, pending_payment or refunding.
#[utoipa::path(
    post,
    path = "/api/v1/admin/buyers/erasures",
    request_body = EraseBuyer,
    responses((status = 200, description = "Where the id was", body = ErasureReport), NotMade),
)]
pub(super) async fn erase_buyer(ask: Ask) -> Answer {
    let erased = ask.act(async |office, caller| {
        let EraseBuyer { user } = caller.body()?;
        office.erase_buyer(&caller.account, &UserId::parse(&user)?).await
    });
    Ok(HttpResponse::Ok().json(erased.await?))
}
