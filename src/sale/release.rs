//! Ended orders give their holds back to Redis (protocol, rule 9).

use std::collections::BTreeMap;

use super::{SaleError, Shop, Step};
use crate::die_at;
use crate::domain::ids::{SaleId, Shard};
use crate::domain::message::Kind;
use crate::gate::GateError;
use crate::ledger::outbox::OutboxRow;

impl Shop {
    /// Releases one batch of holds. Rows of sales that Redis does not serve at the moment wait for their refill.
    pub async fn release_holds(&self, batch_max: i64) -> Result<Step, SaleError> {
        let claim = self.ledger.claim(&[Kind::HoldRelease], batch_max).await?;
        if claim.rows.is_empty() {
            return Ok(Step::Idle);
        }
        let mut by_shard: BTreeMap<(SaleId, Shard), Vec<&OutboxRow>> = BTreeMap::new();
        for row in &claim.rows {
            by_shard.entry((row.sale, row.shard)).or_default().push(row);
        }
        let (mut released, mut refused) = (Vec::new(), Vec::new());
        for ((sale, shard), rows) in by_shard {
            let orders: Vec<_> = rows.iter().map(|row| (row.order, row.returns_units)).collect();
            match self.gate.release(sale, shard, &orders).await {
                Ok(epoch) => released.extend(rows.iter().map(|row| (row.id, epoch))),
                Err(GateError::NotServing) => refused.extend(rows.iter().map(|row| row.id)),
                Err(error) => return Err(error.into()),
            }
        }
        let done = claim.rows.len();
        die_at!("release.done");
        claim.settle_released(&released, &refused).await?;
        die_at!("release.settled");
        Ok(Step::after(done, usize::try_from(batch_max).unwrap_or(usize::MAX)))
    }
}
