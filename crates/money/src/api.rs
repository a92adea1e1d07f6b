//! Payments, refunds, and the callbacks of payment channels.

use actix_web::http::header::CACHE_CONTROL;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::batchers::PaymentBatchers;
use super::{
    CALLBACK_MAX_BYTES, CallbackRefusal, PayError, PaymentRequest, PaymentService, PaymentStart, RefundOutcome,
    SignatureHeaders,
};
use seckill_buying::api::Call;
use seckill_buying::sale::thread_state::ThreadState;
use seckill_domain::ids::{OrderId, UserId};
use seckill_domain::json_object;
use seckill_domain::order::OrderStatus;
use seckill_domain::payment::{PaymentId, PaymentStatus, RefundId, RefundReason, RefundStatus};
use seckill_http::addresses::{Address, address};
use seckill_http::codes::{Code, problems};
use seckill_http::extract::{Body, order_id, request_span};
use seckill_http::problem::Problem;
use seckill_http::{Answer, AppState};
use seckill_runtime::worker::batcher::BatchError;

/// The addresses of payments and refunds.
pub fn addresses() -> Vec<Address> {
    vec![
        // A forged callback must not cost more than any other refused request.
        address(__path_payment_callback, payment_callback).busy(),
        address(__path_pay_order, pay_order),
        address(__path_refund_order, refund_order),
        address(__path_payment_channels, payment_channels),
    ]
}

/// State for the handlers of payments and refunds.
pub struct Money {
    pub service: PaymentService,
    pub batchers: PaymentBatchers,
}

/// The payment that a buyer asks for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Pay {
    /// A payment channel by its name, as `GET /api/v1/payments/channels` lists them. An order that costs nothing asks none, and may
    /// name `none`.
    channel: String,
}

/// A payment that is under way.
#[derive(Debug, Serialize, ToSchema)]
struct PaymentBegun {
    payment_id: PaymentId,
    status: PaymentStatus,
}

/// Why the money is to go back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Refund {
    /// One line: no control characters.
    #[schema(max_length = 500, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]*$")]
    reason: String,
}

/// A refund that is under way.
#[derive(Debug, Serialize, ToSchema)]
struct RefundBegun {
    refund_id: RefundId,
    status: RefundStatus,
}

problems! {
    NotPaying: InvalidRequest, Unauthenticated, UnknownOrder, TooSlow, OrderNotReady, IllegalState, BodyTooLarge,
    TemporarilyUnavailable
}
problems!(NotTaken: NotBelieved, NotFound, TooSlow, BodyTooLarge, Misfit, TemporarilyUnavailable);

/// The payment channels that are offered.
#[derive(Debug, Serialize, ToSchema)]
struct PaymentChannels {
    channels: Vec<String>,
    /// What buyers read in place of the names, in the same order.
    titles: Vec<ChannelTitle>,
}

/// A payment channel's name for people.
#[derive(Debug, Serialize, ToSchema)]
struct ChannelTitle {
    title: String,
    title_zh: String,
}

/// List the payment channels
///
/// The names by which an order can be paid. The list changes only with the service's settings.
#[utoipa::path(
    get,
    path = "/api/v1/payments/channels",
    tag = "orders",
    responses((status = 200, description = "The names, in alphabetical order", body = PaymentChannels)),
)]
pub async fn payment_channels(money: Data<Money>) -> HttpResponse {
    let channels = money.service.channels.names();
    let title = |[title, title_zh]: [String; 2]| ChannelTitle { title, title_zh };
    let titles = money.service.channels.iter().map(|channel| title(channel.titles.clone())).collect();
    HttpResponse::Ok().insert_header((CACHE_CONTROL, "max-age=60")).json(PaymentChannels { channels, titles })
}

/// Pay an order
///
/// The payment is sent at the channel's rate; the order's status shows the outcome. While the payment is under way, asking
/// again returns the same payment. An order that costs nothing is paid at once: its payment has succeeded.
#[utoipa::path(
    post,
    path = "/api/v1/orders/{id}/payments",
    tag = "orders",
    security(("buyer" = [])),
    params(("id" = OrderId, Path, description = "The order")),
    request_body = Pay,
    responses((status = 202, description = "The payment is under way", body = PaymentBegun), NotPaying),
)]
pub async fn pay_order(
    Call { request, thread, app_state }: Call,
    money: Data<Money>,
    body: Result<Body, Problem>,
) -> Answer {
    let buyer = app_state.buyer(request.head(), thread.catalog.clock.now_ms())?;
    let order = order_id(&request)?;
    let Pay { channel } = json_object::from_slice(&body?.0).map_err(Problem::invalid)?;
    let mut span = request_span(request.head(), "POST payments");
    let trace = span.as_ref().map(|span| Box::new(span.context().clone()));
    if let Some(span) = &mut span {
        span.set("order", order.to_string());
    }
    let payment = PaymentRequest { order, user: buyer.user.to_string(), channel, trace };
    let begun = money.batchers.pay(payment.clone()).await?;
    let mut begun = begun.ok_or_else(|| Problem::invalid("there is no such payment channel"))?;
    if begun == PaymentStart::InUse {
        let pay = async move { money.service.pay_alone(payment).await };
        begun = app_state.bulkheads.payments.run(pay).await?;
    }
    match begun {
        PaymentStart::Payment(payment_id, status) => {
            Ok(HttpResponse::Accepted().json(PaymentBegun { payment_id, status }))
        }
        PaymentStart::IllegalState => Err(Code::IllegalState.into()),
        PaymentStart::Failed | PaymentStart::InUse => Err(Problem::unavailable()),
        PaymentStart::Unknown => Err(not_an_order(&thread, &buyer.user, order).await?),
    }
}

