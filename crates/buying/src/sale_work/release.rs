//! Puts units on sale in Redis: from the holds of ended orders (protocol, rule 9), and from waves (rule 14).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use futures_util::future::join_all;

use crate::sale::{SaleError, Step, Stores};
use seckill_domain::ids::{Epoch, SaleId, Shard, WaveId};
use seckill_domain::order::HoldRelease;
use seckill_domain::shards::SaleShards;
use seckill_postgres::outbox::{OutboxRow, RELEASES, ReleaseOutcome, RetryPolicy, UnitRelease};
use seckill_postgres::sales::epochs::ShardedSale;
use seckill_redis::GateError;
use seckill_runtime::die_at;

/// Holds per call to Redis. A longer call would delay purchases.
const HOLDS_A_CALL: usize = 500;

impl Stores {
    /// Carries out one batch of releases. Rows of sales that Redis does not serve wait for the refill, unless Redis has dropped the sale. A
    /// row with an error from Redis fails alone. After an error, retry the whole batch.
    pub async fn release_units(
        &self,
        batch_max: i64,
        retry: RetryPolicy,
        retire_after_ms: u64,
    ) -> Result<Step, SaleError> {
        if !self.ledger.outbox.has_due(&RELEASES).await? {
            return Ok(Step::Idle);
        }
        let mut claim = self.ledger.outbox.claim_releases(batch_max).await?;
        if claim.rows.is_empty() {
            return Ok(Step::Idle);
        }
        let sales: BTreeSet<SaleId> = claim.rows.iter().map(|row| row.sale).collect();
        let sales = claim.shards_of(&Vec::from_iter(sales)).await?;
        let sales: BTreeMap<SaleId, ShardedSale> = sales.into_iter().map(|of| (of.shards.sale, of)).collect();
        let mut by_shard: BTreeMap<(ShardedSale, Shard), Vec<&OutboxRow<UnitRelease>>> = BTreeMap::new();
        let mut outcome = ReleaseOutcome::default();
        for row in &claim.rows {
            match sales.get(&row.sale) {
                Some(of) => by_shard.entry((*of, row.shard)).or_default().push(row),
                // The sale was removed.
                None => outcome.refused.push(row.id),
            }
        }
        let mut to_do = VecDeque::from_iter(by_shard);
        while let Some(((of, shard), rows)) = to_do.pop_front() {
            match self.release(of, shard, &rows).await {
                Ok(epoch) => outcome.released.extend(rows.iter().map(|row| (row.id, epoch))),
                // Redis does not serve this sale, but may serve others. Only this sale's rows wait.
                Err(error) if matches!(error, GateError::NotServing) || self.gate.is_of_one_master(&error) => {
                    outcome.refused.extend(rows.iter().map(|row| row.id));
                }
                Err(error) if error.is_outage() => return Err(error.into()),
                Err(_) if rows.len() > 1 => to_do.extend(rows.into_iter().map(|row| ((of, shard), vec![row]))),
                Err(error) => {
                    tracing::error!(sale = %of.shards.sale, row = rows.first().map(|row| row.id), %error, "units not released");
                    outcome.failed.extend(rows.iter().map(|row| (row.id, error.to_string())));
                }
            }
        }
        die_at!("release.done");
        let progressed = claim.settle_released(&outcome, retry, retire_after_ms).await?;
        die_at!("release.settled");
        // Large rows fill a claim although few: more may be due behind them.
        Ok(if progressed { Step::More } else { Step::Idle })
    }

    /// Releases units of one shard, and ends their borrowers' loans. Returns the lowest epoch of Redis's answers.
    #[tracing::instrument(level = "debug", skip_all, fields(sale = %of.shards.sale, rows = rows.len()))]
    async fn release(
        &self,
        of: ShardedSale,
        shard: Shard,
        rows: &[&OutboxRow<UnitRelease>],
    ) -> Result<Epoch, GateError> {
        let (mut holds, mut waves, mut epochs) = (Vec::<HoldRelease>::new(), Vec::new(), Vec::new());
        for row in rows {
            match &row.task {
                UnitRelease::Holds(together) => holds.extend(together),
                UnitRelease::Wave { wave, units } => waves.push((*wave, *units)),
            }
        }
        for holds in holds.chunks(HOLDS_A_CALL) {
            for hold in holds {
                tracing::debug!(order = %hold.order, "to be released");
            }
            let released = self.gate.release(of.shards, shard, holds).await?;
            epochs.push(released.epoch);
            self.release_loans(of.shards, shard, holds, &released.users, &mut epochs).await?;
        }
        for (wave, units) in waves {
            epochs.push(self.release_wave(of, wave, units).await?);
        }
        epochs.into_iter().min().ok_or(GateError::NotServing)
    }

    /// Ends loans with another home shard than the shard that released their units.
    async fn release_loans(
        &self,
        of: SaleShards,
        lender: Shard,
        holds: &[HoldRelease],
        users: &[String],
        epochs: &mut Vec<Epoch>,
    ) -> Result<(), GateError> {
        let mut by_home: BTreeMap<Shard, Vec<HoldRelease>> = BTreeMap::new();
        for (hold, user) in holds.iter().zip(users).filter(|(_, user)| !user.is_empty()) {
            by_home.entry(of.home(user)).or_default().push(*hold);
        }
        by_home.remove(&lender);
        for (home, loans) in by_home {
            die_at!("release.at_lender");
            epochs.push(self.gate.release(of, home, &loans).await?.epoch);
        }
        Ok(())
    }

    /// Puts a wave on sale, each part at its shard. Returns the lowest epoch of all answers.
    async fn release_wave(&self, of: ShardedSale, wave: WaveId, units: i64) -> Result<Epoch, GateError> {
        let ShardedSale { shards, per_user } = of;
        let parts = shards.count.all().map(|shard| (shard, shards.count.part(units.unsigned_abs(), per_user, shard)));
        let parts = parts.filter(|(_, part)| *part > 0);
        let released = parts.map(|(shard, part)| self.gate.release_wave(shards, shard, wave, part));
        // Waits for all, even if one does not answer.
        let epochs = join_all(released).await.into_iter().collect::<Result<Vec<Epoch>, _>>()?;
        epochs.into_iter().min().ok_or(GateError::NotServing)
    }
}
