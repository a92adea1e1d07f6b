//! Who let holds of a sale lapse.

use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::sales::named_sale;
use crate::admin::sales::LapsedHolds;
use crate::domain::ids::{Invalid, SaleId};
use crate::http::AppState;
use crate::http::caller::as_caller;
use crate::http::codes::problems;
use crate::http::problem::Problem;

/// Lapsed holds of one buyer, or of one network address.
#[derive(Serialize, ToSchema)]
struct LapsedLine {
    /// The buyer or the address; null where the address is not known.
    name: Option<String>,
    holds: i64,
    units: i64,
    /// How many buyers took them, and from how many known addresses.
    buyers: i64,
    addresses: i64,
    last_lapsed_at_ms: i64,
}

/// Who let holds lapse, most first.
#[derive(Serialize, ToSchema)]
struct LapsedLines {
    lapsed: Vec<LapsedLine>,
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
    tag = "admin",
    security(("session" = [])),
    params(("id" = SaleId, Path, description = "The sale"), LapsedQuery),
    responses((status = 200, description = "By buyer, or by address", body = LapsedLines), NotListed),
)]
pub async fn list(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let lapsed = as_caller(request, &app_state, async move |console, caller| {
        let sale = named_sale(&caller.request)?;
        let query = Query::<LapsedQuery>::from_query(caller.request.query_string());
        let LapsedQuery { by, limit } =
            query.map_err(|_| Invalid::new("by and limit", "must each be given once"))?.into_inner();
        let by_address = match by.as_deref() {
            None | Some("buyer") => false,
            Some("address") => true,
            Some(_) => return Err(Invalid::new("by", "must be buyer or address").into()),
        };
        let limit = match limit.as_deref().unwrap_or("100").parse() {
            Ok(limit @ 1..=1000) => limit,
            _ => return Err(Invalid::new("limit", "must be 1 to 1000").into()),
        };
        console.lapsed_holds(&caller.account, sale, by_address, limit).await
    });
    let line = |of: LapsedHolds| {
        let LapsedHolds { name, holds, units, buyers, addresses, last_lapsed_at_ms } = of;
        LapsedLine { name, holds, units, buyers, addresses, last_lapsed_at_ms }
    };
    Ok(HttpResponse::Ok().json(LapsedLines { lapsed: lapsed.await?.into_iter().map(line).collect() }))
}
