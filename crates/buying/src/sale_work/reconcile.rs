//! Finishes holds without a durable purchase, and finds wrong stock (protocol, rule 12). It never writes a stock figure.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::sale::{SaleError, Step, Stores};
use crate::sale_work::sales_in_turn::{SALES_A_TURN, SalesInTurn, SellingInTurn};
use seckill_domain::admission::Hold;
use seckill_domain::ids::{Epoch, GroupId, OrderId, SaleId, Shard};
use seckill_domain::shards::SaleShards;
use seckill_postgres::notices::Topic;
use seckill_postgres::orders::purchase::{CommitOutcome, Purchase};
use seckill_postgres::sales::epochs::RestingSale;
use seckill_redis::holds::{TicketKind, UnconfirmedHold, UnconfirmedPage};
use seckill_redis::loans::BarCode;
use seckill_runtime::die_at;

const BATCH_MAX: usize = 500;

/// How many checks in a row must find the same difference. A single one may be a write in flight.
const CHECKS_TO_REPORT: u32 = 3;
/// A suspect is checked every time until it is at rest, but at most this often.
const CHECKS_TO_MISS: u32 = 100;

/// Finds sales with different stock in Redis and in the ledger.
pub struct DriftWatch {
    stores: Stores,
    retire_after_ms: u64,
    selling: SellingInTurn,
    in_turn: SalesInTurn,
    suspects: HashMap<SaleId, Suspect>,
}

/// A sale with the same difference in its last checks.
struct Suspect {
    epoch: Epoch,
    drift: i64,
    checks: u32,
    /// Later checks that found the sale not at rest.
    missed: u32,
}

impl DriftWatch {
    pub fn new(stores: Stores, retire_after_ms: u64) -> Self {
        let (selling, in_turn) = (SellingInTurn::default(), SalesInTurn::new(SALES_A_TURN));
        Self { stores, retire_after_ms, selling, in_turn, suspects: HashMap::new() }
    }

    /// Checks sales at rest: selling sales (in turn if there are many), suspects, and the next few other sales. A lasting difference is
    /// reported, and the sale is refilled under the next epoch.
    pub async fn check_sales(&mut self) -> Result<Step, SaleError> {
        let (ledger, gate) = (&self.stores.ledger, &self.stores.gate);
        let mut sales: HashSet<SaleId> = self.selling.next(&ledger.sales).await?.iter().copied().collect();
        sales.extend(self.in_turn.next(&ledger.sales).await?.sales);
        sales.extend(self.suspects.keys());
        let resting = ledger.sales.resting(&Vec::from_iter(sales), self.retire_after_ms).await?;
        let units = gate.units_of(&resting.iter().map(|resting| resting.shards).collect::<Vec<_>>()).await?;
        let (mut suspects, mut judged) = (HashMap::new(), HashSet::new());
        for (RestingSale { shards, epoch, left }, units) in resting.into_iter().zip(units) {
            let sale = shards.sale;
            // Equal figures show no difference, whenever they were read.
            if units == Some((epoch, left)) {
                judged.insert(sale);
                continue;
            }
            let view = match gate.sale_view(shards).await {
                Err(error) if gate.is_of_one_master(&error) => continue,
                view => view?,
            };
            let Some(view) = view else { continue };
            let drift = view.available.unwrap_or(left) - left;
            if !view.serving || view.epoch != epoch || view.unconfirmed > 0 {
                continue;
            }
            judged.insert(sale);
            if drift == 0 {
                continue;
            }
            let before = self.suspects.get(&sale).filter(|before| (before.epoch, before.drift) == (epoch, drift));
            let checks = 1 + before.map_or(0, |before| before.checks);
            if checks >= CHECKS_TO_REPORT {
                self.report(sale, epoch, drift).await?;
            } else {
                suspects.insert(sale, Suspect { epoch, drift, checks, missed: 0 });
            }
        }
        // The other suspects are checked again. They need the same difference three times from now on.
        self.suspects.retain(|sale, suspect| {
            (suspect.checks, suspect.missed) = (0, suspect.missed + 1);
            !judged.contains(sale) && suspect.missed <= CHECKS_TO_MISS
        });
        self.suspects.extend(suspects);
        self.selling.passed();
        Ok(Step::Idle)
    }

    async fn report(&self, sale: SaleId, epoch: Epoch, drift: i64) -> Result<(), SaleError> {
        tracing::error!(%sale, epoch = epoch.0, drift, "DRIFT: Redis does not sell what the ledger has left; refilling the sale");
        metrics::counter!("seckill_drift_total").increment(1);
        metrics::counter!("seckill_drift_units_total").increment(drift.unsigned_abs());
        let details = serde_json::json!({ "epoch": epoch.0, "drift": drift });
        self.stores.ledger.accounts.record("reconciler", "drift", &format!("sale {sale}"), details).await?;
        self.stores.ledger.sales.request_refill(sale, epoch).await?;
        self.stores.ledger.notify(Topic::Catalog).await?;
        Ok(())
    }
}

