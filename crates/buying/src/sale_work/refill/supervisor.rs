//! Finds incomplete sales on this process's Redis server, or on its cluster's masters, and starts their refills (protocol, rules 10 and
//! 11). Each check covers the server itself, and the sales that changed or were not in order; once a second, also sales that are live,
//! start soon or have just ended, and a few of the others, in turn. If the server was replaced or may have lost its memory, all sales are
//! compared. So the cost of a check does not depend on the number of planned sales.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::is_whole;
use super::queue::{Need, RefillQueue};
use crate::sale::{SaleError, Stores};
use crate::sale_work::sales_in_turn::{SALES_A_TURN, SalesInTurn, SellingInTurn};
use seckill_domain::ids::{Epoch, SaleId};
use seckill_domain::sale::SaleStatus;
use seckill_domain::shards::SaleShards;
use seckill_postgres::audit_log::NewLine;
use seckill_postgres::sales::epochs::EpochRow;
use seckill_redis::server_runs::{SaleState, ServerRuns, Standing};

/// The shortest time between two comparisons of all sales because of missing ones. One sale may be deleted again and again.
const SUSPICIONS_APART: Duration = Duration::from_secs(10);

/// How often sales are closed on a server that evicts keys. An older refill may have opened one since.
const CLOSINGS_APART: Duration = Duration::from_secs(5);

/// How many sales with lost keys one check records. An alarm lists no more.
const LOST_NAMED: usize = 20;
/// After this time, a sale that repeatedly loses keys, or cannot be refilled, is recorded again.
const LOST_AGAIN: Duration = Duration::from_secs(30);

/// Identifies the servers of one moment.
type Identity = Vec<Option<[String; 2]>>;

/// Watches one Redis server, or the masters of one cluster.
pub struct RefillSupervisor {
    stores: Stores,
    retire_after_ms: u64,
    /// How long an incomplete sale is left to other processes.
    patience: Duration,
    servers: Option<ServerRuns>,
    queue: RefillQueue,
    /// Sales that were not in order at their last check, and since when: incomplete, or with another status than in the ledger.
    unsettled: HashMap<SaleId, Instant>,
    /// The version up to which the catalogue's changes were checked.
    version: Option<i64>,
    selling: SellingInTurn,
    in_turn: SalesInTurn,
    walked: HashSet<SaleId>,
    /// The server on which all sales were last compared with the ledger, and when.
    compared: Option<(Identity, Instant)>,
    /// A sale was missing on the server that had it, or changes were missed.
    suspected: bool,
    /// When sales were last closed on servers that evict keys; `None` while no server does.
    closed_at: Option<Instant>,
    /// Sales found with lost keys, to be recorded; and when earlier ones were recorded.
    lost_keys: Vec<(SaleId, Epoch)>,
    lost_before: HashMap<SaleId, Instant>,
}

impl RefillSupervisor {
    pub fn new(stores: Stores, retire_after_ms: u64) -> Self {
        Self {
            queue: RefillQueue::new(stores.clone()),
            stores,
            retire_after_ms,
            patience: Duration::ZERO,
            servers: None,
            unsettled: HashMap::new(),
            version: None,
            selling: SellingInTurn::default(),
            in_turn: SalesInTurn::new(SALES_A_TURN),
            walked: HashSet::new(),
            compared: None,
            suspected: false,
            closed_at: None,
            lost_keys: Vec::new(),
            lost_before: HashMap::new(),
        }
    }

    /// Leaves an incomplete sale to other processes for this time, because this process has a lower priority.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Checks the server and the sales that may need it. Sets their status in Redis to the ledger's. Starts refills of incomplete sales,
    /// which continue in the background. `with_turn`: also checks the next sales in turn. A failing refill is no error here.
    pub async fn check(&mut self, with_turn: bool) -> Result<(), SaleError> {
        let mut servers = self.take_servers().await?;
        let identity = servers.identity().await?;
        self.close_where_evicted(&servers).await;
        let mut servers = self.if_they_can_sell(servers)?;
        let is_other = self.compared.as_ref().is_none_or(|(compared, _)| *compared != identity);
        self.check_due(&mut servers, with_turn, is_other).await?;
        let compared = self.compared.as_ref();
        let compares = is_other || self.suspected && compared.is_none_or(|(_, at)| at.elapsed() >= SUSPICIONS_APART);
        if compares {
            self.queue.needed_first();
        }
        self.queue.start(&servers);
        if compares {
            self.compare_all(&mut servers, identity).await?;
            self.queue.start(&servers);
        }
        self.servers = Some(servers);
        self.write_down_lost_keys().await;
        Ok(())
    }

