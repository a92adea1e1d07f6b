//! Drains outflows: claims the next slot, waits for it, sends, and writes the outcome (docs/delivery.md).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use seckill_channel::deliver::{outcome_of, send_in_slot, write_outcome};
use seckill_channel::{Channels, Charge};
use seckill_domain::delivery::{DeliveryOutcome, ReceiverFailure};
use seckill_domain::outflow::{LATENESS, LEAD, PROMPT};
use seckill_domain::payment::{About, RefundKey};
use seckill_domain::step::Step;
use seckill_postgres::money::refunds::RefundItem;
use seckill_postgres::outbox::RetryPolicy;
use seckill_postgres::outflow::slots::{Slot, SlotOutcome};
use seckill_postgres::{Ledger, LedgerError};
use seckill_runtime::die_at;
use seckill_webhook::{HttpAnswer, HttpSender, SendError, SignedRequest, is_http};

/// Requests in flight to one channel from one process, so that a hanging receiver does not occupy the process.
const UNDER_WAY_MAX: usize = 64;
/// A worker that finds others faster asks less and less often, up to this pause.
const MISS_PAUSE_MAX_MS: u64 = 400;
/// The longest sleep with a backlog, so that a new, resumed or refilled channel is found.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Later slots move by at most this: a second later, no earlier request can be too close.
const HOLE_MAX: Duration = Duration::from_secs(1);
/// A lease is the longest request plus time to connect, to wait for the slot, and to write the outcome.
const LEASE_SPARE: Duration = Duration::from_secs(5);
/// The pause of an outflow whose target lacks TLS, where that is not allowed.
const HTTP_PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
pub struct DrainSettings {
    pub request_timeout: Duration,
    pub allows_http: bool,
    pub retry: RetryPolicy,
}

#[derive(Clone)]
pub struct OutflowDrain {
    ledger: Ledger,
    sender: Arc<HttpSender>,
    terms: DrainSettings,
    tasks: TaskTracker,
    /// The payment channels whose refunds this worker can send.
    channels: Channels,
    channel_names: Arc<[String]>,
    under_way: Arc<Mutex<HashMap<String, usize>>>,
    misses: Arc<AtomicU32>,
}

impl OutflowDrain {
    /// Requests go on in `tasks` after their step.
    pub fn new(ledger: Ledger, terms: DrainSettings, channels: Channels, tasks: TaskTracker) -> Self {
        let (sender, under_way, misses) = (Arc::default(), Arc::default(), Arc::default());
        let channel_names = channels.names().into();
        Self { ledger, sender, terms, tasks, channels, channel_names, under_way, misses }
    }

    fn lease(&self) -> Duration {
        self.terms.request_timeout + LEASE_SPARE
    }

    /// Claims a slot and sends in it, or waits up to a second for one. Idle without a backlog.
    pub async fn step(&self) -> Result<Step, LedgerError> {
        let full = self.full();
        let Some(wait) = self.ledger.outflows.next_slot(&full, &self.channel_names).await? else {
            return Ok(Step::Idle);
        };
        if wait.is_zero()
            && let Some(slot) = self.ledger.outflows.claim_slot(&full, &self.channel_names, self.lease()).await?
        {
            self.misses.store(0, Ordering::Relaxed);
            let (drain, permit) = (self.clone(), Permit::take(&self.under_way, &slot.channel));
            self.tasks.spawn(async move {
                drain.deliver(slot).await;
                drop(permit);
            });
            return Ok(Step::More);
        }
        sleep(self.rest(wait)).await;
        Ok(Step::More)
    }

    /// The worker of the last slot asks for the next one in time. Others ask a little later and less often, so that one process serves a
    /// channel, and they take over when it dies.
    fn rest(&self, wait: Duration) -> Duration {
        let misses = self.misses.fetch_add(1, Ordering::Relaxed).min(16);
        if misses == 0 {
            return wait.min(LOOK_EVERY);
        }
        let pause_ms = (12_u64 << misses).min(MISS_PAUSE_MAX_MS);
        let pause = Duration::from_millis(pause_ms).mul_f64(rand::random_range(0.5..1.5));
        // Later than the fastest worker, and early enough for the slot itself.
        let behind = LEAD.mul_f64(rand::random_range(0.0..1.0));
        (wait + behind).max(pause).min(LOOK_EVERY)
    }

    fn full(&self) -> Vec<String> {
        let under_way = self.under_way.lock();
        under_way.iter().filter(|(_, n)| **n >= UNDER_WAY_MAX).map(|(name, _)| name.clone()).collect()
    }

    async fn deliver(&self, slot: Slot) {
        if is_http(&slot.target) && !self.terms.allows_http {
            let why = "nothing is sent without TLS outside development mode: set SECKILL_ALLOW__HTTP_RECEIVERS=1, or another target";
            let outcome = DeliveryOutcome::Failed(ReceiverFailure {
                why: why.to_owned(),
                asks_pause: Some(HTTP_PAUSE),
                may_have_taken_effect: false,
            });
            self.ledger.receivers.note(&slot.receiver(), Instant::now(), &outcome).await;
            return self.settle(&slot, &outcome).await;
        }
        let outcome = match self.request(&slot) {
            Ok((sender, request)) => match sender.prepare(request).await {
                Ok(ready) => {
                    die_at!("outflow.claimed");
                    let window = slot.earliest..=slot.latest;
                    let beside = self.leave_hole(&slot);
                    match send_in_slot(sender, ready, window, self.terms.request_timeout, beside).await {
                        Some(answer) => self.judge(&slot, &answer).await,
                        None => return self.forfeit(&slot).await,
                    }
                }
                Err(error) => self.judge(&slot, &Err(error)).await,
            },
            Err(error) => DeliveryOutcome::Refused(format!("not a refund: {error}")),
        };
        die_at!("outflow.sent");
        self.settle(&slot, &outcome).await;
        die_at!("outflow.settled");
    }

