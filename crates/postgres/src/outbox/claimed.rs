//! Rows that a worker has claimed. They are locked or leased until they are settled.

use std::collections::HashSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use seckill_webhook::backoff_ms;
use sqlx::{Postgres, Transaction};

use super::task::{BrokerMessage, UnitRelease};
use super::{OutboxRow, RetryPolicy, one_line};
use crate::sales::epochs::{ShardedSale, shards_of};
use crate::{Database, LedgerError, Sales};
use seckill_domain::ids::{Epoch, SaleId};

/// Pauses of rows: if the queue has no room; if the queue does not answer; if the channel is not configured, which only a restart changes.
const NO_ROOM_MS: i64 = 500;
const UNANSWERED_MS: i64 = 10_000;
const NO_CHANNEL_MS: i64 = 60_000;
/// How long a relay may wait for a slow broker. If the relay dies, its rows are due again after this time.
const LEASE_MS: i64 = 30_000;

/// Claimed outbox rows. They are locked until they are settled or the connection is lost, or leased until `leased_until`.
pub struct ClaimedBatch<T> {
    database: Arc<Database>,
    /// `None` once they are leased.
    tx: Option<Transaction<'static, Postgres>>,
    /// `next_attempt_at` of the leased rows. A row with another value is no longer ours.
    leased_until: Option<DateTime<Utc>>,
    pub rows: Vec<OutboxRow<T>>,
}

/// The broker's results for a claim's messages, by row id.
#[derive(Debug, Default)]
pub struct PublishOutcome {
    pub sent: Vec<i64>,
    pub failed: Vec<(i64, String)>,
    /// The broker had no room. The message itself is good.
    pub postponed: Vec<i64>,
    /// Their queue did not answer. They wait until it is tried again.
    pub unanswered: Vec<i64>,
    /// Payments of a channel that is not configured. They wait longer, and no attempt is counted.
    pub without_channel: Vec<i64>,
}

/// Redis's results for a claim's releases, by row id.
#[derive(Debug, Default)]
pub struct ReleaseOutcome {
    /// With the epoch of Redis's answer.
    pub released: Vec<(i64, Epoch)>,
    /// Redis does not serve the sale now. The row itself is good.
    pub refused: Vec<i64>,
    pub failed: Vec<(i64, String)>,
}

impl<T> ClaimedBatch<T> {
    pub(super) fn new(database: &Arc<Database>, tx: Transaction<'static, Postgres>, rows: Vec<OutboxRow<T>>) -> Self {
        Self { database: Arc::clone(database), tx: Some(tx), leased_until: None, rows }
    }

    /// A transaction with the row locks, and the ids of the rows that are still ours: a consumer may have changed a leased row.
    async fn claimed(&mut self) -> Result<(Transaction<'static, Postgres>, HashSet<i64>), LedgerError> {
        if let Some(tx) = self.tx.take() {
            return Ok((tx, self.ids().into_iter().collect()));
        }
        let mut tx = self.database.begin().await?;
        let still = sqlx::query_scalar!(
            "SELECT id FROM outbox WHERE id = ANY($1) AND status || '' = 'pending' AND next_attempt_at = $2
             ORDER BY id FOR UPDATE SKIP LOCKED",
            &self.ids(),
            self.leased_until
        )
        .fetch_all(&mut *tx)
        .await?;
        Ok((tx, still.into_iter().collect()))
    }

    fn ids(&self) -> Vec<i64> {
        self.rows.iter().map(|row| row.id).collect()
    }

    fn attempts_of(&self, id: i64) -> u32 {
        self.rows.iter().find(|row| row.id == id).map_or(0, |row| row.attempts)
    }
}

