//! The refills of one process: many at once, those that are needed first, and each on its own account (protocol, rule 11).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::LedgerSlots;
use crate::domain::ids::SaleId;
use crate::domain::shards::SaleShards;
use crate::gate::server_runs::ServerRuns;
use crate::sale::{SaleError, Stores};

/// Refills at the same time. Those that no caller waits for leave some places free for the others.
const AT_ONCE: usize = 48;
const UNNEEDED_AT_ONCE: usize = 40;
/// How many refills of each class use PostgreSQL at the same time. The classes do not wait for each other: refills that a caller
/// waits for, planned ones, those of sales whose last refill has failed, and long ones.
const NEEDED_SLOTS: usize = 4;
const PLANNED_SLOTS: usize = 4;
const FAILED_SLOTS: usize = 1;
const LONG_SLOTS: usize = 2;
/// How long planned sales wait once all have been compared: on few processors their refills slow down those that callers wait for.
const NEEDED_FIRST: Duration = Duration::from_secs(2);
/// They wait no more often than this, however often all are compared.
const NEEDED_FIRST_APART: Duration = Duration::from_secs(10);
/// The pauses after a refill that failed: the shortest, which doubles with each failure, and the longest.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 200..=10_000;
/// The pause before a sale is taken back from another server: two masters would take it from each other all the time.
const CONTEST_PAUSE: Duration = Duration::from_secs(10);
/// The pause of a refill that another one has overtaken.
const OVERTAKEN_PAUSE: Duration = Duration::from_secs(2);
/// How long a stopping process waits for its refills.
const FINISH_MAX: Duration = Duration::from_secs(5);
/// The pause between checks that callers cause, of a sale with a server that is away.
const REACH_PAUSE: Duration = Duration::from_millis(200);
/// The pause of a refill that met a server which is away.
const AWAY_PAUSE: Duration = Duration::from_millis(500);

/// How urgently a sale is needed, most urgently first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    Asked,
    Live,
    Planned,
}

impl Need {
    const ALL: [Self; 3] = [Self::Asked, Self::Live, Self::Planned];
}

/// A sale whose last refill has failed, or that another server has taken.
struct Sick {
    failures: u32,
    until: Instant,
}

/// The sales that wait for a refill, those that are being refilled, and what came of earlier ones.
pub(super) struct RefillQueue {
    stores: Stores,
    waiting: BTreeMap<(Need, SaleId), SaleShards>,
    running: JoinSet<(SaleId, Option<String>, Result<(), SaleError>)>,
    refilling: HashMap<SaleId, Need>,
    sick: HashMap<SaleId, Sick>,
    /// The run of the server, or of the servers, on which this process has filled a sale, or was overtaken while it did.
    filled: HashMap<SaleId, String>,
    needed_slots: Arc<Semaphore>,
    planned_slots: Arc<Semaphore>,
    failed_slots: Arc<Semaphore>,
    long_slots: Arc<Semaphore>,
    /// When planned sales may be refilled.
    planned_from: Option<Instant>,
    /// Some of them have waited for that moment since places were given last.
    held_back: bool,
    /// A server has been away since a refill succeeded last, which was reported.
    is_away: bool,
}

impl RefillQueue {
    pub fn new(stores: Stores) -> Self {
        Self {
            stores,
            waiting: BTreeMap::new(),
            running: JoinSet::new(),
            refilling: HashMap::new(),
            sick: HashMap::new(),
            filled: HashMap::new(),
            needed_slots: Arc::new(Semaphore::new(NEEDED_SLOTS)),
            planned_slots: Arc::new(Semaphore::new(PLANNED_SLOTS)),
            failed_slots: Arc::new(Semaphore::new(FAILED_SLOTS)),
            long_slots: Arc::new(Semaphore::new(LONG_SLOTS)),
            planned_from: None,
            held_back: false,
            is_away: false,
        }
    }

    /// Whether the sale is neither being refilled nor resting after a failure.
    pub fn may_start(&self, sale: SaleId) -> bool {
        !self.refilling.contains_key(&sale) && self.sick.get(&sale).is_none_or(|sick| sick.until <= Instant::now())
    }

    /// A server of the sale is away. Requests for the sale start no other check before `REACH_PAUSE` has passed.
    pub fn is_out_of_reach(&mut self, sale: SaleId) {
        self.rest(sale, REACH_PAUSE);
    }

    /// Puts a sale in the line of those that wait, unless it is being refilled, or rests. A sale that was asked for keeps its place.
    pub fn want(&mut self, of: SaleShards, need: Need) {
        let sale = of.sale;
        let need = if self.waiting.contains_key(&(Need::Asked, sale)) { Need::Asked } else { need };
        self.leave_line(sale);
        if self.may_start(sale) {
            self.waiting.insert((need, sale), of);
        }
    }

    /// Takes a sale that is whole, or is no more, out of the line.
    pub fn leave_line(&mut self, sale: SaleId) {
        for need in Need::ALL {
            self.waiting.remove(&(need, sale));
        }
    }

    /// Another process has filled this sale on another server than ours. If ours is still the one on which this process has filled it, there
    /// are two masters, and the sale rests.
    pub fn taken_elsewhere(&mut self, of: SaleShards, servers: &ServerRuns) {
        let sale = of.sale;
        if self.filled.contains_key(&sale) && self.filled.get(&sale) == servers.run_id(of).as_ref() {
            tracing::error!(%sale, "TWO REDIS MASTERS: another instance has filled the sale on another server");
            metrics::counter!("seckill_refills_contested_total").increment(1);
            self.filled.remove(&sale);
            self.rest(sale, CONTEST_PAUSE);
        }
    }

