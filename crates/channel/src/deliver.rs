//! Sending a request and judging its outcome: the one mechanism behind outflows, payments, order webhooks and alarms.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::poll;
use tokio::time::{sleep, sleep_until};

use seckill_domain::delivery::{DeliveryOutcome, ReceiverFailure};
use seckill_telemetry::spans::Span;
use seckill_webhook::{HttpAnswer, HttpSender, PreparedRequest, SendError};

/// The outcome for the sent item, given an answer or none.
pub fn outcome_of(answer: &Result<HttpAnswer, SendError>) -> DeliveryOutcome {
    let failed = |why: String, may_have_taken_effect| {
        DeliveryOutcome::Failed(ReceiverFailure { why, asks_pause: None, may_have_taken_effect })
    };
    match answer {
        Ok(answer) => DeliveryOutcome::of(answer.status, answer.retry_after, &answer.text()),
        Err(SendError::Target) => DeliveryOutcome::Refused(SendError::Target.to_string()),
        Err(error @ SendError::Connect(_)) => failed(error.to_string(), false),
        Err(error @ (SendError::TimeOut | SendError::Lost(_))) => failed(error.to_string(), true),
    }
}

/// Records an answer, or the lack of one, in the span of its request.
pub fn note_answer(span: &mut Span, answer: &Result<HttpAnswer, SendError>) {
    match answer {
        Ok(answer) => {
            span.set("http.response.status_code", i64::from(answer.status));
            if answer.status >= 400 {
                span.fail(answer.status.to_string());
            }
        }
        Err(error) => span.fail(error.to_string()),
    }
}

/// Sends a request within its slot; `None` if that has passed. `beside` runs during the wait for the answer, after the request has left.
pub async fn send_in_slot(
    sender: &HttpSender,
    ready: PreparedRequest,
    slot: RangeInclusive<Instant>,
    patience: Duration,
    beside: impl Future<Output = ()>,
) -> Option<Result<HttpAnswer, SendError>> {
    sleep_until((*slot.start()).into()).await;
    if Instant::now() > *slot.end() {
        sender.keep(ready);
        return None;
    }
    let mut sending = pin!(sender.send(ready, patience));
    Some(match poll!(&mut sending) {
        Poll::Ready(answer) => tokio::join!(std::future::ready(answer), beside).0,
        Poll::Pending => tokio::join!(sending, beside).0,
    })
}

/// Writes an outcome to the ledger, with retries until `deadline`; `None` if no try succeeded. After the deadline the item's lease has
/// expired, and the item is sent again under the same key.
pub async fn write_outcome<T, E, F>(deadline: Instant, write: impl Fn() -> F) -> Option<T>
where
    E: Display,
    F: Future<Output = Result<T, E>>,
{
    loop {
        match write().await {
            Ok(written) => return Some(written),
            Err(error) if Instant::now() > deadline => {
                tracing::error!(%error, "outcome of a request not written; the request is sent again");
                return None;
            }
            Err(error) => tracing::warn!(%error, "outcome of a request not written yet"),
        }
        sleep(Duration::from_millis(rand::random_range(200..600))).await;
    }
}
