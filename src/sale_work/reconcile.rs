//! Finishes holds that are not durable, and finds wrong stock (protocol, rule 12). It never writes a stock figure.

use std::collections::{HashMap, HashSet};

use crate::die_at;
use crate::domain::admission::Hold;
use crate::domain::ids::{Epoch, OrderId, SaleId, Shard};
use crate::ledger::notices::Topic;
use crate::ledger::orders::commit::{Committed, Purchase};
use crate::ledger::sales::epochs::RestingSale;
use crate::sale::{SaleError, Step, Stores};
use crate::sale_work::sales_in_turn::{SALES_A_TURN, SalesInTurn};

/// Holds that are finished in one step for each sale.
const BATCH_MAX: usize = 500;

/// How many checks in a row must find the same difference: a write under way is no drift.
const CHECKS_TO_REPORT: u32 = 3;

/// Finds sales whose stock in Redis differs from the ledger's.
pub struct DriftWatch {
    stores: Stores,
    retire_after_ms: u64,
    in_turn: SalesInTurn,
    suspects: HashMap<SaleId, Suspect>,
}

/// A sale whose last checks have found the same difference.
struct Suspect {
    epoch: Epoch,
    drift: i64,
    checks: u32,
}

impl DriftWatch {
    pub fn new(stores: Stores, retire_after_ms: u64) -> Self {
        Self { stores, retire_after_ms, in_turn: SalesInTurn::new(SALES_A_TURN), suspects: HashMap::new() }
    }

    /// Checks, if they are at rest, the sales that sell, those that are suspected, and the next few of the others. A difference that
    /// stays is reported, and the sale is refilled under the next epoch.
    pub async fn check_sales(&mut self) -> Result<Step, SaleError> {
        let (ledger, gate) = (&self.stores.ledger, &self.stores.gate);
        let mut sales: HashSet<SaleId> = ledger.selling_sales().await?.into_iter().collect();
        sales.extend(self.in_turn.next(ledger).await?.sales);
        sales.extend(self.suspects.keys());
        let resting = ledger.resting(&Vec::from_iter(sales), self.retire_after_ms).await?;
        let units = gate.units_of(&resting.iter().map(|resting| resting.sale).collect::<Vec<_>>()).await?;
        let mut suspects = HashMap::new();
        for (RestingSale { sale, epoch, left }, units) in resting.into_iter().zip(units) {
            // The same figure at any moment is no difference.
            if units == Some((epoch, left)) {
                continue;
            }
            let Some(view) = gate.sale_view(sale).await? else { continue };
            let drift = view.available.unwrap_or(left) - left;
            if !view.serving || view.epoch != epoch || view.unconfirmed > 0 || drift == 0 {
                continue;
            }
            let before = self.suspects.get(&sale).filter(|before| (before.epoch, before.drift) == (epoch, drift));
            let checks = 1 + before.map_or(0, |before| before.checks);
            if checks >= CHECKS_TO_REPORT {
                self.report(sale, epoch, drift).await?;
            } else {
                suspects.insert(sale, Suspect { epoch, drift, checks });
            }
        }
        self.suspects = suspects;
        Ok(Step::Idle)
    }

    async fn report(&self, sale: SaleId, epoch: Epoch, drift: i64) -> Result<(), SaleError> {
        tracing::error!(%sale, epoch = epoch.0, drift, "DRIFT: Redis does not sell what the ledger has left; refilling the sale");
        metrics::counter!("seckill_drift_total").increment(1);
        metrics::counter!("seckill_drift_units_total").increment(drift.unsigned_abs());
        let details = serde_json::json!({ "epoch": epoch.0, "drift": drift });
        self.stores.ledger.record("reconciler", "drift", &format!("sale {sale}"), details).await?;
        self.stores.ledger.request_refill(sale, epoch).await?;
        self.stores.ledger.notify(Topic::Catalog).await?;
        Ok(())
    }
}

/// Finds holds without a purchase row.
pub struct HoldWatch {
    stores: Stores,
    older_than_ms: u64,
    in_turn: SalesInTurn,
    /// Sales that the last step has left with holds to finish.
    unfinished: Vec<SaleId>,
}