pub struct HoldWatch {
    stores: Stores,
    older_than_ms: u64,
    selling: SellingInTurn,
    in_turn: SalesInTurn,
    /// Sales with holds left by the last step.
    unfinished: Vec<SaleId>,
    /// How many loans at the head of a shard's list wait for their lenders. The next step reads the loans behind them.
    waiting: HashMap<(SaleId, Shard), usize>,
}

impl HoldWatch {
    /// Finishes holds that have been unconfirmed for `older_than_ms`.
    pub fn new(stores: Stores, older_than_ms: u64) -> Self {
        let (selling, in_turn) = (SellingInTurn::default(), SalesInTurn::new(SALES_A_TURN));
        Self { stores, older_than_ms, selling, in_turn, unfinished: Vec::new(), waiting: HashMap::new() }
    }

    /// Confirms old holds that are durable, and commits the others: forward only (rule 4). Settles loans of dead requests (rule 15). Checks
    /// the sales that sell or have just ended (in turn if there are many), because they have most holds, and the next few others.
    pub async fn finish_holds(&mut self) -> Result<Step, SaleError> {
        let ledger = &self.stores.ledger;
        let mut sales = self.selling.next(&ledger.sales).await?.to_vec();
        sales.extend(self.in_turn.next(&ledger.sales).await?.sales);
        sales.extend(&self.unfinished);
        sales.sort_unstable();
        sales.dedup();
        let shards = ledger.sales.shards_of(&sales).await?.into_iter();
        let shards = shards.flat_map(|of| of.shards.count.all().map(move |shard| (of.shards, shard)));
        let shards: Vec<(SaleShards, Shard)> = shards.collect();
        let unconfirmed = self.stores.gate.maybe_unconfirmed(&shards).await?;
        let now_ms = if unconfirmed.with_holds.is_empty() { 0 } else { ledger.now_ms().await? };
        self.selling.passed();
        self.unfinished.clear();
        if !unconfirmed.unread.is_empty() {
            let shards = unconfirmed.unread.len();
            tracing::warn!(shards, "holds of these shards cannot be read; tried again later");
            self.unfinished.extend(unconfirmed.unread.iter().map(|(of, _)| of.sale));
        }
        let before = std::mem::take(&mut self.waiting);
        let mut step = Step::Idle;
        for (of, shard) in unconfirmed.with_holds {
            let sale = of.sale;
            let passed_over = before.get(&(sale, shard)).copied().unwrap_or_default();
            let page = UnconfirmedPage { age_ms: self.older_than_ms, now_ms, passed_over, limit: BATCH_MAX };
            match self.stores.finish_holds_of(of, shard, page).await {
                Ok((0, _)) => continue,
                Ok((holds, waiting)) if holds >= BATCH_MAX => {
                    // Waiting loans are no reason to continue at once.
                    if waiting < holds {
                        step = Step::More;
                    }
                    self.waiting.insert((sale, shard), passed_over + waiting);
                }
                // The end of the list. Its holds may still be unfinished.
                Ok(_) => {}
                // A failing sale must not stop the others.
                Err(error) => tracing::warn!(%sale, %error, "holds not finished; tried again later"),
            }
            self.unfinished.push(sale);
        }
        Ok(step)
    }
}

impl Stores {
    /// Finishes a page of holds and loans. Returns their number, and how many of them wait for another shard.
    async fn finish_holds_of(
        &self,
        of: SaleShards,
        shard: Shard,
        page: UnconfirmedPage,
    ) -> Result<(usize, usize), SaleError> {
        let found = self.gate.unconfirmed_since(of, shard, page).await?;
        metrics::counter!("seckill_holds_looked_into_total").increment(found.len() as u64);
        if found.is_empty() {
            return Ok((0, 0));
        }
        // A hold may be durable in its group's row. If it is committed meanwhile, it gets a second record, which is harmless.
        let asked: Vec<(OrderId, &str)> = found.iter().map(|hold| (hold.order, hold.ticket.user.as_str())).collect();
        let known: HashSet<OrderId> = self.ledger.orders.orders_of_buyers(&asked).await?.into_keys().collect();
        let (loans, holds): (Vec<_>, Vec<_>) = found.iter().partition(|hold| hold.ticket.kind == TicketKind::OpenLoan);
        let (recorded, open): (Vec<_>, Vec<_>) = loans.into_iter().partition(|loan| known.contains(&loan.order));
        self.finish_holds_at(of, shard, holds, &known).await?;
        let recorded: Vec<OrderId> = recorded.iter().map(|loan| loan.order).collect();
        self.gate.close_loans(of, shard, &recorded).await?;
        let waiting = self.settle_loans(of, shard, &open).await?;
        Ok((found.len(), waiting))
    }

