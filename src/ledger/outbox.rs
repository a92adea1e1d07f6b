//! The outbox: work that a transaction has left to be done after its commit. Workers claim rows, carry them out, and
//! settle them.

mod parked;
mod resend;
mod task;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::sales::epochs::{Sharded, shards_of};
use super::{Ledger, LedgerError};
use crate::domain::ids::{Epoch, OrderId, SaleId, Shard};
use crate::domain::message::OutboxKind;
use crate::domain::trace_context::TraceContext;
pub use parked::{ParkedFilter, ParkedRow, UNPARK_STEP};
use seckill_webhook::backoff_ms;
pub use task::{BrokerMessage, UnitRelease};
use task::{ClaimedRow, Task};

/// How long a row waits whose queue has no room, whose queue does not answer, or whose channel is not configured: settings change with a restart.
const NO_ROOM_MS: i64 = 500;
const UNANSWERED_MS: i64 = 10_000;
const NO_CHANNEL_MS: i64 = 60_000;
/// How long rows are kept for a relay that waits for a slow broker. If it dies meanwhile, they are sent after this time.
const LEASE_MS: i64 = 30_000;
/// Releases of groups in one claim: each is of hundreds of holds.
const GROUP_RELEASES: i64 = 4;

/// How often, and after how long, a failed row is tried again.
#[derive(Debug, Clone, Copy)]
pub struct RetryTerms {
    pub max_attempts: u32,
    pub backoff_base_ms: u64,
    pub backoff_max_ms: u64,
}

/// A claimed row, and what it asks for.
#[derive(Debug, Clone)]
pub struct OutboxRow<T> {
    pub id: i64,
    pub sale: SaleId,
    pub shard: Shard,
    pub attempts: u32,
    pub task: T,
    /// The step that wrote the row, if it is traced.
    pub trace: Option<Box<TraceContext>>,
}

/// Rows of the outbox, locked until they are settled or the connection is lost; or leased, and not due before the lease ends.
pub struct ClaimedBatch<T> {
    ledger: Ledger,
    /// None once they are leased.
    tx: Option<Transaction<'static, Postgres>>,
    /// When the lease ends: it is over for a row whose next attempt is at another time, or that has been processed.
    leased_until: Option<DateTime<Utc>>,
    pub rows: Vec<OutboxRow<T>>,
}

/// What became of a claim's messages at the broker, by row id.
#[derive(Debug, Default)]
pub struct PublishOutcome {
    pub sent: Vec<i64>,
    pub failed: Vec<(i64, String)>,
    /// The broker had no room, which is no fault of the message.
    pub postponed: Vec<i64>,
    /// Their queue does not answer: they wait until it is tried again.
    pub unanswered: Vec<i64>,
    /// Payments of a channel that is not configured: they wait longer, and count no attempt.
    pub without_channel: Vec<i64>,
}

/// What became of a claim's releases in Redis, by row id.
#[derive(Debug, Default)]
pub struct ReleaseOutcome {
    /// With the epoch that Redis answered under.
    pub released: Vec<(i64, Epoch)>,
    /// Redis does not serve the sale at the moment, which is no fault of the row.
    pub refused: Vec<i64>,
    pub failed: Vec<(i64, String)>,
}