impl HoldWatch {
    /// Holds that have been unconfirmed for `older_than_ms` are finished.
    pub fn new(stores: Stores, older_than_ms: u64) -> Self {
        Self { stores, older_than_ms, in_turn: SalesInTurn::new(SALES_A_TURN), unfinished: Vec::new() }
    }

    /// Confirms such holds that are durable, and commits the purchase rows of the others: forward only (rule 4). It looks at the sales that sell or have just ended, which is where
    /// holds are taken, and at the next few of the others.
    pub async fn finish_holds(&mut self) -> Result<Step, SaleError> {
        let ledger = &self.stores.ledger;
        let now_ms = ledger.now_ms().await?;
        let mut sales = ledger.selling_sales().await?;
        sales.extend(self.in_turn.next(ledger).await?.sales);
        sales.extend(&self.unfinished);
        sales.sort_unstable();
        sales.dedup();
        let unconfirmed = self.stores.gate.maybe_unconfirmed(&sales).await?;
        self.unfinished.clear();
        let mut step = Step::Idle;
        for sale in unconfirmed {
            match self.stores.finish_holds_of(sale, self.older_than_ms, now_ms).await {
                Ok(holds) if holds >= BATCH_MAX => {
                    step = Step::More;
                    self.unfinished.push(sale);
                }
                Ok(_) => {}
                // One sale's failure does not keep the others from being finished.
                Err(error) => {
                    tracing::warn!(%sale, %error, "holds not finished; tried again later");
                    self.unfinished.push(sale);
                }
            }
        }
        Ok(step)
    }
}

impl Stores {
    async fn finish_holds_of(&self, sale: SaleId, older_than_ms: u64, now_ms: i64) -> Result<usize, SaleError> {
        let age_ms = older_than_ms.cast_signed();
        let holds = self.gate.unconfirmed_since(sale, Shard::HOME, age_ms, now_ms, BATCH_MAX).await?;
        metrics::counter!("seckill_holds_looked_into_total").increment(holds.len() as u64);
        if holds.is_empty() {
            return Ok(0);
        }
        // A hold may be durable in the row of its group. What is committed meanwhile gets a second record, which does no harm.
        let asked: Vec<(OrderId, &str)> = holds.iter().map(|hold| (hold.order, hold.user.as_str())).collect();
        let known: HashSet<OrderId> = self.ledger.orders_of_buyers(&asked).await?.into_keys().collect();
        let purchases: Vec<Purchase> = holds
            .iter()
            .filter(|hold| !known.contains(&hold.order))
            .map(|hold| Purchase {
                order: hold.order,
                sale,
                user: hold.user.clone(),
                units: i32::try_from(hold.units).unwrap_or(i32::MAX),
                address: None,
                hold: Hold { epoch: hold.epoch, shard: Shard::HOME },
                group: None,
                trace: None,
            })
            .collect();
        let verdicts = self.ledger.commit_purchases(&purchases).await?;
        die_at!("reconcile.inserted");
        let durable =
            |(purchase, verdict): (&Purchase, Committed)| (verdict == Committed::Durable).then_some(purchase.order);
        let finished: Vec<OrderId> = purchases.iter().zip(verdicts).filter_map(durable).collect();
        let durable: Vec<OrderId> = known.into_iter().chain(finished.iter().copied()).collect();
        self.gate.confirm(sale, Shard::HOME, &durable).await?;
        if !finished.is_empty() {
            let finished: Vec<String> = finished.iter().map(OrderId::to_string).collect();
            tracing::warn!(%sale, holds = finished.len(), "holds without a purchase row were finished");
            metrics::counter!("seckill_holds_finished_total").increment(finished.len() as u64);
            let details = serde_json::json!({ "orders": finished });
            self.ledger.record("reconciler", "finish holds", &format!("sale {sale}"), details).await?;
            self.ledger.notify(Topic::Outbox).await?;
        }
        Ok(holds.len())
    }
}
