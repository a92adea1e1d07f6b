//! Order webhooks: a signed message for every change of an order's status, in order, repeated until delivered (docs/delivery.md).

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use seckill_channel::deliver::{note_answer, outcome_of, reached, write_outcome};
use seckill_domain::outflow::DeliveryOutcome;
use seckill_domain::step::Step;
use seckill_postgres::notices::{Listener, Topic};
use seckill_postgres::orders::webhook_events::{EventOutcome, OrderEvent};
use seckill_postgres::outbox::RetryPolicy;
use seckill_postgres::{Ledger, LedgerError};
use seckill_runtime::die_at;
use seckill_telemetry::spans::{Span, SpanKind};
use seckill_webhook::{HttpAnswer, HttpSender, Secret, SendError, SignedRequest};

/// Requests in flight from one process.
const UNDER_WAY_MAX: usize = 16;
const PATIENCE: Duration = Duration::from_secs(5);
/// A worker's claim of an event: the longest request, and time to write the outcome.
const LEASE: Duration = Duration::from_secs(15);

#[derive(Clone)]
pub struct WebhookReceiver {
    pub url: String,
    /// One, or two while keys are rotated: each signs.
    pub secrets: Vec<Secret>,
}

#[derive(Clone)]
pub struct OrderWebhooks {
    ledger: Ledger,
    listener: Listener,
    receiver: Option<Arc<WebhookReceiver>>,
    announced: Arc<OnceCell<()>>,
    retry: RetryPolicy,
    sender: Arc<HttpSender>,
    tasks: TaskTracker,
    under_way: Arc<Semaphore>,
    /// The end of a pause, because the receiver was away or asked for one.
    rests_until: Arc<Mutex<Option<Instant>>>,
}

impl OrderWebhooks {
    /// Requests go on in `tasks` after their step.
    pub fn new(
        ledger: Ledger,
        listener: Listener,
        receiver: Option<WebhookReceiver>,
        retry: RetryPolicy,
        tasks: TaskTracker,
    ) -> Self {
        let under_way = Arc::new(Semaphore::new(UNDER_WAY_MAX));
        let (announced, sender, rests_until) = (Arc::default(), Arc::default(), Arc::default());
        let receiver = receiver.map(Arc::new);
        Self { ledger, listener, receiver, announced, retry, sender, tasks, under_way, rests_until }
    }

    /// First announces whether there is a receiver, which decides whether changes are kept for it. Then takes an event per free permit, and
    /// sends them.
    pub async fn step(&self) -> Result<Step, LedgerError> {
        self.announced.get_or_try_init(|| self.announce(self.receiver.is_some())).await?;
        let Some(receiver) = self.receiver.as_ref().filter(|_| !self.rests()) else { return Ok(Step::Idle) };
        // Only this loop takes permits, so the free ones stay free.
        drop(self.under_way.acquire().await);
        let free = i64::try_from(self.under_way.available_permits()).unwrap_or(i64::MAX);
        let taken = self.ledger.orders.take_order_events(free, LEASE).await?;
        for event in taken.events {
            let (webhooks, receiver, now_s) = (self.clone(), Arc::clone(receiver), taken.now_s);
            let permit = Arc::clone(&self.under_way).acquire_owned().await;
            let span = event.trace.as_ref().map(|trace| Span::below(trace, SpanKind::Client, "POST webhook"));
            let log_span = span.as_ref().map_or_else(tracing::Span::none, Span::log_span);
            let delivery = async move {
                webhooks.deliver(&receiver, &event, span, now_s).await;
                drop(permit);
            };
            self.tasks.spawn(delivery.instrument(log_span));
        }
        Ok(if taken.more { Step::More } else { Step::Idle })
    }

    async fn announce(&self, listens: bool) -> Result<(), LedgerError> {
        if self.ledger.orders.set_shop_listens(listens).await? {
            tracing::warn!(listens, "whether changes of orders are kept for the webhook receiver has changed");
        }
        Ok(())
    }

    fn rests(&self) -> bool {
        self.rests_until.lock().is_some_and(|until| Instant::now() < until)
    }

