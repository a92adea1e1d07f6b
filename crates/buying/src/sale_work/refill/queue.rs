//! The refills of one process: many at once, needed ones first, and no refill delays another (protocol, rule 11).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::LedgerSlots;
use crate::sale::{SaleError, Stores};
use seckill_domain::ids::SaleId;
use seckill_domain::shards::SaleShards;
use seckill_redis::server_runs::ServerRuns;

/// The limit of refills at once, and that of planned ones, which leaves places for refills with waiting callers.
const AT_ONCE: usize = 48;
const UNNEEDED_AT_ONCE: usize = 40;
/// How many refills of each class use PostgreSQL at once. The classes do not wait for each other: refills with waiting callers, planned
/// ones, sales with a failed last refill, and long ones.
const NEEDED_SLOTS: usize = 4;
const PLANNED_SLOTS: usize = 4;
const FAILED_SLOTS: usize = 1;
const LONG_SLOTS: usize = 2;
/// How long planned sales wait after all sales were compared. With few processors, their refills slow down those with waiting callers.
const NEEDED_FIRST: Duration = Duration::from_secs(2);
/// The shortest time between two such waits.
const NEEDED_FIRST_APART: Duration = Duration::from_secs(10);
/// The pauses after a failed refill: the first, doubled with each failure, and the longest.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 200..=10_000;
/// The pause before a sale is taken back from another server. Two masters would take it from each other without end.
const CONTEST_PAUSE: Duration = Duration::from_secs(10);
const OVERTAKEN_PAUSE: Duration = Duration::from_secs(2);
/// How long a stopping process waits for its refills.
const FINISH_MAX: Duration = Duration::from_secs(5);
/// The pause between checks of a sale with an unreachable server, if callers cause them.
const REACH_PAUSE: Duration = Duration::from_millis(200);
const AWAY_PAUSE: Duration = Duration::from_millis(500);

/// How urgently a sale is needed, in descending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    Asked,
    Live,
    Planned,
}

/// A sale with a failed last refill, or taken by another server.
struct Sick {
    failures: u32,
    until: Instant,
}

pub(super) struct RefillQueue {
    stores: Stores,
    waiting: BTreeMap<(Need, SaleId), SaleShards>,
    running: JoinSet<(SaleId, Option<String>, Result<(), SaleError>)>,
    refilling: HashMap<SaleId, Need>,
    sick: HashMap<SaleId, Sick>,
    /// The server run, or runs, on which this process filled a sale, or was overtaken while filling it.
    filled: HashMap<SaleId, String>,
    needed_slots: LedgerSlots,
    planned_slots: LedgerSlots,
    failed_slots: LedgerSlots,
    planned_from: Option<Instant>,
    /// Whether planned sales waited for that moment when places were last given.
    held_back: bool,
    /// A server has been away since the last successful refill, and this was reported.
    is_away: bool,
}

impl RefillQueue {
    pub(crate) fn new(stores: Stores) -> Self {
        let long = Arc::new(Semaphore::new(LONG_SLOTS));
        let slots = |short| LedgerSlots { short: Arc::new(Semaphore::new(short)), long: Arc::clone(&long) };
        Self {
            stores,
            waiting: BTreeMap::new(),
            running: JoinSet::new(),
            refilling: HashMap::new(),
            sick: HashMap::new(),
            filled: HashMap::new(),
            needed_slots: slots(NEEDED_SLOTS),
            planned_slots: slots(PLANNED_SLOTS),
            failed_slots: slots(FAILED_SLOTS),
            planned_from: None,
            held_back: false,
            is_away: false,
        }
    }

    /// Whether the sale is neither being refilled nor in a pause.
    pub(crate) fn may_start(&self, sale: SaleId) -> bool {
        !self.refilling.contains_key(&sale) && self.sick.get(&sale).is_none_or(|sick| sick.until <= Instant::now())
    }

    /// A server of the sale is away. Requests for the sale start no other check within `REACH_PAUSE`.
    pub(crate) fn is_out_of_reach(&mut self, sale: SaleId) {
        self.rest(sale, REACH_PAUSE);
    }

    /// Queues a sale, unless it is being refilled or in a pause. A sale asked for by callers keeps its place.
    pub(crate) fn want(&mut self, of: SaleShards, need: Need) {
        let sale = of.sale;
        let need = if self.waiting.contains_key(&(Need::Asked, sale)) { Need::Asked } else { need };
        self.leave_line(sale);
        if self.may_start(sale) {
            self.waiting.insert((need, sale), of);
        }
    }

    /// Removes a sale from the queue, because it is complete or gone.
    pub(crate) fn leave_line(&mut self, sale: SaleId) {
        for need in [Need::Asked, Need::Live, Need::Planned] {
            self.waiting.remove(&(need, sale));
        }
    }

    /// Another process has filled this sale on another server. If this one filled it on ours, there are two masters.
    pub(crate) fn taken_elsewhere(&mut self, of: SaleShards, servers: &ServerRuns) {
        let sale = of.sale;
        if self.filled.contains_key(&sale) && self.filled.get(&sale) == servers.run_id(of).as_ref() {
            tracing::error!(%sale, "TWO REDIS MASTERS: another instance has filled the sale on another server");
            metrics::counter!("seckill_refills_contested_total").increment(1);
            self.filled.remove(&sale);
            self.rest(sale, CONTEST_PAUSE);
        }
    }

    /// The server has lost its memory, or was replaced. For a while, planned sales are not refilled.
    pub(crate) fn needed_first(&mut self) {
        let now = Instant::now();
        if self.planned_from.is_none_or(|from| from + NEEDED_FIRST_APART <= now) {
            self.planned_from = Some(now + NEEDED_FIRST);
        }
    }

    pub(crate) fn start(&mut self, servers: &ServerRuns) {
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
            let (stores, mut servers, slots) = (self.stores.clone(), servers.clone(), slots.clone());
            self.running.spawn(async move {
                let result = stores.refill_once(&mut servers, of, &slots).await;
                (sale, servers.run_id(of), result)
            });
        }
    }

    /// Waits until a refill ends, or planned sales may start. May never return. Returns whether a server was away.
    pub(crate) async fn ended(&mut self) -> bool {
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
            // Aborted below. Another refill of its sale may have begun since.
            Err(error) if error.is_cancelled() => false,
            // A panic. Its sale is unknown here; the next check finds it again.
            Err(error) => {
                tracing::error!(%error, "a refill has panicked");
                self.running.abort_all();
                self.refilling.clear();
                false
            }
        }
    }

    pub(crate) async fn finish(mut self) {
        let refills = async { while self.running.join_next().await.is_some() {} };
        _ = tokio::time::timeout(FINISH_MAX, refills).await;
    }

    /// Forgets the results of sales that have left Redis.
    pub(crate) fn forget_unless(&mut self, is_known: impl Fn(SaleId) -> bool) {
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
            // Without a pause, two instances that cannot see each other's lock would overtake each other without end.
            Err(SaleError::Overtaken) => {
                tracing::info!(%sale, "another refill has taken over, or the sale has lost keys again; tried again after a pause");
                self.filled.extend(run.map(|run| (sale, run)));
                let pause = OVERTAKEN_PAUSE.mul_f64(rand::random_range(0.5..1.5));
                self.rest(sale, pause);
            }
            // Redis or PostgreSQL is away. The sale itself is good.
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

    fn rest(&mut self, sale: SaleId, pause: Duration) {
        let failures = self.sick.get(&sale).map_or(0, |sick| sick.failures);
        self.sick.insert(sale, Sick { failures, until: Instant::now() + pause });
    }
}
