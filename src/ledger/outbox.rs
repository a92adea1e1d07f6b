//! The outbox: taking rows to carry out, and saying what came of it.

use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::audit_log::note;
use super::{Ledger, LedgerError};
use crate::domain::ids::{Epoch, OrderId, SaleId, Shard};
use crate::domain::message::OutboxKind;
use seckill_webhook::backoff_ms;

/// How long a row waits that found no room, and one whose channel is not configured: the settings change with a restart.
const NO_ROOM_MS: i64 = 500;
const NO_CHANNEL_MS: i64 = 60_000;

/// When and how often to try again what failed.
#[derive(Debug, Clone, Copy)]
pub struct RetryTerms {
    pub max_attempts: u32,
    pub backoff_base_ms: u64,
    pub backoff_max_ms: u64,
}

/// A row to be carried out.
#[derive(Debug, Clone)]
pub struct OutboxRow {
    pub id: i64,
    pub kind: OutboxKind,
    pub order: OrderId,
    pub sale: SaleId,
    pub shard: Shard,
    pub units: i64,
    /// What is left until `due_at`, by PostgreSQL's clock.
    pub remaining_ms: i64,
    pub due_at_ms: i64,
    pub returns_units: bool,
    pub attempts: u32,
    /// Of a payment: its channel.
    pub channel: Option<String>,
}

/// Rows of the outbox, locked: nobody else takes them until they are settled, or the connection is lost.
pub struct ClaimedBatch {
    tx: Transaction<'static, Postgres>,
    pub rows: Vec<OutboxRow>,
}

/// What the broker made of a claim's rows, by row id.
#[derive(Debug, Default)]
pub struct PublishOutcome {
    pub sent: Vec<i64>,
    pub failed: Vec<(i64, String)>,
    /// The broker had no room: not the message's fault.
    pub postponed: Vec<i64>,
    /// Payments of a channel that is not configured: they wait longer, and count no attempt.
    pub without_channel: Vec<i64>,
}

/// A parked row, for people.
#[derive(Debug, Clone, serde::Serialize)]
pub struct ParkedRow {
    pub id: i64,
    pub kind: String,
    pub order_id: Uuid,
    pub sale_id: i64,
    pub user_id: String,
    pub attempts: i32,
    pub last_error: Option<String>,
    pub created_at: DateTime<Utc>,
}

