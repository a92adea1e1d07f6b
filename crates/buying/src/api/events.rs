//! `GET /api/v1/orders/{id}/events`: server-sent events.

use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::web::{Bytes, Data};
use futures_util::stream::{empty, unfold};
use tokio::time::{Instant, timeout_at};

use super::Call;
use crate::sale::order_streams::{FoundOrder, OrderStreams, Stream};
use seckill_domain::ids::OrderId;
use seckill_http::codes::{Code, problems};
use seckill_http::extract::order_id;
use seckill_http::head_requests::was_head;
use seckill_http::problem::Problem;
use seckill_http::{Answer, event_stream};
use seckill_postgres::orders::read::OrderStep;

/// A silent stream sends a comment this often: many proxies close a connection after half a minute of silence.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// The longest life of a stream. The client then reconnects, with a token that is still valid, to a running instance.
const STREAM_MAX: Duration = Duration::from_secs(15 * 60);
const RETRY_MS: std::ops::RangeInclusive<u64> = 1_000..=5_000;

problems!(NotFollowed: InvalidRequest, Unauthenticated, UnknownOrder, QuotaExceeded, TemporarilyUnavailable);

/// Every change of an order's status, as it happens
///
/// Server-sent events; read them with `fetch`, because a token is required. The first event shows the order's current
/// status; each change then sends one event, in order: `event: status`, `data` is the order as `GET /orders/{id}` returns
/// it, `id` is the change's number. A payment that failed is an event of its own, `event: payment`, with the same data. The stream ends after a final status (`cancelled`, `rejected`, `refunded`), when the
/// token expires, when the instance stops, and after 15 minutes. Reconnect with `Last-Event-ID`, after the milliseconds that `retry` names: the
/// missed changes are sent first. A comment is sent every 15 seconds. An instance keeps at most 4 streams of one order open:
/// a fifth ends the oldest.
#[utoipa::path(
    get,
    path = "/api/v1/orders/{id}/events",
    tag = "orders",
    security(("buyer" = [])),
    params(
        ("id" = OrderId, Path, description = "The order"),
        (
            "Last-Event-ID" = Option<String>, Header, nullable = false,
            description = "The `id` of the last event received; any other value is ignored",
        ),
    ),
    responses(
        (status = 200, description = "Events", body = String, content_type = "text/event-stream"),
        (status = 204, description = "The event received last is the final one: do not reconnect"),
        NotFollowed,
    ),
)]
pub(super) async fn follow_order(Call { request, thread, app_state }: Call, streams: Data<OrderStreams>) -> Answer {
    let now_ms = thread.catalog.clock.now_ms();
    let buyer = app_state.buyer(request.head(), now_ms)?;
    let valid = Duration::from_millis(buyer.expires_at_ms.saturating_sub(now_ms).unsigned_abs());
    let until = Instant::now() + valid.min(STREAM_MAX);
    let last_event_id = request.headers().get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    app_state.bulkheads.count_read(&buyer.user)?;
    let order = order_id(&request)?;
    let orders = streams.clone();
    let find = async move { orders.find(&buyer.user, order, last_event_id).await };
    match app_state.bulkheads.orders.run(find).await? {
        // One more stream could end the oldest one of this order.
        FoundOrder::Unfollowed(_) if was_head(&request) => Ok(event_stream(RETRY_MS, empty())),
        FoundOrder::Unfollowed(order) => Ok(answer(streams.follow(order).ok_or_else(Problem::unavailable)?, until)),
        FoundOrder::Over => Ok(HttpResponse::NoContent().finish()),
        FoundOrder::Unknown => Err(Code::UnknownOrder.into()),
    }
}

fn answer(stream: Stream, until: Instant) -> HttpResponse {
    let events = unfold(stream, move |mut stream| async move {
        let now = Instant::now();
        // The token has expired.
        if now >= until {
            return None;
        }
        let pause = (now + HEARTBEAT).min(until);
        let text = match timeout_at(pause, stream.next()).await {
            Ok(next) => event(&next?),
            Err(_) if pause == until => return None,
            Err(_) => Bytes::from_static(b":\n\n"),
        };
        Some((text, stream))
    });
    event_stream(RETRY_MS, events)
}

fn event(step: &OrderStep) -> Bytes {
    let kind = if step.is_payment { "payment" } else { "status" };
    // An order holds only strings and numbers, so serializing cannot fail.
    let order = serde_json::to_string(&step.of.order).unwrap_or_default();
    format!("event: {kind}\nid: {}\ndata: {order}\n\n", step.id).into()
}
