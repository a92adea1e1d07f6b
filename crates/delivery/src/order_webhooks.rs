//! Order webhooks: a signed message for every change of an order's status, in order, repeated until delivered (docs/delivery.md).

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use seckill_channel::deliver::{note_answer, outcome_of, write_outcome};
use seckill_domain::delivery::{DeliveryOutcome, Standing};
use seckill_domain::step::Step;
use seckill_postgres::notices::{Listener, Topic};
use seckill_postgres::orders::webhook_events::{EventOutcome, OrderEvent};
use seckill_postgres::outbox::RetryPolicy;
use seckill_postgres::{Ledger, LedgerError};
use seckill_runtime::die_at;
use seckill_telemetry::spans::{Span, SpanKind};
use seckill_webhook::{HttpSender, Secret, SignedRequest};

/// Requests in flight from one process.
const UNDER_WAY_MAX: usize = 16;
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon an event is due again whose try says nothing about it.
const AGAIN: Duration = Duration::from_secs(1);
/// Its name among the receivers.
const RECEIVER: &str = "shop";
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
        let (announced, sender) = (Arc::default(), Arc::default());
        let receiver = receiver.map(Arc::new);
        Self { ledger, listener, receiver, announced, retry, sender, tasks, under_way }
    }

    /// First announces whether there is a receiver, which decides whether changes are kept for it. Then takes an event per free permit, and
    /// sends them; while the receiver is away, one as a probe.
    pub async fn step(&self) -> Result<Step, LedgerError> {
        self.announced.get_or_try_init(|| self.announce(self.receiver.is_some())).await?;
        let Some(receiver) = &self.receiver else { return Ok(Step::Idle) };
        let standing = self.ledger.receivers.standing(RECEIVER).await?;
        if let Standing::Pauses(_) = standing {
            return Ok(Step::Idle);
        }
        let is_well = standing == Standing::Well;
        // Only this loop takes permits, so the free ones stay free.
        drop(self.under_way.acquire().await);
        let free = i64::try_from(self.under_way.available_permits()).unwrap_or(i64::MAX);
        let taken = self.ledger.orders.take_order_events(if is_well { free } else { 1 }, LEASE).await?;
        for event in taken.events {
            if !is_well && !self.ledger.receivers.begin_probe(RECEIVER, LEASE).await? {
                self.ledger.orders.order_event_postponed(&event, None, AGAIN).await?;
                return Ok(Step::Idle);
            }
            let (webhooks, receiver, now_s) = (self.clone(), Arc::clone(receiver), taken.now_s);
            let permit = Arc::clone(&self.under_way).acquire_owned().await;
            let span = event.trace.as_ref().map(|trace| Span::below(trace, SpanKind::Client, "POST webhook"));
            let log_span = span.as_ref().map_or_else(tracing::Span::none, Span::log_span);
            let delivery = async move {
                webhooks.deliver(&receiver, &event, span, now_s, is_well).await;
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

    /// `is_well`: whether the receiver was well, so that a failure may be the event's.
    async fn deliver(
        &self,
        receiver: &WebhookReceiver,
        event: &OrderEvent,
        span: Option<Span>,
        now_s: i64,
        is_well: bool,
    ) {
        let sent = Instant::now();
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
        self.ledger.receivers.note(RECEIVER, sent, &outcome).await;
        let write = || self.ledger.in_time(self.write(event, &outcome, is_well));
        if let Some(written) = write_outcome(sent + LEASE, write).await {
            self.report(event, &outcome, written);
        }
    }

    async fn write(
        &self,
        event: &OrderEvent,
        outcome: &DeliveryOutcome,
        is_well: bool,
    ) -> Result<EventOutcome, LedgerError> {
        match outcome {
            DeliveryOutcome::Done => self.ledger.orders.order_event_delivered(event).await,
            // A refusal may be a mistake of a starting receiver: the event is retried like a failure.
            DeliveryOutcome::Refused(why) => self.ledger.orders.order_event_failed(event, why, self.retry).await,
            DeliveryOutcome::Failed(failure) if is_well && failure.may_have_taken_effect => {
                self.ledger.orders.order_event_failed(event, &failure.why, self.retry).await
            }
            DeliveryOutcome::Failed(failure) => {
                self.ledger.orders.order_event_postponed(event, Some(&failure.why), AGAIN).await
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
            (EventOutcome::Parked, outcome) => {
                tracing::error!(%order, status, ?outcome, "PARKED: later changes of the order wait until an operator retries it");
                "parked"
            }
            (EventOutcome::WillRetry, outcome) => {
                tracing::info!(%order, status, ?outcome, "failed; retried later");
                "failed"
            }
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
        "currency": event.currency,
        "status": event.status,
    });
    if let Some(reason) = &event.reason {
        data["reason"] = json!(reason);
    }
    let body = json!({ "type": format!("order.{}", event.status), "timestamp": event.at, "data": data });
    let id = format!("order_{}_{}", event.order, event.step);
    SignedRequest::message(&receiver.url, &id, &receiver.secrets, now_s, body.to_string().into_bytes())
}