    /// Commits a shard's holds without a record, and confirms all. Borrowers' holds are also confirmed at their homes.
    async fn finish_holds_at(
        &self,
        of: SaleShards,
        shard: Shard,
        holds: Vec<&UnconfirmedHold>,
        known: &HashSet<OrderId>,
    ) -> Result<(), SaleError> {
        let sale = of.sale;
        let purchases: Vec<Purchase> = holds
            .iter()
            .filter(|hold| !known.contains(&hold.order))
            .map(|hold| Purchase {
                order: hold.order,
                sale,
                user: hold.ticket.user.clone(),
                units: i32::try_from(hold.ticket.units).unwrap_or(i32::MAX),
                address: None,
                hold: Hold { epoch: hold.epoch, shard },
                group: GroupId::of_one(hold.order),
                trace: None,
            })
            .collect();
        let verdicts = self.ledger.orders.commit_purchases(&purchases).await?;
        die_at!("reconcile.inserted");
        let durable = purchases.iter().zip(verdicts).filter(|(_, verdict)| *verdict == CommitOutcome::Durable);
        let finished: HashSet<OrderId> = durable.map(|(purchase, _)| purchase.order).collect();
        let (mut durable, mut by_home) = (Vec::new(), BTreeMap::<Shard, Vec<OrderId>>::new());
        for hold in holds.iter().filter(|hold| known.contains(&hold.order) || finished.contains(&hold.order)) {
            durable.push(hold.order);
            by_home.entry(of.home(&hold.ticket.user)).or_default().push(hold.order);
        }
        self.gate.confirm(of, shard, &durable).await?;
        by_home.remove(&shard);
        for (home, orders) in by_home {
            self.gate.close_loans(of, home, &orders).await?;
        }
        if !finished.is_empty() {
            let finished: Vec<String> = finished.iter().map(OrderId::to_string).collect();
            tracing::warn!(%sale, holds = finished.len(), "holds of dead processes were committed");
            metrics::counter!("seckill_holds_finished_total").increment(finished.len() as u64);
            let details = serde_json::json!({ "orders": finished });
            self.ledger.accounts.record("reconciler", "finish holds", &format!("sale {sale}"), details).await?;
            self.ledger.notify(Topic::Outbox).await?;
        }
        Ok(())
    }

    /// Settles open loans without a record. Bars each loan at its lender. If the lender holds the units, commits the loan; if not, takes it
    /// back. Loans with an unknown answer wait. Returns their number.
    async fn settle_loans(&self, of: SaleShards, home: Shard, loans: &[&UnconfirmedHold]) -> Result<usize, SaleError> {
        let mut waiting = 0;
        let mut by_lender: BTreeMap<Shard, Vec<(&UnconfirmedHold, i64)>> = BTreeMap::new();
        for loan in loans {
            if let (Some(lender), Some(number)) = (loan.ticket.lender, loan.ticket.number) {
                by_lender.entry(lender).or_default().push((loan, number));
            }
        }
        for (lender, loans) in by_lender {
            // One call read all of them, so they have one epoch.
            let Some(epoch) = loans.first().map(|(loan, _)| loan.epoch) else { continue };
            let asked: Vec<(OrderId, i64)> = loans.iter().map(|(loan, number)| (loan.order, *number)).collect();
            let barred = self.gate.bar_loans(of, lender, epoch, &asked).await.unwrap_or_else(|error| {
                tracing::warn!(sale = %of.sale, shard = lender.0, %error, "loans not barred; tried again later");
                None
            });
            let Some(barred) = barred else {
                waiting += loans.len();
                continue;
            };
            die_at!("reconcile.barred");
            let is = |wanted: BarCode| loans.iter().zip(&barred).filter(move |(_, barred)| **barred == wanted);
            let held: Vec<&UnconfirmedHold> = is(BarCode::Held).map(|((loan, _), _)| *loan).collect();
            if !held.is_empty() {
                self.finish_holds_at(of, lender, held, &HashSet::new()).await?;
            }
            let nothing: Vec<_> = is(BarCode::Barred).map(|((loan, number), _)| (loan.order, *number)).collect();
            let taken_back = self.gate.take_back_loans(of, home, epoch, &nothing).await?;
            if taken_back > 0 {
                metrics::counter!("seckill_loans_taken_back_total").increment(taken_back.unsigned_abs());
                tracing::warn!(sale = %of.sale, shard = home.0, loans = taken_back, "loans of dead requests were taken back");
            }
        }
        Ok(waiting)
    }
}