impl Ledger {
    /// Takes messages for the broker whose time has come, oldest first, passing over those that others hold.
    pub async fn claim_messages(&self, limit: i64) -> Result<ClaimedBatch, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let rows = sqlx::query_as!(
            ClaimedRow,
            r#"SELECT id, kind, order_id, sale_id, shard, quantity, due_at, returns_units, attempts,
                      coalesce(extract(epoch FROM due_at - now()) * 1000, 0)::bigint AS "remaining_ms!",
                      CASE kind WHEN 'payment_requested' THEN (SELECT channel FROM payments p WHERE p.id = order_id)
                      END AS channel
               FROM outbox WHERE status = 'pending'
                 AND kind IN ('order_placed', 'order_expire', 'payment_requested')
                 AND next_attempt_at <= now()
               ORDER BY next_attempt_at, id LIMIT $1 FOR UPDATE SKIP LOCKED"#,
            limit
        )
        .fetch_all(&mut *tx)
        .await?;
        ClaimedBatch::of(tx, rows)
    }

    /// Takes releases of units to Redis, likewise.
    pub async fn claim_releases(&self, limit: i64) -> Result<ClaimedBatch, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let rows = sqlx::query_as!(
            ClaimedRow,
            r#"SELECT id, kind, order_id, sale_id, shard, quantity, due_at, returns_units, attempts,
                      0::bigint AS "remaining_ms!", NULL::text AS channel
               FROM outbox WHERE status = 'pending' AND kind IN ('hold_release', 'wave_release')
                 AND next_attempt_at <= now()
               ORDER BY next_attempt_at, id LIMIT $1 FOR UPDATE SKIP LOCKED"#,
            limit
        )
        .fetch_all(&mut *tx)
        .await?;
        ClaimedBatch::of(tx, rows)
    }

    /// Counts a failed attempt at processing a message: it is sent again later, or parked at the cap. Says whether it
    /// was parked.
    pub async fn fail_message(
        &self,
        kind: OutboxKind,
        order: OrderId,
        error: &str,
        terms: RetryTerms,
    ) -> Result<bool, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let row = sqlx::query!(
            "SELECT id, attempts FROM outbox WHERE kind = $1 AND order_id = $2 AND status IN ('pending', 'sent')
             FOR UPDATE",
            kind.as_str(),
            order.0
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(false) };
        let parked = fail(&mut tx, row.id, row.attempts.unsigned_abs(), error, terms).await?;
        tx.commit().await?;
        Ok(parked)
    }

    /// Purchases and payments that were sent and not processed for too long, and expiries that are overdue, are to be sent
    /// again. At most `limit` of each.
    pub async fn resend_unsettled(&self, after_ms: u64, limit: i64) -> Result<u64, LedgerError> {
        let after_ms = after_ms.cast_signed();
        let purchases = sqlx::query!(
            "UPDATE outbox SET status = 'pending', next_attempt_at = now()
             WHERE id IN (SELECT id FROM outbox WHERE status = 'sent' AND kind = 'order_placed'
                            AND sent_at < now() - $1::bigint * interval '1 ms'
                          ORDER BY sent_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
            after_ms,
            limit
        )
        .execute(&self.pool)
        .await?;
        let expiries = sqlx::query!(
            "UPDATE outbox SET status = 'pending', next_attempt_at = now()
             WHERE id IN (SELECT id FROM outbox WHERE status = 'sent' AND kind = 'order_expire'
                            AND due_at < now() - $1::bigint * interval '1 ms'
                            AND sent_at < now() - $1::bigint * interval '1 ms'
                          ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
            after_ms,
            limit
        )
        .execute(&self.pool)
        .await?;
        // Payments wait in their queue for slots, which may take a while: a message of each is enough.
        let payments = sqlx::query!(
            "UPDATE outbox SET status = 'pending', next_attempt_at = now()
             WHERE id IN (SELECT id FROM outbox WHERE status = 'sent' AND kind = 'payment_requested'
                            AND sent_at < now() - 10 * $1::bigint * interval '1 ms'
                          ORDER BY sent_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
            after_ms,
            limit
        )
        .execute(&self.pool)
        .await?;
        // And one that was taken back, by somebody who died before he could bring it again, has none.
        let forgotten = sqlx::query!(
            "UPDATE outbox SET status = 'pending', next_attempt_at = now(), processed_at = NULL
             WHERE id IN (SELECT b.id FROM payments p JOIN outbox b ON b.order_id = p.id AND b.kind = 'payment_requested'
                          WHERE p.status = 'created' AND p.claim > 0 AND b.status IN ('processed', 'sent')
                            AND coalesce(b.processed_at, b.sent_at) < now() - $1::bigint * interval '1 ms'
                          LIMIT $2 FOR UPDATE OF b SKIP LOCKED)",
            after_ms,
            limit
        )
        .execute(&self.pool)
        .await?;
        let all = [purchases, expiries, payments, forgotten].map(|done| done.rows_affected());
        Ok(all.into_iter().max().unwrap_or(0))
    }

    /// Releases for sales that are no longer kept in Redis have nothing left to do.
    pub async fn retire_releases(&self, retire_after_ms: u64) -> Result<u64, LedgerError> {
        let done = sqlx::query!(
            "UPDATE outbox o SET status = 'processed', processed_at = now() FROM sales s
             WHERE o.kind IN ('hold_release', 'wave_release') AND o.status = 'pending' AND s.id = o.sale_id
               AND s.ends_at < now() - $1::bigint * interval '1 ms'",
            retire_after_ms.cast_signed()
        )
        .execute(&self.pool)
        .await?;
        Ok(done.rows_affected())
    }

    /// Parked rows, oldest first; what the shop has not heard of orders among them.
    pub async fn parked(&self, limit: i64) -> Result<Vec<ParkedRow>, LedgerError> {
        Ok(sqlx::query_as!(
            ParkedRow,
            r#"SELECT id AS "id!", kind AS "kind!", order_id AS "order_id!", sale_id AS "sale_id!", user_id AS "user_id!",
                      attempts AS "attempts!", last_error, created_at AS "created_at!"
               FROM (SELECT id, kind, order_id, sale_id, user_id, attempts, last_error, created_at FROM outbox
                     WHERE status = 'parked'
                     UNION ALL
                     SELECT e.id, 'order_event', order_id, sale_id, user_id, attempts, last_error, e.created_at
                     FROM order_events e JOIN orders o ON o.id = e.order_id WHERE e.status = 'parked') AS parked
               ORDER BY id LIMIT $1"#,
            limit
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Makes parked rows pending again, all of them or those named; says how many there were.
    pub async fn unpark(&self, ids: &[i64], actor: &str) -> Result<u64, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let done = sqlx::query!(
            "UPDATE outbox SET status = 'pending', attempts = 0, next_attempt_at = now()
             WHERE status = 'parked' AND (cardinality($1::bigint[]) = 0 OR id = ANY($1))",
            ids
        )
        .execute(&mut *tx)
        .await?;
        let events = sqlx::query!(
            "UPDATE order_events SET status = 'pending', attempts = 0, next_attempt_at = now()
             WHERE status = 'parked' AND (cardinality($1::bigint[]) = 0 OR id = ANY($1))",
            ids
        )
        .execute(&mut *tx)
        .await?;
        let rows = done.rows_affected() + events.rows_affected();
        note(&mut tx, actor, "outbox retry", "outbox", json!({ "rows": rows })).await?;
        tx.commit().await?;
        Ok(rows)
    }
}

struct ClaimedRow {
    id: i64,
    kind: String,
    order_id: Uuid,
    sale_id: i64,
    shard: i16,
    quantity: i32,
    due_at: Option<DateTime<Utc>>,
    returns_units: Option<bool>,
    attempts: i32,
    remaining_ms: i64,
    channel: Option<String>,
}

impl ClaimedBatch {
    fn of(tx: Transaction<'static, Postgres>, rows: Vec<ClaimedRow>) -> Result<Self, LedgerError> {
        let row = |row: ClaimedRow| {
            Ok(OutboxRow {
                id: row.id,
                kind: OutboxKind::parse(&row.kind).ok_or(LedgerError::Unreadable("outbox.kind"))?,
                order: OrderId(row.order_id),
                sale: SaleId::from_db(row.sale_id),
                shard: Shard(row.shard),
                units: row.quantity.into(),
                remaining_ms: row.remaining_ms,
                due_at_ms: row.due_at.map_or(0, |due| due.timestamp_millis()),
                returns_units: row.returns_units.unwrap_or_default(),
                attempts: row.attempts.unsigned_abs(),
                channel: row.channel,
            })
        };
        Ok(Self { tx, rows: rows.into_iter().map(row).collect::<Result<_, LedgerError>>()? })
    }

    /// Marks rows as confirmed by the broker, counts the failures of others, postpones those that found no room, and
    /// lets all of them go.
    pub async fn settle_sent(mut self, outcome: &PublishOutcome, terms: RetryTerms) -> Result<(), LedgerError> {
        let PublishOutcome { sent, failed, postponed, without_channel } = outcome;
        sqlx::query!(
            "UPDATE outbox SET status = 'sent', sent_at = now() WHERE id = ANY($1) AND status = 'pending'",
            sent
        )
        .execute(&mut *self.tx)
        .await?;
        for (id, error) in failed {
            let attempts = self.rows.iter().find(|row| row.id == *id).map_or(0, |row| row.attempts);
            fail(&mut self.tx, *id, attempts, error, terms).await?;
        }
        postpone(&mut self.tx, postponed, NO_ROOM_MS).await?;
        postpone(&mut self.tx, without_channel, NO_CHANNEL_MS).await?;
        Ok(self.tx.commit().await?)
    }

    /// Marks releases as carried out, provided that each sale's epoch is still the one that Redis answered under
    /// (rule 9). What is not marked stays pending, and is carried out again; what was refused waits a little.
    pub async fn settle_released(mut self, released: &[(i64, Epoch)], refused: &[i64]) -> Result<(), LedgerError> {
        let (ids, epochs): (Vec<i64>, Vec<i64>) = released.iter().map(|(id, epoch)| (*id, epoch.0)).unzip();
        sqlx::query!(
            "UPDATE outbox o SET status = 'processed', processed_at = now()
             FROM unnest($1::bigint[], $2::bigint[]) AS done (id, epoch) JOIN sale_epochs e USING (epoch)
             WHERE o.id = done.id AND o.sale_id = e.sale_id",
            &ids,
            &epochs
        )
        .execute(&mut *self.tx)
        .await?;
        postpone(&mut self.tx, refused, NO_ROOM_MS).await?;
        Ok(self.tx.commit().await?)
    }
}

/// Lets others go first, for what could not be tried: no attempt is counted.
async fn postpone(tx: &mut Transaction<'static, Postgres>, ids: &[i64], wait_ms: i64) -> Result<(), LedgerError> {
    if !ids.is_empty() {
        sqlx::query!(
            "UPDATE outbox SET next_attempt_at = now() + $2::bigint * interval '1 ms' WHERE id = ANY($1)",
            ids,
            wait_ms
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

/// Counts a failure of a locked row: it waits for its next turn, or is parked at the cap. Says whether it was parked.
async fn fail(
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
         WHERE id = $1",
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

/// Error texts end up before people's eyes and in logs: one line, bounded.
pub(super) fn one_line(error: &str) -> String {
    error.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect()
}
