//! Finds the sales that are not whole on this process's Redis server, and refills them: many at once, those that are needed
//! first, and each on its own account (protocol, rules 10 and 11).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::refill::{LedgerSlots, is_whole};
use crate::domain::ids::SaleId;
use crate::domain::sale::SaleStatus;
use crate::gate::refill::ServerRun;
use crate::ledger::sales::epochs::EpochRow;
use crate::sale::{SaleError, Stores};

/// Refills at the same time. Those that no caller waits for leave some places free for the others.
const AT_ONCE: usize = 48;
const UNNEEDED_AT_ONCE: usize = 40;
/// How many of them use PostgreSQL at the same time; those of sales that have failed before share one place.
const LEDGER_SLOTS: usize = 4;
/// The pauses after a refill that failed: the shortest, which doubles with each failure, and the longest.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 200..=10_000;
/// The pause before a sale is taken back from another server: two masters would take it from each other all the time.
const CONTEST_PAUSE: Duration = Duration::from_secs(10);
/// The pause of a refill that another one has overtaken.
const OVERTAKEN_PAUSE: Duration = Duration::from_secs(2);
/// How long a stopping process waits for its refills.
const FINISH_MAX: Duration = Duration::from_secs(5);
/// A refill that takes longer is given up.
const REFILL_MAX: Duration = Duration::from_secs(600);

/// How urgently a sale is needed, most urgently first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    Asked,
    Live,
    Planned,
}

/// A sale whose last refill has failed, or that another server has taken.
struct Sick {
    failures: u32,
    until: Instant,
}

/// Watches one Redis server.
pub struct RefillSupervisor {
    stores: Stores,
    retire_after_ms: u64,
    server: Option<ServerRun>,
    waiting: BTreeSet<(Need, SaleId)>,
    running: JoinSet<(SaleId, String, Result<(), SaleError>)>,
    refilling: HashMap<SaleId, Need>,
    sick: HashMap<SaleId, Sick>,
    /// The run of the server on which this process has filled a sale, or was overtaken while it did.
    filled: HashMap<SaleId, String>,
    slots: LedgerSlots,
    sick_slots: LedgerSlots,
}

impl RefillSupervisor {
    pub fn new(stores: Stores, retire_after_ms: u64) -> Self {
        Self {
            stores,
            retire_after_ms,
            server: None,
            waiting: BTreeSet::new(),
            running: JoinSet::new(),
            refilling: HashMap::new(),
            sick: HashMap::new(),
            filled: HashMap::new(),
            slots: Arc::new(Semaphore::new(LEDGER_SLOTS)),
            sick_slots: Arc::new(Semaphore::new(1)),
        }
    }

    /// Checks all sales, sets their status in Redis to the ledger's, and starts to refill those that are not whole. Refills go
    /// on after this call, in the background.
    ///
    /// # Errors
    /// Redis or PostgreSQL cannot be asked. A refill that fails is no error of this call.
    pub async fn check_all(&mut self) -> Result<(), SaleError> {
        self.waiting.clear();
        let rows = self.check(None).await?;
        let known: HashSet<SaleId> = rows.iter().map(|row| row.sale).collect();
        self.sick.retain(|sale, _| known.contains(sale));
        self.filled.retain(|sale, _| known.contains(sale));
        Ok(())
    }

    /// Does the same for sales that callers have asked for in vain.
    ///
    /// # Errors
    /// As `check_all`.
    pub async fn check_asked(&mut self, sales: &HashSet<SaleId>) -> Result<(), SaleError> {
        let may_start = |sale: &SaleId| !self.refilling.contains_key(sale) && !self.rests(*sale);
        let asked: Vec<SaleId> = sales.iter().copied().filter(may_start).collect();
        if !asked.is_empty() {
            self.check(Some(&asked)).await?;
        }
        Ok(())
    }

    /// Waits until a refill has ended, and starts the next one. Never returns while no refill is under way.
    pub async fn refill_ended(&mut self) {
        match self.running.join_next().await {
            None => std::future::pending().await,
            Some(Ok((sale, run, result))) => self.record(sale, run, result),
            // A panic: the sale is not known. It is found again by the next check.
            Some(Err(error)) => {
                tracing::error!(%error, "a refill has panicked");
                self.running.abort_all();
                self.refilling.clear();
            }
        }
        self.start_refills();
    }

    /// Finishes the refills under way, for a few seconds at most. A refill that is cut off is begun anew by another instance.
    pub async fn finish(mut self) {
        let refills = async { while self.running.join_next().await.is_some() {} };
        _ = tokio::time::timeout(FINISH_MAX, refills).await;
    }

