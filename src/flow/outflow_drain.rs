//! Draining an outflow: claim the next slot, wait for it, send, and say what came of it (docs/outflow.md).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::poll;
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::task::TaskTracker;

use crate::die_at;
use crate::domain::outflow::{DeliveryOutcome, LATENESS, LEAD, PROMPT};
use crate::domain::step::Step;
use crate::ledger::outbox::RetryTerms;
use crate::ledger::outflow::slots::{Settled, Slot};
use crate::ledger::{Ledger, LedgerError};
use seckill_webhook::{HttpAnswer, HttpSender, PreparedRequest, SendError};
use seckill_webhook::{Secret, signed_headers};

/// Requests under way to one channel in one process; a receiver that hangs does not take up the whole process.
const UNDER_WAY_MAX: usize = 64;
/// How long a receiver is left alone that cannot be connected to: as long as it lasts, nothing waits for it but its own.
const UNREACHABLE_REST: Duration = Duration::from_millis(1_000);
/// How long a connection may take; well inside a lease's spare time.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Looks that find others faster are made ever more rarely, up to this.
const MISS_PAUSE_MAX_MS: u64 = 400;
/// The longest sleep while something waits: a channel that is made, resumed or filled meanwhile is found then.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Beyond a second there is nothing behind that could come too close.
const HOLE_MAX: Duration = Duration::from_secs(1);
/// What a lease has beyond the longest request: the way to the slot, and writing down the outcome.
const LEASE_SPARE: Duration = Duration::from_secs(5);

/// How requests are made.
#[derive(Debug, Clone, Copy)]
pub struct OutflowTerms {
    pub request_timeout: Duration,
    pub retry: RetryTerms,
}

/// Drains every channel there is, together with all other workers.
#[derive(Clone)]
pub struct OutflowDrain {
    ledger: Ledger,
    poster: Arc<HttpSender>,
    terms: OutflowTerms,
    tasks: TaskTracker,
    /// Whose requests are signed, and with what.
    secrets: Arc<HashMap<String, Secret>>,
    under_way: Arc<Mutex<HashMap<String, usize>>>,
    misses: Arc<AtomicU32>,
}

impl OutflowDrain {
    /// Requests go on in `tasks` after the step that claimed them.
    pub fn new(ledger: Ledger, terms: OutflowTerms, secrets: HashMap<String, Secret>, tasks: TaskTracker) -> Self {
        let (poster, under_way, misses) = (Arc::default(), Arc::default(), Arc::default());
        Self { ledger, poster, terms, tasks, secrets: Arc::new(secrets), under_way, misses }
    }

    fn lease(&self) -> Duration {
        self.terms.request_timeout + LEASE_SPARE
    }

    /// Claims a slot and sends in it; or waits until there may be one, a second at most. Idle when nothing waits at all.
    pub async fn step(&self) -> Result<Step, LedgerError> {
        let full = self.full();
        if let Some(slot) = self.ledger.claim_slot(&full, self.lease()).await? {
            self.misses.store(0, Ordering::Relaxed);
            let (drain, place) = (self.clone(), Place::take(&self.under_way, &slot.channel));
            self.tasks.spawn(async move {
                drain.deliver(slot).await;
                drop(place);
            });
            return Ok(Step::More);
        }
        let Some(wait) = self.ledger.next_slot(&full).await? else { return Ok(Step::Idle) };
        sleep(self.rest(wait)).await;
        Ok(Step::More)
    }

    /// Whoever had the last slot comes for the next one in time; those who found others faster come a little later, so
    /// that one process is enough for a channel, and the rest ask seldom and take over when it dies.
    fn rest(&self, wait: Duration) -> Duration {
        let misses = self.misses.fetch_add(1, Ordering::Relaxed).min(16);
        if misses == 0 {
            return wait.min(LOOK_EVERY);
        }
        let pause_ms = (12_u64 << misses).min(MISS_PAUSE_MAX_MS);
        let pause = Duration::from_millis(pause_ms).mul_f64(rand::random_range(0.5..1.5));
        // Early enough for the slot itself.
        let behind = LEAD.mul_f64(rand::random_range(0.0..1.0));
        (wait + behind).max(pause).min(LOOK_EVERY)
    }

    fn full(&self) -> Vec<String> {
        let under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.iter().filter(|(_, n)| **n >= UNDER_WAY_MAX).map(|(name, _)| name.clone()).collect()
    }

    async fn deliver(&self, slot: Slot) {
        let body = slot.payload.to_string().into_bytes();
        // A connection that comes too late for this slot is there for the next.
        let sign = |secret| signed_headers(secret, &slot.item.to_string(), slot.at_s(), &body);
        let headers = self.secrets.get(&slot.channel).map(sign).unwrap_or_default();
        let preparing = timeout(CONNECT_MAX, self.poster.prepare(&slot.target, slot.item, &headers, body));
        let prepared = preparing.await.unwrap_or_else(|_| Err(SendError::Connect("not in time".to_owned())));
        let verdict = match prepared {
            Ok(ready) => {
                sleep_until(slot.earliest.into()).await;
                die_at!("outflow.claimed");
                if Instant::now() > slot.latest {
                    self.poster.keep(ready);
                    return self.forfeit(&slot).await;
                }
                self.send(&slot, ready).await
            }
            Err(error) => verdict(&Err(error)),
        };
        die_at!("outflow.sent");
        self.settle(&slot, &verdict).await;
        die_at!("outflow.settled");
    }

