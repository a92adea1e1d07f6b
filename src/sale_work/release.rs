//! Puts units on sale in Redis: those of ended orders' holds (protocol, rule 9), and of waves (rule 14).

use std::collections::BTreeMap;

use crate::die_at;
use crate::domain::ids::{Epoch, SaleId, Shard};
use crate::gate::GateError;
use crate::ledger::notices::Topic;
use crate::ledger::outbox::{OutboxRow, ReleaseOutcome, RetryTerms, UnitRelease};
use crate::sale::{SaleError, Step, Stores};

/// Holds that one call to Redis ends: a longer one would hold up purchases.
const HOLDS_A_CALL: usize = 500;

impl Stores {
    /// Carries out one batch of releases. Rows of sales that Redis does not serve at the moment wait for the refill. A row that
    /// Redis answers with an error fails alone.
    ///
    /// # Errors
    /// Redis or PostgreSQL cannot be reached: the whole batch is to be tried again.
    pub async fn release_units(&self, batch_max: i64, retry: RetryTerms) -> Result<Step, SaleError> {
        let claim = self.ledger.claim_releases(batch_max).await?;
        if claim.rows.is_empty() {
            return Ok(Step::Idle);
        }
        let mut by_shard: BTreeMap<(SaleId, Shard), Vec<&OutboxRow<UnitRelease>>> = BTreeMap::new();
        for row in &claim.rows {
            by_shard.entry((row.sale, row.shard)).or_default().push(row);
        }
        let mut outcome = ReleaseOutcome::default();
        for ((sale, shard), rows) in by_shard {
            match self.release(sale, shard, &rows).await {
                Ok(epoch) => outcome.released.extend(rows.iter().map(|row| (row.id, epoch))),
                Err(GateError::NotServing) => outcome.refused.extend(rows.iter().map(|row| row.id)),
                Err(error) if error.is_outage() => return Err(error.into()),
                Err(_) => self.release_one_by_one(sale, shard, &rows, &mut outcome).await?,
            }
        }
        let done = claim.rows.len();
        die_at!("release.done");
        claim.settle_released(&outcome, retry).await?;
        die_at!("release.settled");
        Ok(Step::after(done, usize::try_from(batch_max).unwrap_or(usize::MAX)))
    }

    async fn release_one_by_one(
        &self,
        sale: SaleId,
        shard: Shard,
        rows: &[&OutboxRow<UnitRelease>],
        outcome: &mut ReleaseOutcome,
    ) -> Result<(), SaleError> {
        for row in rows {
            match self.release(sale, shard, &[row]).await {
                Ok(epoch) => outcome.released.push((row.id, epoch)),
                Err(GateError::NotServing) => outcome.refused.push(row.id),
                Err(error) if error.is_outage() => return Err(error.into()),
                Err(error) => {
                    tracing::error!(%sale, row = row.id, %error, "units not released");
                    outcome.failed.push((row.id, error.to_string()));
                }
            }
        }
        Ok(())
    }

    /// Releases units of one shard. Returns the lowest epoch that Redis answered under: if that is still current, so are
    /// the epochs of the other answers.
    #[tracing::instrument(level = "debug", skip_all, fields(%sale, rows = rows.len()))]
    async fn release(&self, sale: SaleId, shard: Shard, rows: &[&OutboxRow<UnitRelease>]) -> Result<Epoch, GateError> {
        let (mut holds, mut epochs) = (Vec::new(), Vec::new());
        for row in rows {
            match &row.task {
                UnitRelease::Hold(hold) => holds.push(*hold),
                UnitRelease::Holds(together) => holds.extend(together),
                UnitRelease::Wave { wave, units } => epochs.push(self.gate.release_wave(sale, *wave, *units).await?),
            }
        }
        for holds in holds.chunks(HOLDS_A_CALL) {
            for hold in holds {
                tracing::debug!(order = %hold.order, "to be released");
            }
            epochs.push(self.gate.release(sale, shard, holds).await?);
        }
        epochs.into_iter().min().ok_or(GateError::NotServing)
    }

    /// Releases the waves that are due.
    pub async fn release_waves(&self, batch_max: i64) -> Result<Step, SaleError> {
        let released = self.ledger.release_waves(batch_max).await?;
        if released > 0 {
            tracing::info!(waves = released, "waves released");
            self.ledger.notify(Topic::Outbox).await?;
        }
        Ok(Step::after(released, usize::try_from(batch_max).unwrap_or(usize::MAX)))
    }
}
