//! Reads a sale's figures once a second, and less often while purchases wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{KEPT_MAX, Sample, Samples, Shared};
use seckill_domain::ids::SaleId;
use seckill_domain::live::{Counters, Drift, InstanceFigures, LedgerFigures, LiveFigures, RedisFigures, rate};
use seckill_domain::shards::SaleShards;
use seckill_postgres::Database;
use seckill_postgres::sales::live::REST_FACTOR;
use seckill_redis::sale_state::SaleView;

const EVERY: Duration = Duration::from_secs(1);
/// How long Redis and PostgreSQL may take to answer.
const REDIS_MAX: Duration = Duration::from_millis(800);
const LEDGER_MAX: Duration = Duration::from_secs(5);
/// The least pause between readings of PostgreSQL while purchases wait.
const LEDGER_REST_UNDER_PRESSURE: Duration = Duration::from_secs(5);
/// Older figures of PostgreSQL are not compared with Redis.
const SAME_MOMENT_MS: i64 = 1_000;
/// The least time between readings of the counters: less than `EVERY`, because samplers are not exactly a second apart.
const COUNTERS_EVERY: Duration = Duration::from_millis(900);
const LATENCY_SAMPLES: usize = 10;

pub(super) struct Sampler {
    shared: Arc<Shared>,
    sale: SaleId,
    /// They never change.
    shards: Option<SaleShards>,
    feed: watch::Sender<Samples>,
    last_id: i64,
    /// The last number of winners, and when it was read.
    winners: Option<(Instant, i64)>,
    ledger: Option<LedgerFigures>,
}

/// Round robin over the watched sales. PostgreSQL rests after each reading, by its duration.
#[derive(Default)]
pub(super) struct LedgerTurns {
    /// The begin and the duration of the last reading.
    read: Option<(Instant, Duration)>,
    /// Each waiting sale once.
    line: VecDeque<SaleId>,
}

impl LedgerTurns {
    /// Whether PostgreSQL has rested, and no other sale has waited longer.
    fn is_due(&mut self, sale: SaleId, purchases_wait: bool, now: Instant) -> bool {
        if !self.line.contains(&sale) {
            self.line.push_back(sale);
        }
        let least = if purchases_wait { LEDGER_REST_UNDER_PRESSURE } else { Duration::ZERO };
        let has_rested = self
            .read
            .is_none_or(|(began, took)| now.saturating_duration_since(began + took) >= (took * REST_FACTOR).max(least));
        has_rested && self.line.front() == Some(&sale)
    }

    fn leave(&mut self, sale: SaleId) {
        self.line.retain(|waiting| *waiting != sale);
    }
}

/// The instance's own figures, which are the same for all sales.
#[derive(Default)]
pub(super) struct InstanceReadings {
    /// Oldest first.
    counters: VecDeque<(Instant, Counters)>,
    /// `None` after the first reading.
    figures: Option<InstanceFigures>,
}

impl InstanceReadings {
    /// The figures of this second. `read` is called once a second.
    fn at(&mut self, now: Instant, read: impl FnOnce() -> Counters) -> Option<InstanceFigures> {
        let before = self.counters.back().zip(self.counters.front());
        if before.is_some_and(|((at, _), _)| now.saturating_duration_since(*at) < COUNTERS_EVERY) {
            return self.figures.clone();
        }
        let counters = read();
        self.figures = before.map(|((at, before), (_, long_before))| {
            counters.since(before, now.saturating_duration_since(*at), long_before)
        });
        if self.counters.len() >= LATENCY_SAMPLES {
            self.counters.pop_front();
        }
        self.counters.push_back((now, counters));
        self.figures.clone()
    }
}

/// A sampler that ends leaves the line.
impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.ledger_turns.lock().leave(self.sale);
    }
}

impl Sampler {
    pub(super) fn new(shared: Arc<Shared>, sale: SaleId, feed: watch::Sender<Samples>) -> Self {
        Self { shared, sale, shards: None, feed, last_id: 0, winners: None, ledger: None }
    }

