//! `POST /api/v1/sales/{id}/purchases`

use actix_web::http::header::LOCATION;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::Deserialize;
use utoipa::ToSchema;

use super::AppState;
use super::codes::{self, problems};
use super::extract::{Body, caller_address, sale_id};
use super::problem::Problem;
use crate::domain::ids::{IdempotencyKey, SaleId, Units};
use crate::sale::purchase::{Request, Ticket};
use crate::sale::thread_state::ThreadState;

/// The longest purchase key that is looked at.
const KEY_MAX_BYTES: usize = 128;

/// What a buyer asks for.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PurchaseRequest)]
struct Wanted {
    /// The purchase key, as the sale's state tells it while the sale is open.
    #[schema(pattern = "^[!-~]{1,128}$")]
    key: String,
    /// Units; 1 where it is missing. At most what the sale lets one buyer have.
    #[schema(minimum = 1, maximum = 2147483647)]
    quantity: Option<u64>,
    /// Reserved for sales that ask for one; ignored by those that do not.
    #[serde(default, rename = "pass")]
    _pass: Option<String>,
}

problems! {
    Refused: InvalidRequest, Unauthenticated, NotStarted, Ended, WrongKey, LevelTooLow, UnknownSale, TooSlow, SoldOut,
    AlreadyPurchased, BodyTooLarge, IdempotencyMismatch, QuotaExceeded, TemporarilyUnavailable
}

/// Buy
///
/// The purchase is durable before the 202 leaves. Asking again with the same `Idempotency-Key` gives the same order and
/// how it stands now, even when the sale has since ended or sold out.
#[utoipa::path(
    post,
    path = "/api/v1/sales/{id}/purchases",
    operation_id = "purchase",
    tag = "buying",
    security(("buyer" = [])),
    params(
        ("id" = SaleId, Path, description = "The sale"),
        (
            "Idempotency-Key" = Option<String>, Header, nullable = false, pattern = "^[!-~]{1,200}$",
            description = "Chosen by the client, one a purchase: 1 to 200 visible ASCII characters",
        ),
    ),
    request_body = Wanted,
    responses(
        (
            status = 202, description = "Bought", body = Ticket,
            headers(("Location" = String, description = "The order's address")),
        ),
        Refused,
    ),
)]
pub async fn create(
    request: HttpRequest,
    thread: Data<ThreadState>,
    app_state: Data<AppState>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let buyer = app_state.tokens.buyer(&request, thread.catalog.clock.now_ms())?;
    let sale = sale_id(&request)?;
    let wanted: Wanted = serde_json::from_slice(&body).map_err(Problem::invalid)?;
    if wanted.key.is_empty() || wanted.key.len() > KEY_MAX_BYTES {
        return Err(Problem::invalid("key must be 1 to 128 bytes"));
    }
    let units = wanted.quantity.map_or(Ok(Units::ONE), Units::parse)?;
    let mut keys = request.headers().get_all("idempotency-key");
    let idempotency_key = match (keys.next(), keys.next()) {
        (None, _) => None,
        (Some(key), None) => Some(IdempotencyKey::parse(key.to_str().unwrap_or_default())?),
        (Some(_), Some(_)) => return Err(Problem::invalid("Idempotency-Key must stand there once")),
    };
    let purchase = Request {
        sale,
        user: buyer.user,
        level: buyer.level,
        address: caller_address(&request, &app_state.trusted_proxies),
        purchase_key: wanted.key,
        units,
        idempotency_key,
    };
    let ticket = thread.purchase(purchase).await?;
    codes::count_accepted();
    Ok(HttpResponse::Accepted().insert_header((LOCATION, format!("/api/v1/orders/{}", ticket.order_id))).json(ticket))
}