    /// Checks sales that callers asked for while they were closed.
    pub async fn check_asked(&mut self, sales: &HashSet<SaleId>) -> Result<(), SaleError> {
        let asked: Vec<SaleId> = sales.iter().copied().filter(|sale| self.queue.may_start(*sale)).collect();
        if asked.is_empty() {
            return Ok(());
        }
        let servers = self.take_servers().await?;
        let mut servers = self.if_they_can_sell(servers)?;
        let ledger = &self.stores.ledger;
        let mut rows = ledger.in_time(ledger.sales.epochs_of(&asked)).await?;
        rows.retain(|row| !row.is_retired(self.retire_after_ms));
        self.suspected |= self.examine(&mut servers, &rows, true).await?;
        self.queue.start(&servers);
        self.servers = Some(servers);
        self.write_down_lost_keys().await;
        Ok(())
    }

    /// Waits until a refill ends, or more may begin. Starts the next one. Never returns if there is nothing to wait for.
    pub async fn refill_ended(&mut self) {
        if self.queue.ended().await {
            self.servers = None;
        }
        if let Some(servers) = &self.servers {
            self.queue.start(servers);
        }
    }

    pub async fn finish(self) {
        self.queue.finish().await;
    }

    /// While these connections live, they lead to the same runs of the same servers. After an error they are dropped.
    async fn take_servers(&mut self) -> Result<ServerRuns, SaleError> {
        match self.servers.take() {
            Some(servers) if servers.are_all().await => Ok(servers),
            _ => Ok(self.stores.gate.connect_to_runs().await?),
        }
    }

    /// The servers; an error if a server could lose its memory. Then the connections are kept.
    fn if_they_can_sell(&mut self, servers: ServerRuns) -> Result<ServerRuns, SaleError> {
        match servers.can_sell() {
            Ok(()) => Ok(servers),
            Err(error) => {
                self.servers = Some(servers);
                Err(error.into())
            }
        }
    }

    /// Checks changed and unsettled sales, and those in turn. On a replaced server, also all that sell.
    async fn check_due(&mut self, servers: &mut ServerRuns, with_turn: bool, is_other: bool) -> Result<(), SaleError> {
        let ledger = &self.stores.ledger;
        let mut sales: HashSet<SaleId> = self.unsettled.keys().copied().collect();
        let version = match self.version {
            // All sales are compared after this.
            None => ledger.in_time(ledger.sales.catalog_version()).await?,
            Some(version) => {
                let changed = ledger.in_time(ledger.sales.changed_sales(version)).await?;
                self.suspected |= !changed.complete;
                // A changed sale may be newer than the ids of this walk.
                self.walked.extend(&changed.sales);
                sales.extend(changed.sales);
                changed.version
            }
        };
        if is_other {
            sales.extend(ledger.in_time(ledger.sales.selling_sales()).await?);
        }
        if with_turn {
            sales.extend(self.selling.next(&ledger.sales).await?);
            let turn = self.in_turn.next(&ledger.sales).await?;
            self.walked.extend(&turn.sales);
            sales.extend(turn.sales);
            if turn.is_last {
                let walked = std::mem::take(&mut self.walked);
                self.queue.forget_unless(|sale| walked.contains(&sale) || self.unsettled.contains_key(&sale));
            }
        }
        let mut sales = Vec::from_iter(sales);
        let rows = ledger.in_time(ledger.sales.epochs_due(&sales, self.retire_after_ms)).await?;
        self.suspected |= self.examine(servers, &rows, false).await?;
        // Sales without a row were removed, or have left Redis.
        sales.retain(|sale| rows.binary_search_by_key(sale, |row| row.sale).is_err());
        for sale in sales {
            self.unsettled.remove(&sale);
            self.queue.leave_line(sale);
        }
        self.version = Some(version);
        if with_turn {
            self.selling.passed();
        }
        Ok(())
    }

    /// Checks all sales that Redis keeps, on a server that was replaced or may have lost its memory.
    async fn compare_all(&mut self, servers: &mut ServerRuns, identity: Identity) -> Result<(), SaleError> {
        let rows = self.stores.ledger.in_time(self.stores.ledger.sales.epochs(self.retire_after_ms)).await?;
        self.examine(servers, &rows, false).await?;
        tracing::debug!(sales = rows.len(), unsettled = self.unsettled.len(), "all sales compared with Redis");
        self.compared = Some((identity, Instant::now()));
        self.suspected = false;
        Ok(())
    }

