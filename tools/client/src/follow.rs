//! Follows an order: by server-sent events, with polling as the fallback.

use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, Response};
use seckill_webhook::backoff_ms;
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use crate::buyer::BuyerClient;
use crate::error::Error;
use crate::event_stream::Parser;
use crate::orders::{Order, OrderStatus};
use crate::service::{Answer, failed};

/// The service sends something every 15 s. A stream that is silent for more than twice that time is lost.
const SILENCE_MAX: Duration = Duration::from_secs(40);
/// How long to wait before a stream is opened again, if the service gives no time.
const RECONNECT: Duration = Duration::from_secs(3);
/// The pauses before the next try to open a stream.
const REOPEN_MS: u64 = 2_000;
const REOPEN_MAX_MS: u64 = 60_000;
/// The pauses between two polls: short after a change, because changes often follow each other.
const POLL_MS: u64 = 500;
const POLL_MAX_MS: u64 = 5_000;
/// After this many failures in a row the error is returned.
const FAILURES_MAX: u32 = 20;

/// The changes of one order, as they happen.
///
/// They arrive by server-sent events. If a stream cannot be opened, is buffered by a proxy, or breaks, the order is read every few
/// seconds until a stream works again. Several quick changes may then appear as one.
#[derive(Debug)]
pub struct OrderChanges {
    buyer: BuyerClient,
    order_id: Uuid,
    by_events: bool,
    stream: Option<Stream>,
    last_event_id: Option<String>,
    last_status: Option<OrderStatus>,
    reopen_at: Instant,
    reopened: u32,
    poll_at: Instant,
    polls_without_news: u32,
    failures: u32,
}

#[derive(Debug)]
struct Stream {
    response: Response,
    parser: Parser,
    /// Whether anything has arrived yet: a buffering proxy delays even the beginning.
    has_spoken: bool,
}

impl BuyerClient {
    /// Follows an order from its present status to its final one. The first request is sent by the first [`OrderChanges::next`].
    pub fn follow(&self, order_id: Uuid) -> OrderChanges {
        let now = Instant::now();
        OrderChanges {
            buyer: self.clone(),
            order_id,
            by_events: true,
            stream: None,
            last_event_id: None,
            last_status: None,
            reopen_at: now,
            reopened: 0,
            poll_at: now,
            polls_without_news: 0,
            failures: 0,
        }
    }

    /// Follows an order until `wanted` holds or the order ends, and returns it.
    ///
    /// # Errors
    /// [`Error::TimeOut`] after `within`; and the errors of [`OrderChanges::next`].
    pub async fn wait_for(
        &self,
        order_id: Uuid,
        within: Duration,
        wanted: impl Fn(&Order) -> bool,
    ) -> Result<Order, Error> {
        let mut changes = self.follow(order_id);
        let waiting = async {
            while let Some(order) = changes.next().await? {
                if wanted(&order) || order.status.is_final() {
                    return Ok(order);
                }
            }
            // The loop has returned the final status.
            self.order(order_id).await
        };
        timeout(within, waiting).await.unwrap_or(Err(Error::TimeOut(within)))
    }
}

impl OrderChanges {
    /// Only polls, for networks without streams.
    #[must_use]
    pub fn by_polling(mut self) -> Self {
        self.by_events = false;
        self
    }

    /// Waits for the next change; the first call returns the present status. `None` after the final one.
    ///
    /// The future may be dropped: the next call continues.
    ///
    /// # Errors
    /// [`Error::Problem`]: the order is not this buyer's, or the token has expired. A temporary error is returned after 20 failures
    /// in a row, about a minute; the next call tries again.
    pub async fn next(&mut self) -> Result<Option<Order>, Error> {
        loop {
            if self.last_status.is_some_and(OrderStatus::is_final) {
                self.stream = None;
                return Ok(None);
            }
            match self.step().await {
                Ok(Some(order)) => {
                    self.failures = 0;
                    if is_news(self.last_status, order.status) {
                        self.last_status = Some(order.status);
                        self.polls_without_news = 0;
                        return Ok(Some(order));
                    }
                }
                Ok(None) => {}
                Err(error) if error.is_away() && self.failures < FAILURES_MAX => self.failures += 1,
                Err(error) => {
                    self.failures = 0;
                    return Err(error);
                }
            }
        }
    }

    /// One step: an event, a stream that opens or is lost, a poll, or a pause.
    async fn step(&mut self) -> Result<Option<Order>, Error> {
        if let Some(stream) = &mut self.stream {
            let next = stream.next(self.buyer.service.timeout()).await;
            self.last_event_id = stream.parser.last_event_id.clone().or_else(|| self.last_event_id.take());
            if let Some(order) = next {
                return Ok(Some(order));
            }
            self.lose_stream();
        }
        let now = Instant::now();
        if self.by_events && now >= self.reopen_at {
            self.open().await?;
        } else if now >= self.poll_at {
            return self.poll().await;
        } else {
            sleep_until(if self.by_events { self.poll_at.min(self.reopen_at) } else { self.poll_at }).await;
        }
        Ok(None)
    }

