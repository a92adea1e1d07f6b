//! Finds the sales that are not whole on this process's Redis server, or on the masters of its cluster, and has them refilled (protocol, rules 10 and 11).
//!
//! In each check it looks at the server itself, and at the sales that have changed or were not as they should be; once a second also at
//! those that are live, soon will be or just were, and at a few of the others: both in turn, if they are many. It compares all of them
//! when the server is another one or may have lost its memory. So a check costs the same however many sales are planned, and little more
//! where thousands sell; and a planned sale is looked at before it starts.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::is_whole;
use super::queue::{Need, RefillQueue};
use crate::domain::ids::{Epoch, SaleId};
use crate::domain::sale::SaleStatus;
use crate::domain::shards::SaleShards;
use crate::gate::server_runs::{SaleState, ServerRuns, Standing};
use crate::ledger::audit_log::NewLine;
use crate::ledger::sales::epochs::EpochRow;
use crate::sale::{SaleError, Stores};
use crate::sale_work::sales_in_turn::{SALES_A_TURN, SalesInTurn, SellingInTurn};

/// All sales are compared no more often than this because of sales that are missing. One that is deleted again and again is refilled
/// again and again, but does not have all others looked at.
const SUSPICIONS_APART: Duration = Duration::from_secs(10);

/// How often sales are closed on a server that evicts keys: a refill that began before may have opened one.
const CLOSINGS_APART: Duration = Duration::from_secs(5);

/// The sales with lost keys that one check writes down. An alarm names no more.
const LOST_NAMED: usize = 20;
/// A sale that loses keys again and again, or cannot be refilled, is written down again.
const LOST_AGAIN: Duration = Duration::from_secs(30);

/// What tells the servers of one moment from those of another.
type Identity = Vec<Option<[String; 2]>>;

/// Watches one Redis server, or the masters of one cluster.
pub struct RefillSupervisor {
    stores: Stores,
    retire_after_ms: u64,
    /// How long a sale that is not whole is left to other processes.
    patience: Duration,
    servers: Option<ServerRuns>,
    queue: RefillQueue,
    /// The sales that were not as they should be when they were looked at last: not whole, and since when, or of another status than the
    /// ledger's.
    unsettled: HashMap<SaleId, Instant>,
    /// The version of the catalogue up to which changes have been looked at.
    version: Option<i64>,
    selling: SellingInTurn,
    in_turn: SalesInTurn,
    /// The sales that have had their turn in this walk.
    walked: HashSet<SaleId>,
    /// The server on which all sales were compared with the ledger last, and when.
    compared: Option<(Identity, Instant)>,
    /// A sale was missing on the server on which it had been filled, or changes were missed.
    suspected: bool,
    /// When the sales on servers that evict keys were closed last; `None` while no server does.
    closed_at: Option<Instant>,
    /// The sales that were found without some of their keys, and are to be written down; and when others were.
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

