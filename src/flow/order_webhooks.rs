//! Telling the shop of its orders: a signed webhook for every step of each, in order, until it is heard (docs/webhooks.md).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::die_at;
use crate::domain::outflow::DeliveryOutcome;
use crate::domain::step::Step;
use crate::ledger::notices::{Listener, Topic};
use crate::ledger::orders::webhook_events::{EventOutcome, OrderEvent};
use crate::ledger::outbox::RetryTerms;
use crate::ledger::{Ledger, LedgerError};
use seckill_webhook::Secret;
use seckill_webhook::{HttpAnswer, HttpSender, SendError};

/// Orders that are told of at once by one process.
const UNDER_WAY_MAX: usize = 16;
/// How long a connection may take, and then an answer.
const CONNECT_MAX: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(5);
/// Beyond, who took an event is dead, or can write nothing down: the longest request, and as long again for the outcome.
const LEASE: Duration = Duration::from_secs(15);
/// How long a shop is left alone that cannot be connected to.
const UNREACHABLE_REST: Duration = Duration::from_secs(1);

/// Where the shop listens, and how it knows that it is us.
#[derive(Clone)]
pub struct WebhookReceiver {
    pub url: String,
    /// One, or while keys are changed two: each signs.
    pub secrets: Vec<Secret>,
}

/// Tells the shop, together with all other workers.
#[derive(Clone)]
pub struct OrderWebhooks {
    ledger: Ledger,
    listener: Listener,
    /// None where nobody listens.
    line: Option<Arc<WebhookReceiver>>,
    said: Arc<OnceCell<()>>,
    retry: RetryTerms,
    poster: Arc<HttpSender>,
    tasks: TaskTracker,
    under_way: Arc<Semaphore>,
    /// The shop is not there, or has asked to be left alone until then.
    rests_until: Arc<Mutex<Option<Instant>>>,
}

impl OrderWebhooks {
    /// Requests go on in `tasks` after the step that took their events.
    pub fn new(
        ledger: Ledger,
        listener: Listener,
        line: Option<WebhookReceiver>,
        retry: RetryTerms,
        tasks: TaskTracker,
    ) -> Self {
        let under_way = Arc::new(Semaphore::new(UNDER_WAY_MAX));
        let (said, poster, rests_until) = (Arc::default(), Arc::default(), Arc::default());
        Self { ledger, listener, line: line.map(Arc::new), said, retry, poster, tasks, under_way, rests_until }
    }

    /// Says first whether there is a shop that listens, so that steps are kept for it, or not. Then takes as many events as
    /// there are places for requests, and sends them.
    pub async fn step(&self) -> Result<Step, LedgerError> {
        self.said.get_or_try_init(|| self.say(self.line.is_some())).await?;
        let Some(line) = self.line.as_ref().filter(|_| !self.rests()) else { return Ok(Step::Idle) };
        // One loop takes places, so those that are free now stay free until it does.
        drop(self.under_way.acquire().await);
        let free = i64::try_from(self.under_way.available_permits()).unwrap_or(i64::MAX);
        let taken = self.ledger.take_order_events(free, LEASE).await?;
        for event in taken.events {
            let (webhooks, line, now_s) = (self.clone(), Arc::clone(line), taken.now_s);
            let place = Arc::clone(&self.under_way).acquire_owned().await;
            self.tasks.spawn(async move {
                webhooks.deliver(&line, &event, now_s).await;
                drop(place);
            });
        }
        Ok(if taken.more { Step::More } else { Step::Idle })
    }

    async fn say(&self, listens: bool) -> Result<(), LedgerError> {
        if self.ledger.set_shop_listens(listens).await? {
            tracing::warn!(listens, "whether steps of orders are kept for the shop has changed");
        }
        Ok(())
    }