    async fn judge(&self, slot: &Slot, answer: &Result<HttpAnswer, SendError>) -> DeliveryOutcome {
        let outcome = outcome_of(answer);
        self.ledger.receivers.note(&slot.receiver(), slot.claimed_at, &outcome).await;
        outcome
    }

    /// The request for an item, and its sender. A refund's payment channel writes and signs the request; any other item is posted as it is.
    fn request(&self, slot: &Slot) -> Result<(&HttpSender, SignedRequest), serde_json::Error> {
        let Some(channel) = slot.payment_channel.as_ref().and_then(|name| self.channels.get(name)) else {
            let body = slot.payload.to_string().into_bytes();
            return Ok((&self.sender, SignedRequest::new(&slot.target, slot.item, &[], slot.at_s(), body)));
        };
        let RefundItem { payment_key: payment, amount_cents, currency } = serde_json::from_value(slot.payload.clone())?;
        let about = About::Refund { key: RefundKey(slot.item), payment };
        let charge = Charge { about, amount_cents, currency: &currency };
        Ok((channel.sender(), channel.request(&charge, slot.at_s())))
    }

    /// Moves the slots behind a late request. The slots of a second share a delay up to `LATENESS`, so that the margin is left to the network.
    /// After a longer delay (the thread was held up between the clock and the socket) the next slot moves by all of it, to keep the rate.
    async fn leave_hole(&self, slot: &Slot) {
        let late = Instant::now().saturating_duration_since(slot.at);
        if late <= PROMPT {
            return;
        }
        let usual = (late.min(LATENESS) - PROMPT) / slot.rate;
        let hole = (usual + late.saturating_sub(LATENESS)).min(HOLE_MAX);
        let moved = self.ledger.in_time(self.ledger.outflows.leave_hole(&slot.channel, hole)).await;
        if late > LATENESS {
            count("late", &slot.channel);
            let (late_us, moved) = (late.as_micros(), moved.is_ok());
            tracing::warn!(channel = slot.channel, late_us, moved, "sent too late; the slots behind move");
        }
    }

    /// Gives back a passed slot: nothing was sent, and the item keeps its turn.
    async fn forfeit(&self, slot: &Slot) {
        count("forfeited", &slot.channel);
        tracing::debug!(channel = slot.channel, item = %slot.item, "too late for the slot");
        if let Err(error) = self.ledger.in_time(self.ledger.outflows.give_back(slot)).await {
            tracing::warn!(channel = slot.channel, %error, "slot not given back; its item waits for the lease");
        }
    }

    async fn settle(&self, slot: &Slot, outcome: &DeliveryOutcome) {
        let write = || self.ledger.in_time(self.ledger.outflows.settle_slot(slot, outcome, self.terms.retry));
        if let Some(settled) = write_outcome(slot.earliest + self.lease(), write).await {
            report(slot, outcome, settled);
        }
    }

    /// Counts the backlogs, for the bounds of the queues.
    pub async fn count_waiting(&self) -> Result<Step, LedgerError> {
        self.ledger.outflows.count_outflow().await.map(|()| Step::Idle)
    }

    /// Shows the outflows as metrics.
    pub async fn watch(&self) -> Result<Step, LedgerError> {
        for channel in self.ledger.outflows.outflow_figures().await? {
            let age_s = channel.oldest_at.map_or(0.0, |at| (channel.now - at).as_seconds_f64());
            let gauge = |name: &'static str, value: f64| {
                metrics::gauge!(name, "channel" => channel.name.clone()).set(value);
            };
            gauge("seckill_outflow_waiting", channel.waiting as f64);
            gauge("seckill_outflow_oldest_seconds", age_s);
            gauge("seckill_outflow_parked", channel.parked as f64);
        }
        Ok(Step::Idle)
    }
}

fn report(slot: &Slot, outcome: &DeliveryOutcome, settled: SlotOutcome) {
    let result = match settled {
        SlotOutcome::Done => "done",
        SlotOutcome::WillRetry => "retry",
        SlotOutcome::Parked => "parked",
        SlotOutcome::Overtaken => "overtaken",
    };
    count(result, &slot.channel);
    match (settled, outcome) {
        (SlotOutcome::Parked, outcome) => {
            tracing::error!(channel = slot.channel, item = %slot.item, ?outcome, "PARKED: not retried until an operator does");
        }
        (_, DeliveryOutcome::Failed(failure)) => {
            tracing::info!(channel = slot.channel, item = %slot.item, why = failure.why, "failed; retried later");
        }
        (_, DeliveryOutcome::Done | DeliveryOutcome::Refused(_)) => {}
    }
}

fn count(outcome: &'static str, channel: &str) {
    metrics::counter!("seckill_outflow_total", "outcome" => outcome, "channel" => channel.to_owned()).increment(1);
}

/// A request in flight to a channel, until it is dropped.
struct Permit {
    under_way: Arc<Mutex<HashMap<String, usize>>>,
    channel: String,
}

impl Permit {
    fn take(under_way: &Arc<Mutex<HashMap<String, usize>>>, channel: &str) -> Self {
        *under_way.lock().entry(channel.to_owned()).or_default() += 1;
        Self { under_way: Arc::clone(under_way), channel: channel.to_owned() }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut under_way = self.under_way.lock();
        if let Some(n) = under_way.get_mut(&self.channel) {
            *n -= 1;
        }
        under_way.retain(|_, n| *n > 0);
    }
}