    async fn check(&mut self, asked: Option<&[SaleId]>) -> Result<Vec<EpochRow>, SaleError> {
        // While this connection lives, it leads to the same run of the same server.
        let mut server = match self.server.take() {
            Some(server) => server,
            None => self.stores.gate.connect_to_run().await?,
        };
        let ledger = &self.stores.ledger;
        let rows = ledger.in_time(ledger.epochs(asked, self.retire_after_ms)).await?;
        let sales: Vec<SaleId> = rows.iter().map(|row| row.sale).collect();
        let states = server.sale_states(&sales).await?;
        for (row, standing) in rows.iter().zip(states) {
            if !is_whole(row, &server, standing) {
                let elsewhere = row.run_id.as_deref().is_some_and(|run| run != server.run_id());
                if let Some((epoch, _)) = standing
                    && elsewhere
                    && epoch < row.epoch
                {
                    // Another server has a newer epoch. The ledger refuses purchases of this one; nobody is to hear "sold out"
                    // of it, either.
                    if let Err(error) = server.close(row.sale, epoch).await {
                        tracing::warn!(sale = %row.sale, %error, "a sale of an older epoch is not closed");
                    }
                }
                self.consider(row, &server, asked.is_some());
            } else if let Some((_, status)) = standing
                && status != row.status
            {
                self.set_status(row, status).await;
            }
        }
        self.server = Some(server);
        self.start_refills();
        Ok(rows)
    }

    /// Puts a sale in the line of those that wait for a refill, unless it is being refilled, or rests after a failure.
    fn consider(&mut self, row: &EpochRow, server: &ServerRun, asked: bool) {
        let sale = row.sale;
        let taken = row.run_id.as_ref().is_some_and(|run| run != server.run_id());
        if taken && self.filled.get(&sale).is_some_and(|run| run == server.run_id()) {
            // The server is still the one on which this process has filled the sale, and another process uses another one.
            tracing::error!(%sale, "TWO REDIS MASTERS: another instance has filled the sale on another server");
            metrics::counter!("seckill_refills_contested_total").increment(1);
            self.filled.remove(&sale);
            self.rest(sale, CONTEST_PAUSE);
        }
        if self.rests(sale) || self.refilling.contains_key(&sale) {
            return;
        }
        let need = match (asked, row.live) {
            (true, _) => Need::Asked,
            (false, true) => Need::Live,
            (false, false) => Need::Planned,
        };
        self.waiting.insert((need, sale));
    }

    /// Sets a sale's status in Redis to the ledger's, which is newer, or was not set because a process died.
    async fn set_status(&self, row: &EpochRow, present: SaleStatus) {
        let (sale, wanted) = (row.sale, row.status);
        match self.stores.gate.set_sale_state(sale, row.epoch, wanted, row.version).await {
            Ok(set) => {
                tracing::info!(%sale, %present, %wanted, set, "the sale's status in Redis differs from the ledger's");
            }
            Err(error) => tracing::warn!(%sale, %error, "the sale's status is not set in Redis"),
        }
    }

    fn start_refills(&mut self) {
        let Some(server) = &self.server else { return };
        while let Some((need, sale)) = self.waiting.first().copied() {
            let unneeded = self.refilling.values().filter(|need| **need == Need::Planned).count();
            if self.refilling.len() >= AT_ONCE || need == Need::Planned && unneeded >= UNNEEDED_AT_ONCE {
                return;
            }
            self.waiting.remove(&(need, sale));
            if self.refilling.contains_key(&sale) {
                continue;
            }
            self.refilling.insert(sale, need);
            let failed = self.sick.get(&sale).is_some_and(|sick| sick.failures > 0);
            let slots = if failed { &self.sick_slots } else { &self.slots };
            let (stores, mut server, slots) = (self.stores.clone(), server.clone(), Arc::clone(slots));
            self.running.spawn(async move {
                let refill = tokio::time::timeout(REFILL_MAX, stores.refill_once(&mut server, sale, &slots));
                let result = refill.await.unwrap_or(Err(SaleError::Busy("a refill that took too long")));
                (sale, server.run_id().to_owned(), result)
            });
        }
    }

    fn record(&mut self, sale: SaleId, run: String, result: Result<(), SaleError>) {
        self.refilling.remove(&sale);
        match result {
            Ok(()) => {
                self.filled.insert(sale, run);
                self.sick.remove(&sale);
            }
            // Another instance refills it: it is looked at again in the next check.
            Err(SaleError::Busy(_)) => {}
            // Without a pause, two instances that cannot see each other's lock would overtake each other for ever.
            Err(SaleError::Overtaken) => {
                self.filled.insert(sale, run);
                let pause = OVERTAKEN_PAUSE.mul_f64(rand::random_range(0.5..1.5));
                self.rest(sale, pause);
            }
            // Redis or PostgreSQL is away, which is no fault of the sale.
            Err(error) if error.is_outage() => {
                tracing::debug!(%sale, %error, "sale not refilled");
                self.server = None;
            }
            Err(error) => {
                let failures = self.sick.get(&sale).map_or(0, |sick| sick.failures).saturating_add(1);
                let pause = (*PAUSE_MS.start() << failures.min(16)).min(*PAUSE_MS.end());
                tracing::error!(%sale, %error, failures, pause_ms = pause, "sale not refilled; it stays closed until it is");
                metrics::counter!("seckill_refill_failures_total").increment(1);
                self.sick.insert(sale, Sick { failures, until: Instant::now() + Duration::from_millis(pause) });
            }
        }
    }

    fn rests(&self, sale: SaleId) -> bool {
        self.sick.get(&sale).is_some_and(|sick| sick.until > Instant::now())
    }

    /// Leaves a sale alone for a while.
    fn rest(&mut self, sale: SaleId, pause: Duration) {
        let failures = self.sick.get(&sale).map_or(0, |sick| sick.failures);
        self.sick.insert(sale, Sick { failures, until: Instant::now() + pause });
    }
}