impl ClaimedBatch<BrokerMessage> {
    /// Replaces the row locks with a lease while the broker is slow, so that consumers, which update the same rows, do not wait.
    pub async fn lease(&mut self) -> Result<(), LedgerError> {
        let Some(mut tx) = self.tx.take() else { return Ok(()) };
        postpone(&mut tx, &self.ids(), LEASE_MS).await?;
        let until = sqlx::query_scalar!(r#"SELECT now() + $1::bigint * interval '1 ms' AS "until!""#, LEASE_MS);
        self.leased_until = Some(until.fetch_one(&mut *tx).await?);
        Ok(tx.commit().await?)
    }

    /// Ends the lease: the rows are due now. The outcome of their messages is unknown.
    pub async fn give_back(mut self) -> Result<(), LedgerError> {
        if self.tx.is_some() {
            return Ok(());
        }
        let (mut tx, still) = self.claimed().await?;
        postpone(&mut tx, &Vec::from_iter(still), 0).await?;
        Ok(tx.commit().await?)
    }

    /// Marks confirmed messages as sent, counts failures, postpones messages without room, and unlocks all rows.
    pub async fn settle_sent(mut self, outcome: &PublishOutcome, terms: RetryPolicy) -> Result<(), LedgerError> {
        let PublishOutcome { sent, failed, postponed, unanswered, without_channel } = outcome;
        let (mut tx, claimed) = self.claimed().await?;
        let claimed_of = |ids: &[i64]| ids.iter().copied().filter(|id| claimed.contains(id)).collect::<Vec<i64>>();
        sqlx::query!(
            "UPDATE outbox SET status = 'sent', sent_at = now() WHERE id = ANY($1) AND status || '' = 'pending'",
            &claimed_of(sent)
        )
        .execute(&mut *tx)
        .await?;
        for (id, error) in failed.iter().filter(|(id, _)| claimed.contains(id)) {
            count_failure(&mut tx, *id, self.attempts_of(*id), error, terms).await?;
        }
        postpone(&mut tx, &claimed_of(postponed), NO_ROOM_MS).await?;
        postpone(&mut tx, &claimed_of(unanswered), UNANSWERED_MS).await?;
        postpone(&mut tx, &claimed_of(without_channel), NO_CHANNEL_MS).await?;
        Ok(tx.commit().await?)
    }
}

impl ClaimedBatch<UnitRelease> {
    /// The shards of the existing sales among these, read on the claim's connection.
    pub async fn shards_of(&mut self, sales: &[SaleId]) -> Result<Vec<ShardedSale>, LedgerError> {
        match &mut self.tx {
            Some(tx) => shards_of(&mut **tx, sales).await,
            None => Sales(Arc::clone(&self.database)).shards_of(sales).await,
        }
    }

    /// Marks a release as processed if Redis answered under the sale's current epoch (rule 9). Other answered releases stay pending and are
    /// repeated. A refused release is processed if its sale was removed, or ended `retire_after_ms` ago, because Redis has dropped such a
    /// sale. Other refused releases are postponed. Failures are counted. Returns whether any row is done or waits: not, if all are due as before.
    pub async fn settle_released(
        mut self,
        outcome: &ReleaseOutcome,
        terms: RetryPolicy,
        retire_after_ms: u64,
    ) -> Result<bool, LedgerError> {
        let ReleaseOutcome { released, refused, failed } = outcome;
        let (mut tx, _) = self.claimed().await?;
        let (ids, epochs): (Vec<i64>, Vec<i64>) = released.iter().map(|(id, epoch)| (*id, epoch.0)).unzip();
        let done = sqlx::query!(
            "UPDATE outbox o SET status = 'processed', processed_at = now()
             FROM unnest($1::bigint[], $2::bigint[]) AS done (id, epoch) JOIN sale_epochs e USING (epoch)
             WHERE o.id = done.id AND o.sale_id = e.sale_id",
            &ids,
            &epochs
        )
        .execute(&mut *tx)
        .await?;
        for (id, error) in failed {
            count_failure(&mut tx, *id, self.attempts_of(*id), error, terms).await?;
        }
        if !refused.is_empty() {
            sqlx::query!(
                "UPDATE outbox o SET status = 'processed', processed_at = now()
                 WHERE id = ANY($1) AND NOT EXISTS (
                     SELECT FROM sales WHERE id = o.sale_id AND ends_at >= now() - $2::bigint * interval '1 ms')",
                refused,
                retire_after_ms.cast_signed()
            )
            .execute(&mut *tx)
            .await?;
        }
        postpone(&mut tx, refused, NO_ROOM_MS).await?;
        tx.commit().await?;
        Ok(done.rows_affected() > 0 || !failed.is_empty() || !refused.is_empty())
    }
}

/// Postpones untried pending rows by `wait_ms`. Counts no attempt.
async fn postpone(tx: &mut Transaction<'static, Postgres>, ids: &[i64], wait_ms: i64) -> Result<(), LedgerError> {
    if !ids.is_empty() {
        sqlx::query!(
            "UPDATE outbox SET next_attempt_at = now() + $2::bigint * interval '1 ms' WHERE id = ANY($1) AND status || '' = 'pending'",
            ids,
            wait_ms
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

/// Counts a failure of a locked row. The row is tried again after a backoff, or parked after `max_attempts`. Returns whether it was parked.
pub(super) async fn count_failure(
    tx: &mut Transaction<'static, Postgres>,
    id: i64,
    attempts: u32,
    error: &str,
    terms: RetryPolicy,
) -> Result<bool, LedgerError> {
    let attempts = attempts + 1;
    let parked = attempts >= terms.max_attempts;
    let wait = backoff_ms(attempts, terms.backoff_base_ms, terms.backoff_max_ms, rand::random());
    sqlx::query!(
        "UPDATE outbox SET attempts = $2, status = $3, last_error = $4, next_attempt_at = now() + $5::bigint * interval '1 ms'
         WHERE id = $1 AND status || '' <> 'processed'",
        id,
        attempts.cast_signed(),
        if parked { "parked" } else { "pending" },
        one_line(error),
        wait.cast_signed()
    )
    .execute(&mut **tx)
    .await?;
    Ok(parked)
}