    /// Begins a pause, and logs it once for all requests that failed together.
    fn rest(&self, rest: Duration, answer: &Result<HttpAnswer, SendError>) {
        if !self.rests() {
            let why = answer.as_ref().map_or_else(ToString::to_string, |answer| answer.status.to_string());
            tracing::warn!(rest_ms = rest.as_millis(), why, "the webhook receiver is away or asks for a pause");
        }
        self.rests_until.lock().replace(Instant::now() + rest);
    }

    async fn deliver(&self, receiver: &WebhookReceiver, event: &OrderEvent, span: Option<Span>, now_s: i64) {
        let deadline = Instant::now() + LEASE;
        die_at!("webhook.taken");
        let request =
            request(receiver, event, now_s).with_headers(span.iter().flat_map(|span| span.context().headers()));
        let answer = self.sender.post(request, PATIENCE).await;
        die_at!("webhook.answered");
        if let Some(mut span) = span {
            span.set("order", event.order.to_string());
            span.set("order.status", event.status.clone());
            note_answer(&mut span, &answer);
        }
        let outcome = outcome_of(&answer);
        if let DeliveryOutcome::NotNow(rest) = outcome {
            self.rest(rest, &answer);
        }
        self.ledger.policies.note_receiver("shop", reached(&answer)).await;
        if let Some(written) = write_outcome(deadline, || self.ledger.in_time(self.write(event, &outcome))).await {
            self.report(event, &outcome, written);
        }
    }

    async fn write(&self, event: &OrderEvent, outcome: &DeliveryOutcome) -> Result<EventOutcome, LedgerError> {
        match outcome {
            DeliveryOutcome::Done => self.ledger.orders.order_event_delivered(event).await,
            DeliveryOutcome::NotNow(rest) => self.ledger.orders.order_event_postponed(event, *rest).await,
            // A refusal may be a mistake of a starting receiver: the event is retried like a failure.
            DeliveryOutcome::TryAgain(why) | DeliveryOutcome::Refused(why) => {
                self.ledger.orders.order_event_failed(event, why, self.retry).await
            }
        }
    }

    fn report(&self, event: &OrderEvent, outcome: &DeliveryOutcome, written: EventOutcome) {
        let (order, status) = (event.order, event.status.as_str());
        let result = match (written, outcome) {
            (EventOutcome::Delivered { freed }, _) => {
                if freed > 0 {
                    self.listener.wake(Topic::Orders);
                }
                "delivered"
            }
            (EventOutcome::Overtaken, _) => "overtaken",
            (_, DeliveryOutcome::NotNow(_)) => "postponed",
            (EventOutcome::Parked, DeliveryOutcome::TryAgain(why) | DeliveryOutcome::Refused(why)) => {
                tracing::error!(%order, status, %why, "PARKED: later changes of the order wait until an operator retries it");
                "parked"
            }
            (EventOutcome::WillRetry, DeliveryOutcome::TryAgain(why) | DeliveryOutcome::Refused(why)) => {
                tracing::info!(%order, status, %why, "failed; retried later");
                "failed"
            }
            (EventOutcome::Parked | EventOutcome::WillRetry, DeliveryOutcome::Done) => "delivered",
        };
        metrics::counter!("seckill_order_events_total", "outcome" => result).increment(1);
    }
}

fn request(receiver: &WebhookReceiver, event: &OrderEvent, now_s: i64) -> SignedRequest {
    let mut data = json!({
        "order_id": event.order,
        "sale_id": event.sale,
        "user_id": event.user,
        "quantity": event.quantity,
        "amount_cents": event.amount_cents,
        "status": event.status,
    });
    if let Some(reason) = &event.reason {
        data["reason"] = json!(reason);
    }
    let body = json!({ "type": format!("order.{}", event.status), "timestamp": event.at, "data": data });
    let id = format!("order_{}_{}", event.order, event.step);
    SignedRequest::message(&receiver.url, &id, &receiver.secrets, now_s, body.to_string().into_bytes())
}
