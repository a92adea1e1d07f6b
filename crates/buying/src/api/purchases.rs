//! `POST /api/v1/sales/{id}/purchases`

use std::time::Instant;

use actix_web::HttpResponse;
use actix_web::dev::RequestHead;
use actix_web::http::header::LOCATION;
use serde::Deserialize;
use tracing::Instrument;
use utoipa::ToSchema;

use super::Call;
use crate::sale::purchase::{Request, Ticket};
use crate::sale::thread_state::ThreadState;
use seckill_domain::ids::{SaleId, Units};
use seckill_domain::json_object;
use seckill_domain::sale::Sale;
use seckill_http::codes::{self, problems};
use seckill_http::extract::{Body, client_address, idempotency_key, request_span, sale_id};
use seckill_http::problem::Problem;
use seckill_http::{Answer, AppState};

/// In characters.
const KEY_MAX: usize = 128;
const PASS_MAX: usize = 1024;

/// A request to buy.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PurchaseRequest {
    /// The purchase key that the sale's state shows while the sale is open.
    #[schema(min_length = 1, max_length = 128)]
    key: String,
    /// Units; 1 by default. More than the sale allows one buyer (its `per_user`) is answered 400.
    #[schema(minimum = 1, maximum = 10_000)]
    quantity: Option<u64>,
    /// Required if the sale's `captcha` is not `none`: the pass from a solved challenge. Other sales ignore it.
    #[schema(max_length = 1024)]
    pass: Option<String>,
}

problems! {
    Refused: InvalidRequest, Unauthenticated, NotStarted, Ended, WrongKey, LevelTooLow, NotAllowed, PassInvalid, UnknownSale, TooSlow, SoldOut,
    AlreadyPurchased, BodyTooLarge, IdempotencyMismatch, QuotaExceeded, TemporarilyUnavailable
}

/// Buy
///
/// The purchase is durable before the 202 is sent. Repeating the request with the same `Idempotency-Key` returns the same
/// order with its current status, even after the sale has ended or sold out.
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
            description = "Chosen by the client, a new one for each purchase: 1 to 200 visible ASCII characters",
        ),
    ),
    request_body = PurchaseRequest,
    responses(
        (
            status = 202, description = "Bought", body = Ticket,
            headers(("Location" = String, description = "The order's address")),
        ),
        Refused,
    ),
)]
pub(super) async fn create(Call { request, thread, app_state }: Call, Body(body): Body) -> Answer {
    purchase(request.head(), sale_id(&request), &body, &thread, &app_state).await
}

pub(super) async fn purchase(
    request: &RequestHead,
    sale: Result<SaleId, Problem>,
    body: &[u8],
    thread: &ThreadState,
    app_state: &AppState,
) -> Answer {
    let began = Instant::now();
    // Before all slow steps.
    let buyer = |sale: SaleId| thread.catalog.look_at(sale, Sale::sharding).zip(app_state.unverified_user(request));
    if sale.as_ref().is_ok_and(|sale| thread.load_shedder.sheds(*sale, || buyer(*sale))) {
        let problem = Problem::shed("purchases");
        Box::pin(thread.load_shedder.hold_back()).await;
        return Err(problem);
    }
    let buyer = app_state.buyer(request, thread.catalog.clock.now_ms())?;
    let sale = sale?;
    let asked: PurchaseRequest = json_object::from_body(body).map_err(Problem::invalid)?;
    if !(1..=KEY_MAX).contains(&asked.key.chars().count()) {
        return Err(Problem::invalid("key must be 1 to 128 characters"));
    }
    if asked.pass.as_ref().is_some_and(|pass| pass.chars().count() > PASS_MAX) {
        return Err(Problem::invalid("pass must be at most 1024 characters"));
    }
    let units = asked.quantity.map_or(Ok(Units::ONE), Units::parse)?;
    let idempotency_key = idempotency_key(request.headers())?;
    // Only now: strangers cannot have requests traced.
    let span = request_span(request, "POST purchases");
    let purchase = Request {
        sale,
        user: buyer.user,
        level: buyer.level,
        address: client_address(request, &app_state.trusted_proxies),
        purchase_key: asked.key,
        units,
        idempotency_key,
        pass: asked.pass.map(String::into_boxed_str),
        trace: span.as_ref().map(|span| Box::new(span.context().clone())),
    };
    let answer = match &span {
        None => thread.purchase(purchase).await.map_err(Problem::from),
        Some(span) => Box::pin(thread.purchase(purchase).instrument(span.log_span())).await.map_err(Problem::from),
    };
    if let Some(mut span) = span {
        match &answer {
            Ok(ticket) => span.set("order", ticket.order_id.to_string()),
            // A refusal is an answer, and no failure.
            Err(problem) => span.set("refused", problem.code()),
        }
    }
    let ticket = answer?;
    codes::count_accepted(began.elapsed());
    Ok(HttpResponse::Accepted().insert_header((LOCATION, format!("/api/v1/orders/{}", ticket.order_id))).json(ticket))
}
