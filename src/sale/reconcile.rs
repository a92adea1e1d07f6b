//! Finishing what was left half done (protocol, rule 12). It never writes a stock figure.

use super::{SaleError, Shop, Step};
use crate::die_at;
use crate::domain::admission::Hold;
use crate::domain::ids::{OrderId, SaleId, Shard};
use crate::ledger::commit::{Committed, Purchase};
use crate::ledger::notices::Topic;

/// Holds that are finished in one step for each sale.
const BATCH_MAX: usize = 500;

impl Shop {
    /// Commits the purchase rows of holds that nobody has confirmed for a while: forward only (rule 4).
    pub async fn finish_holds(&self, older_than_ms: u64, retire_after_ms: u64) -> Result<Step, SaleError> {
        let mut step = Step::Idle;
        for row in self.ledger.epochs(retire_after_ms).await? {
            if self.finish_holds_of(row.sale, older_than_ms).await? >= BATCH_MAX {
                step = Step::More;
            }
        }
        Ok(step)
    }

    async fn finish_holds_of(&self, sale: SaleId, older_than_ms: u64) -> Result<usize, SaleError> {
        let holds = self.gate.unconfirmed_since(sale, Shard::HOME, older_than_ms.cast_signed(), BATCH_MAX).await?;
        if holds.is_empty() {
            return Ok(0);
        }
        let purchases: Vec<Purchase> = holds
            .iter()
            .map(|hold| Purchase {
                order: hold.order,
                sale,
                user: hold.user.clone(),
                units: i32::try_from(hold.units).unwrap_or(i32::MAX),
                hold: Hold { epoch: hold.epoch, shard: Shard::HOME },
            })
            .collect();
        let known = self.ledger.known_orders(&holds.iter().map(|hold| hold.order).collect::<Vec<_>>()).await?;
        let verdicts = self.ledger.insert_purchases(&purchases).await?;
        die_at!("reconcile.inserted");
        let durable = |(hold, verdict): (_, Committed)| (verdict == Committed::Durable).then_some(hold);
        let durable: Vec<OrderId> = holds.iter().map(|hold| hold.order).zip(verdicts).filter_map(durable).collect();
        self.gate.confirm(sale, Shard::HOME, &durable).await?;
        let finished: Vec<String> =
            durable.iter().filter(|order| !known.contains(order)).map(OrderId::to_string).collect();
        if !finished.is_empty() {
            tracing::warn!(%sale, holds = finished.len(), "holds without a purchase row were finished");
            metrics::counter!("seckill_holds_finished_total").increment(finished.len() as u64);
            let details = serde_json::json!({ "orders": finished });
            self.ledger.record("reconciler", "finish holds", &format!("sale {sale}"), details).await?;
            self.ledger.notify(Topic::Outbox).await?;
        }
        Ok(holds.len())
    }
}