    fn rests(&self) -> bool {
        let until = *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Leaves the shop alone for a while; says so once for all who came back without having been heard.
    fn rest(&self, rest: Duration, answer: &Result<HttpAnswer, SendError>) {
        if !self.rests() {
            let why = answer.as_ref().map_or_else(ToString::to_string, |answer| answer.status.to_string());
            tracing::warn!(rest_ms = rest.as_millis(), why, "the shop is not to be had");
        }
        self.rests_until.lock().unwrap_or_else(PoisonError::into_inner).replace(Instant::now() + rest);
    }

    async fn deliver(&self, line: &WebhookReceiver, event: &OrderEvent, now_s: i64) {
        let taken = Instant::now();
        die_at!("webhook.taken");
        let answer = self.send(line, event, now_s).await;
        die_at!("webhook.answered");
        let verdict = verdict(&answer);
        if let DeliveryOutcome::NotNow(rest) = verdict {
            self.rest(rest, &answer);
        }
        // Again and again while the lease lasts: beyond it the event is told once more.
        loop {
            match self.ledger.in_time(self.note(event, &verdict)).await {
                Ok(noted) => return self.tell(event, &verdict, noted),
                Err(error) if taken.elapsed() > LEASE => {
                    return tracing::warn!(order = %event.order, %error, "outcome not written down; it is told again");
                }
                Err(error) => tracing::warn!(order = %event.order, %error, "outcome not written down yet"),
            }
            sleep(Duration::from_millis(rand::random_range(200..600))).await;
        }
    }

    async fn send(&self, line: &WebhookReceiver, event: &OrderEvent, now_s: i64) -> Result<HttpAnswer, SendError> {
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
        let (id, body) = (format!("order_{}_{}", event.order, event.step), body.to_string().into_bytes());
        let signatures: Vec<String> = line.secrets.iter().map(|secret| secret.sign(&id, now_s, &body)).collect();
        let headers = [
            ("webhook-id", id.clone()),
            ("webhook-timestamp", now_s.to_string()),
            ("webhook-signature", signatures.join(" ")),
        ];
        let key = Uuid::new_v5(&Uuid::NAMESPACE_OID, id.as_bytes());
        let preparing = timeout(CONNECT_MAX, self.poster.prepare(&line.url, key, &headers, body)).await;
        let ready = preparing.unwrap_or_else(|_| Err(SendError::Connect("not in time".to_owned())))?;
        self.poster.send(ready, PATIENCE).await
    }

    async fn note(&self, event: &OrderEvent, verdict: &DeliveryOutcome) -> Result<EventOutcome, LedgerError> {
        match verdict {
            DeliveryOutcome::Done => self.ledger.order_event_told(event).await,
            DeliveryOutcome::NotNow(rest) => self.ledger.order_event_postponed(event, *rest).await,
            // A shop that says no may have been wrong, or half started: it is asked again like one that failed.
            DeliveryOutcome::TryAgain(why) | DeliveryOutcome::Refused(why) => {
                self.ledger.order_event_failed(event, why, self.retry).await
            }
        }
    }

    fn tell(&self, event: &OrderEvent, verdict: &DeliveryOutcome, noted: EventOutcome) {
        let (order, status) = (event.order, event.status.as_str());
        let outcome = match (noted, verdict) {
            (EventOutcome::ChannelReport { freed }, _) => {
                if freed > 0 {
                    self.listener.wake(Topic::Orders);
                }
                "delivered"
            }
            (EventOutcome::Overtaken, _) => "overtaken",
            (_, DeliveryOutcome::NotNow(_)) => "postponed",
            (EventOutcome::Parked, DeliveryOutcome::TryAgain(why) | DeliveryOutcome::Refused(why)) => {
                tracing::error!(%order, status, %why, "PARKED: the shop is not told of this order by itself any more");
                "parked"
            }
            (_, DeliveryOutcome::TryAgain(why) | DeliveryOutcome::Refused(why)) => {
                tracing::info!(%order, status, %why, "the shop is told again later");
                "failed"
            }
            (_, DeliveryOutcome::Done) => "delivered",
        };
        metrics::counter!("seckill_order_events_total", "outcome" => outcome).increment(1);
    }
}

fn verdict(answer: &Result<HttpAnswer, SendError>) -> DeliveryOutcome {
    match answer {
        Ok(answer) => DeliveryOutcome::of(answer.status, answer.retry_after, &answer.text()),
        // A shop that is not there is no fault of the event's: it waits, and counts nothing.
        Err(error) if error.nothing_sent() => DeliveryOutcome::NotNow(UNREACHABLE_REST),
        Err(error) => DeliveryOutcome::TryAgain(error.to_string()),
    }
}