/// Refund a paid order
///
/// The refund is sent at the channel's rate; the order is `refunding` until the channel reports that the money is back, and then
/// `refunded`. Asking again meanwhile returns the same refund.
#[utoipa::path(
    post,
    path = "/api/v1/orders/{id}/refunds",
    tag = "orders",
    security(("buyer" = [])),
    params(("id" = OrderId, Path, description = "The order")),
    request_body = Refund,
    responses((status = 202, description = "The refund is under way", body = RefundBegun), NotPaying),
)]
pub async fn refund_order(
    Call { request, thread, app_state }: Call,
    money: Data<Money>,
    body: Result<Body, Problem>,
) -> Answer {
    let buyer = app_state.buyer(request.head(), thread.catalog.clock.now_ms())?;
    let order = order_id(&request)?;
    let Refund { reason } = json_object::from_slice(&body?.0).map_err(Problem::invalid)?;
    let reason = RefundReason::parse(&reason)?;
    let user = buyer.user.clone();
    let refund = async move {
        let by = format!("buyer {user}");
        money.service.refund(Some(&user), &by, order, &reason).await
    };
    match app_state.bulkheads.refunds.run(refund).await? {
        RefundOutcome::Refund(refund_id, status) => {
            Ok(HttpResponse::Accepted().json(RefundBegun { refund_id, status }))
        }
        RefundOutcome::IllegalState => Err(Code::IllegalState.into()),
        RefundOutcome::Unknown => Err(not_an_order(&thread, &buyer.user, order).await?),
    }
}

/// Receive a payment channel's callback
///
/// Signed by the channel's secret (Standard Webhooks). 200: the report is applied, now or before. A report that contradicts our
/// books is set aside for an operator.
#[utoipa::path(
    post,
    path = "/api/v1/payments/callbacks/{channel}",
    tag = "payment channels",
    params(
        ("channel" = String, Path, description = "The channel's name"),
        ("webhook-id" = String, Header, min_length = 1, max_length = 256, description = "The message's id"),
        ("webhook-timestamp" = i64, Header, description = "When it was sent, in seconds since the epoch"),
        (
            "webhook-signature" = String, Header, max_length = 1024,
            description = "`v1,` and the base64 of the HMAC. Several are separated by spaces; four are looked at",
        ),
    ),
    request_body(content = Object, description = "As the channel defines it, at most 4096 bytes; docs/payments.md has the sandbox's"),
    responses((status = 200, description = "The report is applied", body = Object), NotTaken),
)]
pub async fn payment_callback(
    request: HttpRequest,
    app_state: Data<AppState>,
    money: Data<Money>,
    body: Result<Body, Problem>,
) -> Answer {
    let body = body?.0;
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let signed = SignatureHeaders {
        id: header("webhook-id"),
        timestamp: header("webhook-timestamp"),
        signature: header("webhook-signature"),
    };
    let channel = request.match_info().query("channel");
    let now_s = app_state.clock.now_ms() / 1000;
    let callback = match money.service.read_callback(channel, signed, body, now_s) {
        Ok(Some(callback)) => callback,
        Ok(None) => return Ok(HttpResponse::Ok().json(serde_json::json!({}))),
        Err(CallbackRefusal::NoSuchChannel) => return Err(Code::NotFound.into()),
        // The body has been read, so the connection is kept.
        Err(CallbackRefusal::TooLong) => return Err(Problem::too_large(CALLBACK_MAX_BYTES)),
        Err(CallbackRefusal::Callback(why)) => return Err(Problem::not_believed(&why)),
    };
    // Only now: the signature shows that the callback comes from the channel.
    let _span = request_span(request.head(), "POST callbacks");
    if money.batchers.take(&callback).await? {
        return Ok(HttpResponse::Ok().json(serde_json::json!({})));
    }
    let take = async move { money.service.take_callback(callback).await };
    match app_state.bulkheads.callbacks.run(take).await? {
        None => Ok(HttpResponse::Ok().json(serde_json::json!({}))),
        Some(why) => Err(Problem::from(Code::Misfit).detail(why)),
    }
}

impl From<PayError> for Problem {
    fn from(error: PayError) -> Self {
        if matches!(error, PayError::Batch(BatchError::TooMany)) {
            return Self::shed("payments");
        }
        tracing::warn!(%error, "request failed");
        Self::unavailable()
    }
}

/// The problem for an order that does not exist, or is still being made.
async fn not_an_order(thread: &ThreadState, user: &UserId, order: OrderId) -> Result<Problem, Problem> {
    Ok(match thread.order_of(user, order).await? {
        Some(found) if found.status == OrderStatus::Accepted => Problem::from(Code::OrderNotReady),
        // It became an order meanwhile.
        Some(_) => Problem::unavailable(),
        None => Problem::from(Code::UnknownOrder),
    })
}