    /// The server has lost its memory, or is another one: what callers wait for is refilled alone for a while.
    pub fn needed_first(&mut self) {
        let now = Instant::now();
        if self.planned_from.is_none_or(|from| from + NEEDED_FIRST_APART <= now) {
            self.planned_from = Some(now + NEEDED_FIRST);
        }
    }

    /// Starts refills while there are places.
    pub fn start(&mut self, servers: &ServerRuns) {
        while let Some((&(need, sale), &of)) = self.waiting.first_key_value() {
            let unneeded = self.refilling.values().filter(|need| **need == Need::Planned).count();
            if self.refilling.len() >= AT_ONCE || need == Need::Planned && unneeded >= UNNEEDED_AT_ONCE {
                return;
            }
            if need == Need::Planned && self.planned_from.is_some_and(|from| from > Instant::now()) {
                self.held_back = true;
                return;
            }
            self.waiting.remove(&(need, sale));
            self.refilling.insert(sale, need);
            let slots = match need {
                _ if self.sick.get(&sale).is_some_and(|sick| sick.failures > 0) => &self.failed_slots,
                Need::Asked | Need::Live => &self.needed_slots,
                Need::Planned => &self.planned_slots,
            };
            let (stores, mut servers, slots) = (
                self.stores.clone(),
                servers.clone(),
                LedgerSlots { short: Arc::clone(slots), long: Arc::clone(&self.long_slots) },
            );
            self.running.spawn(async move {
                let result = stores.refill_once(&mut servers, of, &slots).await;
                (sale, servers.run_id(of), result)
            });
        }
    }

    /// Waits until a refill has ended, or planned sales may be refilled. Never returns while there is nothing to wait for. Returns whether a
    /// server was away.
    pub async fn ended(&mut self) -> bool {
        let planned_from = self.planned_from.filter(|_| self.held_back);
        let ended = tokio::select! {
            Some(ended) = self.running.join_next() => ended,
            () = tokio::time::sleep_until(planned_from.unwrap_or_else(Instant::now)), if planned_from.is_some() => {
                self.held_back = false;
                return false;
            }
            else => std::future::pending().await,
        };
        match ended {
            Ok((sale, run, result)) => self.record(sale, run, result),
            // It was aborted below; another refill of its sale may have begun since.
            Err(error) if error.is_cancelled() => false,
            // A panic: the sale is not known. It is found again by the next check.
            Err(error) => {
                tracing::error!(%error, "a refill has panicked");
                self.running.abort_all();
                self.refilling.clear();
                false
            }
        }
    }

    /// Finishes the refills under way, for a few seconds at most. A refill that is cut off is begun anew by another instance.
    pub async fn finish(mut self) {
        let refills = async { while self.running.join_next().await.is_some() {} };
        _ = tokio::time::timeout(FINISH_MAX, refills).await;
    }

    /// Forgets what came of the refills of other sales than these: of those that have left Redis.
    pub fn forget_unless(&mut self, is_known: impl Fn(SaleId) -> bool) {
        self.sick.retain(|sale, _| is_known(*sale));
        self.filled.retain(|sale, _| is_known(*sale));
    }

    fn record(&mut self, sale: SaleId, run: Option<String>, result: Result<(), SaleError>) -> bool {
        self.refilling.remove(&sale);
        match result {
            Ok(()) => {
                self.filled.extend(run.map(|run| (sale, run)));
                self.sick.remove(&sale);
                self.is_away = false;
            }
            Err(SaleError::Busy(_)) => {
                tracing::debug!(%sale, "another instance refills the sale, which is looked at again in the next check");
            }
            // Without a pause, two instances that cannot see each other's lock would overtake each other for ever.
            Err(SaleError::Overtaken) => {
                tracing::info!(%sale, "another refill has taken over, or the sale has lost keys again; tried again after a pause");
                self.filled.extend(run.map(|run| (sale, run)));
                let pause = OVERTAKEN_PAUSE.mul_f64(rand::random_range(0.5..1.5));
                self.rest(sale, pause);
            }
            // Redis or PostgreSQL is away, which is no fault of the sale.
            Err(error) if error.is_outage() && !error.is_locked() => {
                if !std::mem::replace(&mut self.is_away, true) {
                    tracing::warn!(%sale, %error, "sale not refilled, because a server is away; so it may be with others");
                }
                metrics::counter!("seckill_step_failures_total", "step" => "refill").increment(1);
                self.rest(sale, AWAY_PAUSE.mul_f64(rand::random_range(0.5..1.5)));
                return true;
            }
            Err(error) => {
                let failures = self.sick.get(&sale).map_or(0, |sick| sick.failures).saturating_add(1);
                let pause = (*PAUSE_MS.start() << failures.min(16)).min(*PAUSE_MS.end());
                tracing::error!(%sale, %error, failures, pause_ms = pause, "sale not refilled; it stays closed until it is");
                metrics::counter!("seckill_refill_failures_total").increment(1);
                self.sick.insert(sale, Sick { failures, until: Instant::now() + Duration::from_millis(pause) });
            }
        }
        false
    }

    /// Leaves a sale alone for a while.
    fn rest(&mut self, sale: SaleId, pause: Duration) {
        let failures = self.sick.get(&sale).map_or(0, |sick| sick.failures);
        self.sick.insert(sale, Sick { failures, until: Instant::now() + pause });
    }
}