    /// A sale that is not whole is left to other processes for so long: this one runs at a lower priority, and a refill that it has begun
    /// keeps theirs waiting.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Checks the server and the sales that may need it, sets their status in Redis to the ledger's, and starts to refill those that are
    /// not whole. Refills go on after this call, in the background. `with_turn`: the next sales in turn are checked, too.
    ///
    /// # Errors
    /// Redis or PostgreSQL cannot be asked. A refill that fails is no error of this call.
    pub async fn check(&mut self, with_turn: bool) -> Result<(), SaleError> {
        let mut servers = self.take_servers().await?;
        let identity = servers.identity().await?;
        self.close_where_evicted(&servers).await;
        if let Err(error) = servers.can_sell() {
            self.servers = Some(servers);
            return Err(error.into());
        }
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

    /// Checks sales that callers have asked for in vain.
    ///
    /// # Errors
    /// As `check`.
    pub async fn check_asked(&mut self, sales: &HashSet<SaleId>) -> Result<(), SaleError> {
        let asked: Vec<SaleId> = sales.iter().copied().filter(|sale| self.queue.may_start(*sale)).collect();
        if asked.is_empty() {
            return Ok(());
        }
        let mut servers = self.take_servers().await?;
        if let Err(error) = servers.can_sell() {
            self.servers = Some(servers);
            return Err(error.into());
        }
        let ledger = &self.stores.ledger;
        let rows = ledger.in_time(ledger.epochs_of(&asked, self.retire_after_ms)).await?;
        self.suspected |= self.examine(&mut servers, &rows, true).await?;
        self.queue.start(&servers);
        self.servers = Some(servers);
        self.write_down_lost_keys().await;
        Ok(())
    }

    /// Waits until a refill has ended, or more may begin, and starts the next one. Never returns while there is nothing to wait for.
    pub async fn refill_ended(&mut self) {
        if self.queue.ended().await {
            self.servers = None;
        }
        if let Some(servers) = &self.servers {
            self.queue.start(servers);
        }
    }

    /// Finishes the refills under way, for a few seconds at most.
    pub async fn finish(self) {
        self.queue.finish().await;
    }

    /// While these connections live, they lead to the same runs of the same servers. After an error they are not put back.
    async fn take_servers(&mut self) -> Result<ServerRuns, SaleError> {
        match self.servers.take() {
            Some(servers) if servers.are_all().await => Ok(servers),
            _ => Ok(self.stores.gate.connect_to_runs().await?),
        }
    }

    /// Checks the sales that have changed or are unsettled, and those whose turn it is: on a server that is another one, all that sell.
    async fn check_due(&mut self, servers: &mut ServerRuns, with_turn: bool, is_other: bool) -> Result<(), SaleError> {
        let ledger = &self.stores.ledger;
        let mut sales: HashSet<SaleId> = self.unsettled.keys().copied().collect();
        let version = match self.version {
            // All sales are compared after this.
            None => ledger.in_time(ledger.catalog_version()).await?,
            Some(version) => {
                let changed = ledger.in_time(ledger.changed_sales(version)).await?;
                self.suspected |= !changed.complete;
                // One of them may be newer than the ids of this walk.
                self.walked.extend(&changed.sales);
                sales.extend(changed.sales);
                changed.version
            }
        };
        if is_other {
            sales.extend(ledger.in_time(ledger.selling_sales()).await?);
        }
        if with_turn {
            sales.extend(self.selling.next(ledger).await?);
            let turn = self.in_turn.next(ledger).await?;
            self.walked.extend(&turn.sales);
            sales.extend(turn.sales);
            if turn.is_last {
                let walked = std::mem::take(&mut self.walked);
                self.queue.forget_unless(|sale| walked.contains(&sale) || self.unsettled.contains_key(&sale));
            }
        }
        let mut sales = Vec::from_iter(sales);
        let rows = ledger.in_time(ledger.epochs_due(&sales, self.retire_after_ms)).await?;
        self.suspected |= self.examine(servers, &rows, false).await?;
        // Those without a row were removed, or have left Redis.
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

    /// Checks all sales that Redis keeps, on a server that is another one, or may have lost its memory.
    async fn compare_all(&mut self, servers: &mut ServerRuns, identity: Identity) -> Result<(), SaleError> {
        let ledger = &self.stores.ledger;
        let rows = ledger.in_time(ledger.epochs(self.retire_after_ms)).await?;
        self.examine(servers, &rows, false).await?;
        tracing::debug!(sales = rows.len(), unsettled = self.unsettled.len(), "all sales compared with Redis");
        self.compared = Some((identity, Instant::now()));
        self.suspected = false;
        Ok(())
    }

    /// Stops selling on servers that evict keys, as a process that starts does not sell on them (protocol, rule 10). Their sales are
    /// refilled when they keep all keys again.
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
        let ledger = &self.stores.ledger;
        let closed = async {
            let rows = ledger.in_time(ledger.epochs(self.retire_after_ms)).await?;
            let sales: Vec<SaleShards> = rows.iter().map(|row| row.shards).collect();
            Ok::<_, SaleError>(servers.delete_where_evicted(&sales).await?)
        };
        if let Err(error) = closed.await {
            tracing::warn!(%error, "not all sales are closed on a Redis server that evicts keys; tried again");
        }
    }

    /// Compares sales with Redis, and puts those that are not whole in the line. Returns whether one is missing that was whole on this
    /// server when it was looked at last: then others may be missing, too.
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
                // What the servers that are here have of it goes on selling: a pause must reach them.
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
            self.queue.want(
                row.shards,
                if asked {
                    Need::Asked
                } else if row.live {
                    Need::Live
                } else {
                    Need::Planned
                },
            );
        }
        Ok(is_one_missing)
    }

    /// Writes down which sales have lost keys: an alarm follows from it. What cannot be written is tried again.
    async fn write_down_lost_keys(&mut self) {
        self.lost_keys.truncate(LOST_NAMED);
        while let Some((sale, epoch)) = self.lost_keys.pop() {
            tracing::error!(%sale, epoch = epoch.0, "KEYS LOST: Redis has only some of the sale's keys, so that it is refilled");
            let (subject, details) = (format!("sale {sale}"), serde_json::json!({ "epoch": epoch.0 }));
            let line = NewLine { actor: "refill supervisor", action: "keys-lost", subject: &subject, details };
            let ledger = &self.stores.ledger;
            if let Err(error) = ledger.in_time(ledger.record_bounded("keys-lost", line)).await {
                tracing::warn!(%sale, %error, "lost keys not written down; tried again");
                self.lost_keys.push((sale, epoch));
                return;
            }
        }
    }

    /// Sets a sale's status in Redis to the ledger's, which is newer, or was not set because a process died.
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

/// Closes a sale that has a newer epoch on another server. The ledger refuses purchases of this one; nobody is to hear "sold out" of it,
/// either.
async fn close_older(servers: &ServerRuns, row: &EpochRow, state: SaleState) {
    if let SaleState::Served(Standing { epoch, .. }) = state
        && epoch < row.epoch
        && let Err(error) = servers.close(row.shards, epoch).await
    {
        tracing::warn!(sale = %row.sale, %error, "a sale of an older epoch is not closed");
    }
}