    /// Closes sales on servers that evict keys (protocol, rule 10). They are refilled when the servers keep all keys again.
    async fn close_where_evicted(&mut self, servers: &ServerRuns) {
        let Some(policy) = servers.evicts() else {
            self.closed_at = None;
            return;
        };
        if self.closed_at.is_some_and(|at| at.elapsed() < CLOSINGS_APART) {
            return;
        }
        if self.closed_at.replace(Instant::now()).is_none() {
            tracing::error!(
                policy,
                "Redis evicts keys when its memory is full: its sales are closed until it does not"
            );
        }
        let closed = async {
            let rows = self.stores.ledger.in_time(self.stores.ledger.sales.epochs(self.retire_after_ms)).await?;
            let sales: Vec<SaleShards> = rows.iter().map(|row| row.shards).collect();
            Ok::<_, SaleError>(servers.delete_where_evicted(&sales).await?)
        };
        if let Err(error) = closed.await {
            tracing::warn!(%error, "not all sales are closed on a Redis server that evicts keys; tried again");
        }
    }

    /// Compares sales with Redis, and queues the incomplete ones. Returns whether a sale is missing that was complete at its last check.
    async fn examine(&mut self, servers: &mut ServerRuns, rows: &[EpochRow], asked: bool) -> Result<bool, SaleError> {
        let sales: Vec<SaleShards> = rows.iter().map(|row| row.shards).collect();
        let states = servers.sale_states(&sales).await?;
        let (mut is_one_missing, now) = (false, Instant::now());
        self.lost_before.retain(|_, at| now.duration_since(*at) < LOST_AGAIN);
        for (row, state) in rows.iter().zip(states) {
            let sale = row.sale;
            if state == SaleState::Unknown {
                self.unsettled.insert(sale, now);
                self.queue.is_out_of_reach(sale);
                // Its reachable servers continue to sell, so a pause must reach them.
                if row.live {
                    let set = self.stores.gate.set_sale_state(row.shards, row.epoch, row.status, row.version).await;
                    tracing::debug!(%sale, ?set, "a server of the sale is away");
                }
                continue;
            }
            if is_whole(row, servers, state) {
                self.queue.leave_line(sale);
                match state {
                    SaleState::Served(Standing { status, .. }) if status != Some(row.status) => {
                        self.set_status(row, status).await;
                        self.unsettled.insert(sale, now);
                    }
                    _ => _ = self.unsettled.remove(&sale),
                }
                continue;
            }
            let is_new = !self.unsettled.contains_key(&sale);
            if state == SaleState::Incomplete && !self.lost_before.contains_key(&sale) {
                self.lost_before.insert(sale, now);
                self.lost_keys.push((sale, row.epoch));
            }
            let since = *self.unsettled.entry(sale).or_insert(now);
            match &row.run_id {
                run if *run == servers.run_id(row.shards) => is_one_missing |= is_new,
                Some(_) => {
                    close_older(servers, row, state).await;
                    self.queue.taken_elsewhere(row.shards, servers);
                }
                None => {}
            }
            if now.duration_since(since) < self.patience {
                continue;
            }
            let need = match (asked, row.live) {
                (true, _) => Need::Asked,
                (false, true) => Need::Live,
                (false, false) => Need::Planned,
            };
            self.queue.want(row.shards, need);
        }
        Ok(is_one_missing)
    }

    /// Records sales with lost keys, for an alarm. If this fails, it is tried again.
    async fn write_down_lost_keys(&mut self) {
        self.lost_keys.truncate(LOST_NAMED);
        while let Some((sale, epoch)) = self.lost_keys.pop() {
            tracing::error!(%sale, epoch = epoch.0, "KEYS LOST: Redis has only some of the sale's keys, so that it is refilled");
            let (subject, details) = (format!("sale {sale}"), serde_json::json!({ "epoch": epoch.0 }));
            let line = NewLine { actor: "refill supervisor", action: "keys-lost", subject: &subject, details };
            let ledger = &self.stores.ledger;
            if let Err(error) = ledger.in_time(ledger.accounts.record_bounded("keys-lost", line)).await {
                tracing::warn!(%sale, %error, "lost keys not written down; tried again");
                self.lost_keys.push((sale, epoch));
                return;
            }
        }
    }

    /// Sets a sale's status in Redis to the ledger's. That is newer, or was not set because a process died.
    async fn set_status(&self, row: &EpochRow, present: Option<SaleStatus>) {
        let (sale, wanted) = (row.sale, row.status);
        match self.stores.gate.set_sale_state(row.shards, row.epoch, wanted, row.version).await {
            Ok(set) => {
                tracing::info!(%sale, ?present, %wanted, set, "the sale's status in Redis differs from the ledger's");
            }
            Err(error) => tracing::warn!(%sale, %error, "the sale's status is not set in Redis"),
        }
    }
}

/// Closes a sale that has a newer epoch on another server: buyers must not get "sold out" from the old one.
async fn close_older(servers: &ServerRuns, row: &EpochRow, state: SaleState) {
    if let SaleState::Served(Standing { epoch, .. }) = state
        && epoch < row.epoch
        && let Err(error) = servers.close(row.shards, epoch).await
    {
        tracing::warn!(sale = %row.sale, %error, "a sale of an older epoch is not closed");
    }
}
