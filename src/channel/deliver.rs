//! Sending a request and judging its outcome: the one mechanism behind outflows, payments, order webhooks and alarms.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::poll;
use tokio::time::{sleep, sleep_until};

use crate::domain::outflow::DeliveryOutcome;
use crate::telemetry::spans::Span;
use seckill_webhook::{HttpAnswer, HttpSender, PreparedRequest, SendError};

/// How long a receiver that cannot be connected to is left alone.
pub const UNREACHABLE_REST: Duration = Duration::from_secs(1);

/// What an answer, or its lack, means for the item that was sent.
pub fn outcome_of(answer: &Result<HttpAnswer, SendError>) -> DeliveryOutcome {
    match answer {
        Ok(answer) => DeliveryOutcome::of(answer.status, answer.retry_after, &answer.text()),
        Err(SendError::Target) => DeliveryOutcome::Refused(SendError::Target.to_string()),
        // A receiver that is not there says nothing against the item: no attempt is counted.
        Err(SendError::Connect(_)) => DeliveryOutcome::NotNow(UNREACHABLE_REST),
        Err(error @ (SendError::TimeOut | SendError::Lost(_))) => DeliveryOutcome::TryAgain(error.to_string()),
    }
}

/// Whether the receiver could be connected to, or why not; `None` where the outcome does not tell.
pub fn reached(answer: &Result<HttpAnswer, SendError>) -> Option<Result<(), String>> {
    match answer {
        Ok(_) => Some(Ok(())),
        Err(why @ SendError::Connect(_)) => Some(Err(why.to_string())),
        Err(SendError::Target | SendError::TimeOut | SendError::Lost(_)) => None,
    }
}

/// Writes an answer, or its lack, into the span of its request.
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

/// Sends a request within its slot, or not at all: `None` when the slot has passed. `beside` is first polled when the request is
/// with the kernel, and runs while the answer is awaited.
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
    let sending = sender.send(ready, patience);
    tokio::pin!(sending);
    let at_once = poll!(&mut sending);
    let answer = async {
        match at_once {
            Poll::Ready(answer) => answer,
            Poll::Pending => sending.await,
        }
    };
    Some(tokio::join!(answer, beside).0)
}

/// Writes an outcome to the ledger, again and again until `deadline`; `None` when that never succeeded. After the deadline the
/// item's lease is over, and it is sent again under the same key.
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