    /// A stream has ended or is silent. It is opened again after the time that the service has asked for. Only if that fails, the order is
    /// polled.
    fn lose_stream(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        let now = Instant::now();
        if stream.has_spoken {
            self.reopen_at = now + stream.parser.retry.unwrap_or(RECONNECT);
            self.poll_at = self.reopen_at;
        } else {
            self.postpone_stream(None);
            self.poll_at = now;
        }
    }

    async fn open(&mut self) -> Result<(), Error> {
        // Before the request: if the request is dropped, it must not be repeated at once.
        self.postpone_stream(None);
        match Stream::open(&self.buyer, self.order_id, self.last_event_id.as_deref()).await {
            Ok(stream) => {
                self.stream = Some(stream);
                self.reopened = 0;
                Ok(())
            }
            Err(error) => {
                self.postpone_stream(error.retry_after());
                // A proxy without support for streams may answer anything: the poll decides whether the order can be followed.
                if error.is_away() || matches!(error, Error::Unreadable(_)) { Ok(()) } else { Err(error) }
            }
        }
    }

    fn postpone_stream(&mut self, retry_after: Option<Duration>) {
        self.reopened = self.reopened.saturating_add(1);
        let pause = Duration::from_millis(backoff_ms(self.reopened, REOPEN_MS, REOPEN_MAX_MS, rand::random()));
        self.reopen_at = Instant::now() + retry_after.unwrap_or_default().max(pause);
    }

    async fn poll(&mut self) -> Result<Option<Order>, Error> {
        self.polls_without_news = self.polls_without_news.saturating_add(1);
        let pause = backoff_ms(self.polls_without_news, POLL_MS, POLL_MAX_MS, rand::random());
        let pause = Duration::from_millis(pause);
        self.poll_at = Instant::now() + pause;
        match self.buyer.order(self.order_id).await {
            Ok(order) => Ok(Some(order)),
            Err(error) => {
                self.poll_at = Instant::now() + error.retry_after().unwrap_or_default().max(pause);
                Err(error)
            }
        }
    }
}

impl Stream {
    async fn open(buyer: &BuyerClient, order_id: Uuid, last_event_id: Option<&str>) -> Result<Self, Error> {
        let path = format!("/api/v1/orders/{order_id}/events");
        let mut request = buyer.service.request(Method::GET, &path, buyer.bearer.as_ref());
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let within = buyer.service.timeout();
        let opening = async {
            let response = request.send().await.map_err(|error| failed(&error, within))?;
            if !response.status().is_success() {
                return Err(Answer::whole(response, within).await?.problem());
            }
            Ok(response)
        };
        let response = timeout(within, opening).await.unwrap_or(Err(Error::TimeOut(within)))?;
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return Err(Error::Unreadable(format!("{} with {kind:?} in place of events", response.status().as_u16())));
        }
        Ok(Self { response, parser: Parser::default(), has_spoken: false })
    }

    /// The next order; `None` once the stream is lost, for any reason. `patience` is the time limit for the first bytes.
    async fn next(&mut self, patience: Duration) -> Option<Order> {
        loop {
            while let Some(event) = self.parser.take_event() {
                if event.kind == "status" {
                    let order = serde_json::from_str(&event.data).ok();
                    // A stream that cannot be read counts as lost: the poll finds the reason.
                    self.has_spoken = order.is_some();
                    return order;
                }
            }
            let patience = if self.has_spoken { SILENCE_MAX } else { patience };
            let chunk = timeout(patience, self.response.chunk()).await.ok()?.ok()??;
            self.has_spoken = true;
            if !self.parser.push(&chunk) {
                return None;
            }
        }
    }
}

/// Whether an order has changed. A reopened stream may repeat a change that a poll has shown already.
fn is_news(last: Option<OrderStatus>, status: OrderStatus) -> bool {
    let Some(last) = last else { return true };
    match (last.progress(), status.progress()) {
        (Some(last), Some(now)) => now > last,
        _ => status != last,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_only_goes_forward() {
        use OrderStatus::{Accepted, Cancelled, Paid, PendingPayment, Refunded, Unknown};
        assert!(is_news(None, Accepted) && is_news(Some(Accepted), PendingPayment) && is_news(Some(Paid), Refunded));
        assert!(is_news(Some(Accepted), Cancelled), "a poll may miss what came in between");
        assert!(!is_news(Some(Paid), Paid) && !is_news(Some(Paid), PendingPayment), "told again by a new stream");
        assert!(is_news(Some(Paid), Unknown) && is_news(Some(Unknown), Refunded));
    }
}