    /// Reads and feeds until stopped. It finishes each reading: no connection to PostgreSQL is left in the middle of a statement.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            let began = Instant::now();
            self.sample().await;
            let took = began.elapsed();
            // There is no backlog of figures.
            let rest = self.shared.sources.pressure.worker_rest(took, Duration::ZERO, Instant::now());
            if stop.run_until_cancelled(sleep(EVERY.saturating_sub(took) + rest)).await.is_none() {
                return;
            }
        }
    }

    async fn sample(&mut self) {
        let shared = Arc::clone(&self.shared);
        let sources = &shared.sources;
        if self.shards.is_none() {
            let found = timeout(REDIS_MAX, sources.stores.ledger.sales.shards_of(&[self.sale])).await;
            self.shards = found.ok().and_then(Result::ok).and_then(|mut found| found.pop()).map(|of| of.shards);
        }
        let of = self.shards;
        let view = async move {
            let of = of?;
            timeout(REDIS_MAX, sources.stores.gate.sale_view(of)).await.ok()?.ok()?
        };
        let (view, ()) = tokio::join!(view, read_ledger(&shared, self.sale, &mut self.ledger));
        let (now, ledger) = (Instant::now(), self.ledger.clone());
        let redis = view.map(|view| self.redis_figures(&view, now));
        let at_ms = sources.clock.now_ms();
        let comparable = ledger.as_ref().filter(|ledger| (at_ms - ledger.read_at_ms).abs() <= SAME_MOMENT_MS);
        let figures = LiveFigures {
            at_ms,
            instance: shared.instance.lock().at(now, || Counters::read(&sources.metrics.render())),
            drift: Drift::between(comparable, redis.as_ref()),
            redis,
            ledger,
            queues: shared.queues.lock().clone(),
        };
        self.publish(&figures);
    }

    fn redis_figures(&mut self, view: &SaleView, now: Instant) -> RedisFigures {
        let before = self.winners.replace((now, view.winners));
        // After a refill there may be fewer tickets for a moment.
        let winners_per_s = before.map(|(at, winners)| {
            let more = u64::try_from(view.winners - winners).unwrap_or(0);
            rate(more, now.saturating_duration_since(at))
        });
        let SaleView { serving, available, unconfirmed, winners, .. } = *view;
        RedisFigures { serving, available, unconfirmed, winners, winners_per_s }
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

/// Reads PostgreSQL's figures if it is the sale's turn. They are unknown while PostgreSQL does not answer in time.
async fn read_ledger(shared: &Shared, sale: SaleId, figures: &mut Option<LedgerFigures>) {
    let sources = &shared.sources;
    // Redis's figures do not wait for the turn.
    let Ok(_turn) = shared.ledger_turn.try_acquire() else { return };
    let began = Instant::now();
    let purchases_wait = sources.pressure.is_noticeable(began);
    if !shared.ledger_turns.lock().is_due(sale, purchases_wait, began) {
        return;
    }
    let read = Database::within(LEDGER_MAX, sources.stores.ledger.sales.live_figures(sale)).await;
    let mut turns = shared.ledger_turns.lock();
    turns.read = Some((began, began.elapsed()));
    turns.leave(sale);
    drop(turns);
    *figures = read.unwrap_or_else(|error| {
        tracing::debug!(%sale, %error, "figures of a sale not read for the live page");
        None
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgresql_rests_by_what_it_took_and_longer_while_purchases_wait() {
        let (start, sale) = (Instant::now(), SaleId::from_db(1));
        let mut turns = LedgerTurns::default();
        assert!(turns.is_due(sale, true, start), "nothing was read");
        let took = |ms| Some((start, Duration::from_millis(ms)));
        let after = |ms| start + Duration::from_millis(ms);
        turns.read = took(10);
        assert!(!turns.is_due(sale, false, after(150)) && turns.is_due(sale, false, after(200)));
        assert!(!turns.is_due(sale, true, after(5_000)) && turns.is_due(sale, true, after(5_010)));
        turns.read = took(500);
        assert!(!turns.is_due(sale, true, after(9_000)) && turns.is_due(sale, true, after(10_000)));
    }

    #[test]
    fn sales_have_turns_and_share_the_rest() {
        let (start, [one, other]) = (Instant::now(), [1, 2].map(SaleId::from_db));
        let mut turns = LedgerTurns::default();
        assert!(turns.is_due(one, false, start) && !turns.is_due(other, false, start));
        turns.read = Some((start, Duration::from_millis(10)));
        turns.leave(one);
        let later = start + Duration::from_millis(200);
        assert!(!turns.is_due(other, false, start), "the rest is that of both");
        assert!(!turns.is_due(one, false, later) && turns.is_due(other, false, later), "the other has waited longer");
        turns.leave(other);
        assert!(turns.is_due(one, false, later), "a sale that nobody watches any more delays no other");
    }

    #[test]
    fn the_counters_are_read_once_a_second_for_all_sales() {
        let (start, mut readings, mut read) = (Instant::now(), InstanceReadings::default(), 0);
        let mut at = |ms| {
            readings.at(start + Duration::from_millis(ms), || {
                read += 1;
                Counters::read(&format!("seckill_requests_total {}\n", read * 10))
            })
        };
        assert_eq!((at(0), at(300)), (None, None));
        let [first, again] = [at(1_000), at(1_300)];
        assert_eq!(first.as_ref().map(|figures| figures.requests_per_s), Some(10.0));
        assert_eq!(first, again);
        assert_eq!(read, 2);
    }
}