    /// Sends now, and looks at the clock again once the request is with the kernel.
    async fn send(&self, slot: &Slot, ready: PreparedRequest) -> DeliveryOutcome {
        let sending = self.poster.send(ready, self.terms.request_timeout);
        tokio::pin!(sending);
        let at_once = poll!(&mut sending);
        let late = Instant::now().saturating_duration_since(slot.at);
        if late > PROMPT {
            self.leave_hole(slot, late).await;
        }
        let answer = match at_once {
            std::task::Poll::Ready(answer) => answer,
            std::task::Poll::Pending => sending.await,
        };
        verdict(&answer)
    }

    /// Later than usual: as many slots as a second has move by as much together, so that the margin is left to the network.
    /// Beyond `LATENESS` (something held this thread up between its last look at the clock and the socket) the rate depends
    /// on it, and the next slot moves by all of it.
    async fn leave_hole(&self, slot: &Slot, late: Duration) {
        let usual = (late.min(LATENESS) - PROMPT) / slot.rate;
        let hole = (usual + late.saturating_sub(LATENESS)).min(HOLE_MAX);
        let moved = self.ledger.in_time(self.ledger.leave_hole(&slot.channel, hole)).await;
        if late > LATENESS {
            count("late", &slot.channel);
            let (late_us, moved) = (late.as_micros(), moved.is_ok());
            tracing::warn!(channel = slot.channel, late_us, moved, "sent too late; the slots behind move");
        }
    }

    /// Too late for the slot: nothing was sent, the item keeps its turn.
    async fn forfeit(&self, slot: &Slot) {
        count("forfeited", &slot.channel);
        tracing::debug!(channel = slot.channel, item = %slot.item, "too late for the slot");
        if let Err(error) = self.ledger.in_time(self.ledger.give_back(slot)).await {
            tracing::warn!(channel = slot.channel, %error, "slot not given back; its item waits for the lease");
        }
    }

    /// Writes the outcome down, again and again while the claim lasts: beyond it the item is sent again, under the same key.
    async fn settle(&self, slot: &Slot, verdict: &DeliveryOutcome) {
        let until = slot.earliest + self.lease();
        loop {
            match self.ledger.in_time(self.ledger.settle_slot(slot, verdict, self.terms.retry)).await {
                Ok(settled) => return tell(slot, verdict, settled),
                Err(error) if Instant::now() > until => {
                    return tracing::error!(item = %slot.item, %error, "outcome not written down; it is sent again");
                }
                Err(error) => tracing::warn!(item = %slot.item, %error, "outcome not written down yet"),
            }
            sleep(Duration::from_millis(rand::random_range(200..600))).await;
        }
    }

    /// Counts what waits, for the bounds of the queues and for whoever watches.
    pub async fn watch(&self) -> Result<Step, LedgerError> {
        self.ledger.count_outflow().await?;
        for channel in self.ledger.outflow_figures().await? {
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

/// What an answer, or the lack of one, means for the item.
fn verdict(answer: &Result<HttpAnswer, SendError>) -> DeliveryOutcome {
    match answer {
        Ok(answer) => DeliveryOutcome::of(answer.status, answer.retry_after, &answer.text()),
        Err(SendError::Target) => DeliveryOutcome::Refused(SendError::Target.to_string()),
        // A receiver that is not there is no fault of the item's: it waits, and counts nothing.
        Err(error) if error.nothing_sent() => DeliveryOutcome::NotNow(UNREACHABLE_REST),
        Err(error) => DeliveryOutcome::TryAgain(error.to_string()),
    }
}

fn tell(slot: &Slot, verdict: &DeliveryOutcome, settled: Settled) {
    let outcome = match settled {
        Settled::Done => "done",
        Settled::WillRetry => "retry",
        Settled::Parked => "parked",
        Settled::Overtaken => "overtaken",
    };
    count(outcome, &slot.channel);
    match (settled, verdict) {
        (Settled::Parked, DeliveryOutcome::Refused(why) | DeliveryOutcome::TryAgain(why)) => {
            tracing::error!(channel = slot.channel, item = %slot.item, %why, "PARKED: it is not sent again by itself");
        }
        (_, DeliveryOutcome::NotNow(rest)) => {
            tracing::warn!(channel = slot.channel, rest_ms = rest.as_millis(), "the receiver is not to be had");
        }
        (_, DeliveryOutcome::TryAgain(why)) => {
            tracing::info!(channel = slot.channel, item = %slot.item, %why, "tried again later");
        }
        _ => {}
    }
}

fn count(outcome: &'static str, channel: &str) {
    metrics::counter!("seckill_outflow_total", "outcome" => outcome, "channel" => channel.to_owned()).increment(1);
}

/// A place among the requests under way, given back when it is dropped.
struct Place {
    under_way: Arc<Mutex<HashMap<String, usize>>>,
    channel: String,
}

impl Place {
    fn take(under_way: &Arc<Mutex<HashMap<String, usize>>>, channel: &str) -> Self {
        *under_way.lock().unwrap_or_else(PoisonError::into_inner).entry(channel.to_owned()).or_default() += 1;
        Self { under_way: Arc::clone(under_way), channel: channel.to_owned() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = under_way.get_mut(&self.channel) {
            *n -= 1;
        }
        under_way.retain(|_, n| *n > 0);
    }
}