impl Ledger {
    /// Whether messages are due. Asked before a transaction claims them: most of the time there are none.
    pub async fn has_due_messages(&self) -> Result<bool, LedgerError> {
        // The first row of each index. Any other question about rows that are due becomes a scan of the outbox while many of them wait.
        let due = sqlx::query_scalar!(
            r#"SELECT coalesce(least(
                   (SELECT next_attempt_at FROM outbox WHERE status = 'pending' AND kind = 'group_placed'
                    ORDER BY next_attempt_at, id LIMIT 1),
                   (SELECT next_attempt_at FROM outbox WHERE status = 'pending' AND kind = 'group_expire'
                    ORDER BY next_attempt_at, id LIMIT 1),
                   (SELECT next_attempt_at FROM outbox WHERE status = 'pending'
                      AND kind IN ('order_placed', 'order_expire', 'payment_requested')
                    ORDER BY next_attempt_at, id LIMIT 1)) <= now(), false) AS "due!""#
        );
        Ok(due.fetch_one(&self.pool).await?)
    }

    /// Whether releases of units are due, likewise.
    pub async fn has_due_releases(&self) -> Result<bool, LedgerError> {
        let due = sqlx::query_scalar!(
            r#"SELECT coalesce(least(
                   (SELECT next_attempt_at FROM outbox WHERE status = 'pending' AND kind = 'group_release'
                    ORDER BY next_attempt_at, id LIMIT 1),
                   (SELECT next_attempt_at FROM outbox WHERE status = 'pending' AND kind IN ('hold_release', 'wave_release')
                    ORDER BY next_attempt_at, id LIMIT 1)) <= now(), false) AS "due!""#
        );
        Ok(due.fetch_one(&self.pool).await?)
    }

    /// Claims messages that are due, oldest first: up to `limit` about groups of each kind, and as many others. Rows that other workers
    /// have claimed are skipped.
    pub async fn claim_messages(&self, limit: i64) -> Result<ClaimedBatch<BrokerMessage>, LedgerError> {
        let mut tx = self.begin().await?;
        let mut rows = claim_groups(&mut tx, OutboxKind::GroupPlaced, limit).await?;
        rows.extend(claim_groups(&mut tx, OutboxKind::GroupExpire, limit).await?);
        let others = sqlx::query_as!(
            ClaimedRow,
            r#"SELECT id, kind, order_id, sale_id, shard, quantity, due_at, returns_units, attempts, trace, NULL::bigint AS lapsed_at_ms,
                      coalesce(extract(epoch FROM due_at - now()) * 1000, 0)::bigint AS "remaining_ms!",
                      CASE kind WHEN 'payment_requested' THEN (SELECT p.channel FROM payments p WHERE p.id = outbox.order_id)
                      END AS channel,
                      NULL::integer AS members, NULL::uuid[] AS released, NULL::bigint[] AS "lapsed?: Vec<Option<i64>>"
               FROM outbox WHERE status = 'pending'
                 AND kind IN ('order_placed', 'order_expire', 'payment_requested')
                 AND next_attempt_at <= now()
               ORDER BY next_attempt_at, id LIMIT $1 FOR UPDATE SKIP LOCKED"#,
            limit
        )
        .fetch_all(&mut *tx)
        .await?;
        rows.extend(others);
        ClaimedBatch::new(self, tx, rows, |task| match task {
            Task::Publish(message) => Some(message),
            Task::Release(_) => None,
        })
    }

    /// Claims releases of units that are due, likewise, and up to `GROUP_RELEASES` of groups.
    pub async fn claim_releases(&self, limit: i64) -> Result<ClaimedBatch<UnitRelease>, LedgerError> {
        let mut tx = self.begin().await?;
        let mut rows = sqlx::query_as!(
            ClaimedRow,
            r#"SELECT id, kind, order_id, sale_id, shard, quantity, due_at, returns_units, attempts, trace,
                      0::bigint AS "remaining_ms!", NULL::text AS channel, NULL::integer AS members,
                      (SELECT (extract(epoch FROM l.lapsed_at) * 1000)::bigint FROM lapsed_holds l
                       WHERE l.order_id = outbox.order_id) AS lapsed_at_ms,
                      NULL::uuid[] AS released, NULL::bigint[] AS "lapsed?: Vec<Option<i64>>"
               FROM outbox WHERE status = 'pending' AND kind IN ('hold_release', 'wave_release')
                 AND next_attempt_at <= now()
               ORDER BY next_attempt_at, id LIMIT $1 FOR UPDATE SKIP LOCKED"#,
            limit
        )
        .fetch_all(&mut *tx)
        .await?;
        let of_groups = sqlx::query_as!(
            ClaimedRow,
            r#"SELECT id, kind, order_id, sale_id, shard, quantity, due_at, returns_units, attempts, trace,
                      0::bigint AS "remaining_ms!", NULL::text AS channel, NULL::integer AS members,
                      NULL::bigint AS lapsed_at_ms, members AS released,
                      ARRAY(SELECT (extract(epoch FROM l.lapsed_at) * 1000)::bigint
                            FROM unnest(outbox.members) WITH ORDINALITY AS m (order_id, place)
                            LEFT JOIN lapsed_holds l ON l.order_id = m.order_id ORDER BY m.place)
                          AS "lapsed?: Vec<Option<i64>>"
               FROM outbox WHERE status = 'pending' AND kind IN ('group_release') AND next_attempt_at <= now()
               ORDER BY next_attempt_at, id LIMIT $1 FOR UPDATE SKIP LOCKED"#,
            limit.min(GROUP_RELEASES)
        )
        .fetch_all(&mut *tx)
        .await?;
        rows.extend(of_groups);
        ClaimedBatch::new(self, tx, rows, |task| match task {
            Task::Release(release) => Some(release),
            Task::Publish(_) => None,
        })
    }

    /// Counts a failed attempt at processing a message: the message is sent again later, or parked after
    /// `max_attempts`. Returns whether it was parked.
    pub async fn fail_message(
        &self,
        kind: OutboxKind,
        about: impl Into<Uuid>,
        error: &str,
        terms: RetryTerms,
    ) -> Result<bool, LedgerError> {
        let about: Uuid = about.into();
        let mut tx = self.begin().await?;
        let row = sqlx::query!(
            "SELECT id, attempts FROM outbox WHERE kind = $1 AND order_id = $2 AND status IN ('pending', 'sent')
             FOR UPDATE",
            kind.as_str(),
            about
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(false) };
        let parked = count_failure(&mut tx, row.id, row.attempts.unsigned_abs(), error, terms).await?;
        tx.commit().await?;
        Ok(parked)
    }

    /// Has messages sent again after a while, without counting a failure: what they are about cannot be changed at the moment. Rows that are
    /// locked themselves are skipped: their messages are sent again like any that is lost.
    pub async fn put_off(&self, kind: OutboxKind, about: &[Uuid], pause: Duration) -> Result<(), LedgerError> {
        sqlx::query!(
            "UPDATE outbox SET status = 'pending', next_attempt_at = now() + $3::bigint * interval '1 ms'
             WHERE id IN (SELECT id FROM outbox WHERE kind = $1 AND order_id = ANY($2) AND status IN ('pending', 'sent')
                          ORDER BY id FOR UPDATE SKIP LOCKED)",
            kind.as_str(),
            about,
            i64::try_from(pause.as_millis()).unwrap_or(i64::MAX)
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// The sales of purchases that have a row of their own, each with its purchases.
    pub async fn purchases_by_sale(&self, orders: &[OrderId]) -> Result<BTreeMap<SaleId, Vec<OrderId>>, LedgerError> {
        let ids: Vec<Uuid> = orders.iter().map(|order| order.0).collect();
        let rows = sqlx::query!(
            "SELECT order_id, sale_id FROM outbox WHERE kind = 'order_placed' AND order_id = ANY($1) ORDER BY id",
            &ids
        );
        let mut by_sale = BTreeMap::<_, Vec<_>>::new();
        for row in rows.fetch_all(&self.pool).await? {
            by_sale.entry(SaleId::from_db(row.sale_id)).or_default().push(OrderId(row.order_id));
        }
        Ok(by_sale)
    }
}

impl<T> ClaimedBatch<T> {
    fn new(
        ledger: &Ledger,
        tx: Transaction<'static, Postgres>,
        rows: Vec<ClaimedRow>,
        select: impl Fn(Task) -> Option<T>,
    ) -> Result<Self, LedgerError> {
        let row = |row: ClaimedRow| {
            Ok(OutboxRow {
                id: row.id,
                sale: SaleId::from_db(row.sale_id),
                shard: Shard(row.shard),
                attempts: row.attempts.unsigned_abs(),
                task: select(row.task()?).ok_or(LedgerError::Unreadable("outbox.kind"))?,
                trace: row.trace.as_deref().and_then(TraceContext::from_text).map(Box::new),
            })
        };
        let rows = rows.into_iter().map(row).collect::<Result<_, LedgerError>>()?;
        Ok(Self { ledger: ledger.clone(), tx: Some(tx), leased_until: None, rows })
    }
}

impl ClaimedBatch<BrokerMessage> {
    /// Unlocks the rows, which are due again after `LEASE_MS`. For a broker that takes long: those who process messages of another queue
    /// would wait for the rows of theirs.
    pub async fn lease(&mut self) -> Result<(), LedgerError> {
        let Some(mut tx) = self.tx.take() else { return Ok(()) };
        postpone(&mut tx, &self.ids(), LEASE_MS).await?;
        let until = sqlx::query_scalar!(r#"SELECT now() + $1::bigint * interval '1 ms' AS "until!""#, LEASE_MS);
        self.leased_until = Some(until.fetch_one(&mut *tx).await?);
        Ok(tx.commit().await?)
    }

    /// A transaction with those of the rows locked that are still claimed. A consumer may have had the message of a leased row since, and
    /// put it off, or have it locked now.
    async fn claimed(&mut self) -> Result<(Transaction<'static, Postgres>, HashSet<i64>), LedgerError> {
        if let Some(tx) = self.tx.take() {
            return Ok((tx, self.ids().into_iter().collect()));
        }
        let mut tx = self.ledger.begin().await?;
        let still = sqlx::query_scalar!(
            "SELECT id FROM outbox WHERE id = ANY($1) AND status = 'pending' AND next_attempt_at = $2
             ORDER BY id FOR UPDATE SKIP LOCKED",
            &self.ids(),
            self.leased_until
        )
        .fetch_all(&mut *tx)
        .await?;
        Ok((tx, still.into_iter().collect()))
    }

    /// Unlocks the rows, or ends their lease: nothing is known of the messages.
    pub async fn give_back(mut self) -> Result<(), LedgerError> {
        if self.tx.is_some() {
            return Ok(());
        }
        let (mut tx, still) = self.claimed().await?;
        postpone(&mut tx, &Vec::from_iter(still), 0).await?;
        Ok(tx.commit().await?)
    }

    fn ids(&self) -> Vec<i64> {
        self.rows.iter().map(|row| row.id).collect()
    }

    /// Marks what the broker has confirmed as sent, counts the failures, postpones what found no room, and unlocks all
    /// rows.
    pub async fn settle_sent(mut self, outcome: &PublishOutcome, terms: RetryTerms) -> Result<(), LedgerError> {
        let PublishOutcome { sent, failed, postponed, unanswered, without_channel } = outcome;
        let (mut tx, claimed) = self.claimed().await?;
        let claimed_of = |ids: &[i64]| ids.iter().copied().filter(|id| claimed.contains(id)).collect::<Vec<i64>>();
        sqlx::query!(
            "UPDATE outbox SET status = 'sent', sent_at = now() WHERE id = ANY($1) AND status = 'pending'",
            &claimed_of(sent)
        )
        .execute(&mut *tx)
        .await?;
        for (id, error) in failed.iter().filter(|(id, _)| claimed.contains(id)) {
            let attempts = self.rows.iter().find(|row| row.id == *id).map_or(0, |row| row.attempts);
            count_failure(&mut tx, *id, attempts, error, terms).await?;
        }
        postpone(&mut tx, &claimed_of(postponed), NO_ROOM_MS).await?;
        postpone(&mut tx, &claimed_of(unanswered), UNANSWERED_MS).await?;
        postpone(&mut tx, &claimed_of(without_channel), NO_CHANNEL_MS).await?;
        Ok(tx.commit().await?)
    }
}

impl ClaimedBatch<UnitRelease> {
    /// The shards of these sales, without those that do not exist, read on the connection of the claim.
    pub async fn shards_of(&mut self, sales: &[SaleId]) -> Result<Vec<Sharded>, LedgerError> {
        match &mut self.tx {
            Some(tx) => shards_of(&mut **tx, sales).await,
            None => self.ledger.shards_of(sales).await,
        }
    }

    /// Marks releases as processed where the sale's epoch is still the one that Redis answered under (rule 9). The
    /// others stay pending and are carried out again. Of those that were refused, the ones of sales that are no more, or ended
    /// `retire_after_ms` ago, have nothing to be released in; the others are postponed. Failures are counted.
    pub async fn settle_released(
        mut self,
        outcome: &ReleaseOutcome,
        terms: RetryTerms,
        retire_after_ms: u64,
    ) -> Result<(), LedgerError> {
        let ReleaseOutcome { released, refused, failed } = outcome;
        let mut tx = match self.tx.take() {
            Some(tx) => tx,
            None => self.ledger.begin().await?,
        };
        let (ids, epochs): (Vec<i64>, Vec<i64>) = released.iter().map(|(id, epoch)| (*id, epoch.0)).unzip();
        sqlx::query!(
            "UPDATE outbox o SET status = 'processed', processed_at = now()
             FROM unnest($1::bigint[], $2::bigint[]) AS done (id, epoch) JOIN sale_epochs e USING (epoch)
             WHERE o.id = done.id AND o.sale_id = e.sale_id",
            &ids,
            &epochs
        )
        .execute(&mut *tx)
        .await?;
        for (id, error) in failed {
            let attempts = self.rows.iter().find(|row| row.id == *id).map_or(0, |row| row.attempts);
            count_failure(&mut tx, *id, attempts, error, terms).await?;
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
        Ok(tx.commit().await?)
    }
}

/// Claims messages about groups that are due.
async fn claim_groups(
    tx: &mut Transaction<'static, Postgres>,
    kind: OutboxKind,
    limit: i64,
) -> Result<Vec<ClaimedRow>, LedgerError> {
    // The list of kinds is that of the index, and `kind = $1` where to look in it.
    let rows = sqlx::query_as!(
        ClaimedRow,
        r#"SELECT id, kind, order_id, sale_id, shard, quantity, due_at, returns_units, attempts, trace, NULL::bigint AS lapsed_at_ms,
                  coalesce(extract(epoch FROM due_at - now()) * 1000, 0)::bigint AS "remaining_ms!", NULL::text AS channel,
                  (SELECT g.members FROM purchase_groups g WHERE g.id = outbox.order_id) AS members,
                  NULL::uuid[] AS released, NULL::bigint[] AS "lapsed?: Vec<Option<i64>>"
           FROM outbox WHERE status = 'pending' AND kind IN ('group_placed', 'group_expire') AND kind = $1
             AND next_attempt_at <= now()
           ORDER BY next_attempt_at, id LIMIT $2 FOR UPDATE SKIP LOCKED"#,
        kind.as_str(),
        limit
    );
    Ok(rows.fetch_all(&mut **tx).await?)
}

/// Postpones pending rows that could not be tried by `wait_ms`. No attempt is counted.
async fn postpone(tx: &mut Transaction<'static, Postgres>, ids: &[i64], wait_ms: i64) -> Result<(), LedgerError> {
    if !ids.is_empty() {
        sqlx::query!(
            "UPDATE outbox SET next_attempt_at = now() + $2::bigint * interval '1 ms' WHERE id = ANY($1) AND status = 'pending'",
            ids,
            wait_ms
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

/// Counts a failure of a locked row, which is tried again after a backoff, or parked after `max_attempts`. Returns
/// whether the row was parked.
async fn count_failure(
    tx: &mut Transaction<'static, Postgres>,
    id: i64,
    attempts: u32,
    error: &str,
    terms: RetryTerms,
) -> Result<bool, LedgerError> {
    let attempts = attempts + 1;
    let parked = attempts >= terms.max_attempts;
    let wait = backoff_ms(attempts, terms.backoff_base_ms, terms.backoff_max_ms, rand::random());
    sqlx::query!(
        "UPDATE outbox SET attempts = $2, status = $3, last_error = $4, next_attempt_at = now() + $5::bigint * interval '1 ms'
         WHERE id = $1 AND status <> 'processed'",
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

/// An error's text as one bounded line, for logs and for people.
pub(super) fn one_line(error: &str) -> String {
    error.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect()
}
