//! The outbox: work that a transaction has left to be done after its commit. Workers claim rows, carry them out, and
//! settle them.

mod claimed;
mod parked;
mod resend;
mod task;

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::{Ledger, LedgerError};
use crate::domain::ids::{OrderId, SaleId, Shard};
use crate::domain::message::OutboxKind;
use crate::domain::trace_context::TraceContext;
use claimed::count_failure;
pub use claimed::{ClaimedBatch, PublishOutcome, ReleaseOutcome};
pub use parked::{ParkedFilter, ParkedRow, UNPARK_STEP};
pub use task::{BrokerMessage, UnitRelease};
use task::{ClaimedRow, Task};

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
            "SELECT id, attempts FROM outbox WHERE kind = $1 AND order_id = $2 AND status || '' IN ('pending', 'sent')
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
             WHERE id IN (SELECT id FROM outbox WHERE kind = $1 AND order_id = ANY($2) AND status || '' IN ('pending', 'sent')
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

/// An error's text as one bounded line, for logs and for people.
pub(super) fn one_line(error: &str) -> String {
    error.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect()
}
