//! Reads a sale's figures once a second, and less often while purchases wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{KEPT_MAX, Sample, Samples, Shared};
use crate::domain::ids::SaleId;
use crate::domain::live::{Counters, Drift, InstanceFigures, LedgerFigures, LiveFigures, RedisFigures, rate};
use crate::gate::sale_state::SaleView;
use crate::ledger::Ledger;

const EVERY: Duration = Duration::from_secs(1);
/// How long Redis may take to answer. PostgreSQL may take longer than a statement of `live_figures`.
const REDIS_MAX: Duration = Duration::from_millis(800);
const LEDGER_MAX: Duration = Duration::from_secs(5);
/// PostgreSQL rests this many times as long as it has worked, so that counting a million orders takes a twentieth of its time.
const LEDGER_REST_FACTOR: u32 = 19;
/// While purchases wait, PostgreSQL is asked this seldom.
const LEDGER_REST_UNDER_PRESSURE: Duration = Duration::from_secs(5);
/// Figures of PostgreSQL that are older are not compared with Redis.
const SAME_MOMENT_MS: i64 = 1_000;
/// The latency is that of so many samples.
const LATENCY_SAMPLES: usize = 10;

/// Reads the figures of one sale, for all who watch it here.
pub(super) struct Sampler {
    shared: Arc<Shared>,
    sale: SaleId,
    feed: watch::Sender<Samples>,
    last_id: i64,
    /// The last readings of the instance's counters, oldest first.
    counters: VecDeque<(Instant, Counters)>,
    /// How many winners there were, and when.
    winners: Option<(Instant, i64)>,
    ledger: LedgerReading,
}

/// The last reading of PostgreSQL, when it began, and how long it took.
#[derive(Default)]
struct LedgerReading {
    figures: Option<LedgerFigures>,
    read: Option<(Instant, Duration)>,
}

impl LedgerReading {
    /// Whether it is time to read again.
    fn is_due(&self, purchases_wait: bool, now: Instant) -> bool {
        let Some((began, took)) = self.read else { return true };
        let least = if purchases_wait { LEDGER_REST_UNDER_PRESSURE } else { Duration::ZERO };
        now.saturating_duration_since(began + took) >= (took * LEDGER_REST_FACTOR).max(least)
    }
}

impl Sampler {
    pub(super) fn new(shared: Arc<Shared>, sale: SaleId, feed: watch::Sender<Samples>) -> Self {
        Self {
            shared,
            sale,
            feed,
            last_id: 0,
            counters: VecDeque::new(),
            winners: None,
            ledger: LedgerReading::default(),
        }
    }

    /// Reads and feeds until stopped. What it reads is read to the end, so that no connection to PostgreSQL is left in the middle of a
    /// statement, however often people come and go.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            let began = Instant::now();
            self.sample().await;
            let took = began.elapsed();
            // Figures are no work that piles up, so the sampler is never behind.
            let rest = self.shared.sources.pressure.worker_rest(took, Duration::ZERO, Instant::now());
            if stop.run_until_cancelled(sleep(EVERY.saturating_sub(took) + rest)).await.is_none() {
                return;
            }
        }
    }

    async fn sample(&mut self) {
        let shared = Arc::clone(&self.shared);
        let sources = &shared.sources;
        let view = timeout(REDIS_MAX, sources.stores.gate.sale_view(self.sale));
        let (view, ()) = tokio::join!(view, read_ledger(&shared, self.sale, &mut self.ledger));
        let now = Instant::now();
        let redis = view.ok().and_then(Result::ok).flatten().map(|view| self.redis_figures(&view, now));
        let ledger = self.ledger.figures.clone();
        let at_ms = sources.clock.now_ms();
        let comparable = ledger.as_ref().filter(|ledger| (at_ms - ledger.read_at_ms).abs() <= SAME_MOMENT_MS);
        let figures = LiveFigures {
            at_ms,
            instance: self.instance_figures(Counters::read(&sources.metrics.render()), now),
            drift: Drift::between(comparable, redis.as_ref()),
            redis,
            ledger,
            queues: shared.queues.lock().clone(),
        };
        self.publish(&figures);
    }

    fn instance_figures(&mut self, counters: Counters, now: Instant) -> Option<InstanceFigures> {
        let before = self.counters.back().zip(self.counters.front());
        let figures = before.map(|((at, before), (_, long_before))| {
            counters.since(before, now.saturating_duration_since(*at), long_before)
        });
        if self.counters.len() >= LATENCY_SAMPLES {
            self.counters.pop_front();
        }
        self.counters.push_back((now, counters));
        figures
    }

    fn redis_figures(&mut self, view: &SaleView, now: Instant) -> RedisFigures {
        let before = self.winners.replace((now, view.winners));
        // After a refill there may be fewer tickets for a moment.
        let winners_per_s = before.map(|(at, winners)| {
            let more = u64::try_from(view.winners - winners).unwrap_or(0);
            rate(more, now.saturating_duration_since(at))
        });
        RedisFigures {
            serving: view.serving,
            available: view.available,
            unconfirmed: view.unconfirmed,
            winners: view.winners,
            winners_per_s,
        }
    }

    fn publish(&mut self, figures: &LiveFigures) {
        self.last_id = figures.at_ms.max(self.last_id + 1);
        // Figures hold only texts and numbers, so serializing cannot fail.
        let json = serde_json::to_string(figures).unwrap_or_default();
        let sample = Arc::new(Sample { id: self.last_id, json });
        self.feed.send_modify(|kept| {
            if kept.len() >= KEPT_MAX {
                kept.pop_front();
            }
            kept.push_back(sample);
        });
        metrics::counter!("seckill_live_samples_total").increment(1);
    }
}

/// Reads PostgreSQL's figures if they are due. They are unknown while it does not answer in time.
async fn read_ledger(shared: &Shared, sale: SaleId, last: &mut LedgerReading) {
    let sources = &shared.sources;
    if !last.is_due(sources.pressure.is_noticeable(Instant::now()), Instant::now()) {
        return;
    }
    // The semaphore is never closed.
    let _turn = shared.ledger_turn.acquire().await;
    let began = Instant::now();
    let read = Ledger::within(LEDGER_MAX, sources.stores.ledger.live_figures(sale)).await;
    last.read = Some((began, began.elapsed()));
    last.figures = read.unwrap_or_else(|error| {
        tracing::debug!(%sale, %error, "figures of a sale not read for the live page");
        None
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgresql_rests_by_what_it_took_and_longer_while_purchases_wait() {
        let start = Instant::now();
        let mut ledger = LedgerReading::default();
        assert!(ledger.is_due(true, start), "nothing was read");
        let took = |ms| Some((start, Duration::from_millis(ms)));
        let after = |ms| start + Duration::from_millis(ms);
        ledger.read = took(10);
        assert!(!ledger.is_due(false, after(150)) && ledger.is_due(false, after(200)));
        assert!(!ledger.is_due(true, after(5_000)) && ledger.is_due(true, after(5_010)));
        ledger.read = took(500);
        assert!(!ledger.is_due(true, after(9_000)) && ledger.is_due(true, after(10_000)));
    }
}
