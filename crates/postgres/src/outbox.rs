//! The outbox: work to do after a transaction's commit. Workers claim rows, do the work, and settle the rows.

mod claimed;
mod parked;
mod resend;
mod task;

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use super::{LedgerError, Outbox};
use claimed::count_failure;
pub use claimed::{ClaimedBatch, PublishOutcome, ReleaseOutcome};
pub use parked::{ParkedRow, UNPARK_STEP};
use seckill_domain::ids::{GroupId, OrderId, SaleId, Shard, WaveId};
use seckill_domain::message::OutboxKind;
use seckill_domain::order::HoldRelease;
use seckill_domain::payment::PaymentId;
use seckill_domain::trace_context::TraceContext;
pub use task::{BrokerMessage, UnitRelease};

/// The approximate number of holds per claim of releases. A row has up to 1,000.
const HOLDS_A_CLAIM: i64 = 2000;
pub const MESSAGES: [OutboxKind; 3] = [OutboxKind::GroupPlaced, OutboxKind::GroupExpire, OutboxKind::PaymentRequested];
pub const RELEASES: [OutboxKind; 2] = [OutboxKind::HoldRelease, OutboxKind::WaveRelease];

#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    pub max_attempts: u32,
    pub backoff_base_ms: u64,
    pub backoff_max_ms: u64,
}

#[derive(Debug, Clone)]
pub struct OutboxRow<T> {
    pub id: i64,
    pub sale: SaleId,
    pub shard: Shard,
    pub attempts: u32,
    pub task: T,
    /// The trace's step that wrote the row, if traced.
    pub trace: Option<Box<TraceContext>>,
}

impl<T> OutboxRow<T> {
    fn new(id: i64, sale: i64, shard: i16, attempts: i32, task: T, trace: Option<String>) -> Self {
        let trace = trace.as_deref().and_then(TraceContext::from_text).map(Box::new);
        Self { id, sale: SaleId::from_db(sale), shard: Shard(shard), attempts: attempts.unsigned_abs(), task, trace }
    }
}

impl Outbox {
    /// Whether rows of these kinds are due. Asked before the claiming transaction, because usually none are.
    pub async fn has_due(&self, kinds: &[OutboxKind]) -> Result<bool, LedgerError> {
        // Reads the first entry of each kind in `outbox_due`. Any other query for due rows would scan the outbox in a long backlog.
        let due = sqlx::query_scalar!(
            r#"SELECT coalesce(bool_or((SELECT next_attempt_at FROM outbox WHERE status = 'pending' AND outbox.kind = k.kind
                                        ORDER BY next_attempt_at, id LIMIT 1) <= now()), false) AS "due!"
               FROM unnest($1::text[]) AS k (kind)"#,
            &kinds.iter().map(OutboxKind::to_string).collect::<Vec<_>>()
        );
        Ok(due.fetch_one(&self.0.pool).await?)
    }

    /// Claims due messages, oldest first, up to `limit` of each kind. Skips rows that other workers have claimed.
    pub async fn claim_messages(&self, limit: i64) -> Result<ClaimedBatch<BrokerMessage>, LedgerError> {
        let mut tx = self.0.begin().await?;
        let mut rows = Vec::new();
        for kind in MESSAGES {
            let due = sqlx::query!(
                r#"SELECT id, order_id, sale_id, shard, attempts, trace,
                          coalesce(extract(epoch FROM due_at - now()) * 1000, 0)::bigint AS "remaining_ms!",
                          CASE kind WHEN 'payment_requested' THEN (SELECT p.channel FROM payments p WHERE p.id = outbox.order_id)
                          END AS channel,
                          (SELECT g.members FROM purchase_groups g WHERE g.id = outbox.order_id) AS members
                   FROM outbox WHERE status = 'pending' AND kind = $1 AND next_attempt_at <= now()
                   ORDER BY next_attempt_at, id LIMIT $2 FOR UPDATE SKIP LOCKED"#,
                kind.as_str(),
                limit
            );
            for row in due.fetch_all(&mut *tx).await? {
                let (group, remaining_ms) = (GroupId(row.order_id), row.remaining_ms);
                // A row without its group is published too, so that it does not stop the others.
                let members = row.members.and_then(|members| usize::try_from(members).ok()).unwrap_or(1);
                let task = match kind {
                    OutboxKind::GroupPlaced => BrokerMessage::GroupPlaced { group, members },
                    OutboxKind::GroupExpire => BrokerMessage::GroupExpire { group, members, remaining_ms },
                    // Without its payment, a row has no channel. It waits like a row of an unknown channel.
                    _ => BrokerMessage::PaymentRequested {
                        payment: PaymentId(row.order_id),
                        channel: row.channel.unwrap_or_default(),
                    },
                };
                rows.push(OutboxRow::new(row.id, row.sale_id, row.shard, row.attempts, task, row.trace));
            }
        }
        Ok(ClaimedBatch::new(&self.0, tx, rows))
    }

    /// Claims due releases of units, oldest first, up to `limit` of each kind, with about `HOLDS_A_CLAIM` holds. It locks about as many rows
    /// as it returns, by the size of the first, so that another releaser takes the rows behind them.
    pub async fn claim_releases(&self, limit: i64) -> Result<ClaimedBatch<UnitRelease>, LedgerError> {
        let mut tx = self.0.begin().await?;
        let mut rows = Vec::new();
        for kind in RELEASES {
            let due = sqlx::query!(
                r#"WITH first AS (
                     SELECT greatest(cardinality(members), 1) AS holds FROM outbox
                     WHERE status = 'pending' AND kind = $1 AND next_attempt_at <= now() ORDER BY next_attempt_at, id LIMIT 1),
                   due AS MATERIALIZED (
                     SELECT id, next_attempt_at, greatest(cardinality(members), 1) AS holds
                     FROM outbox WHERE status = 'pending' AND kind = $1 AND next_attempt_at <= now()
                     ORDER BY next_attempt_at, id
                     LIMIT least($2::bigint, (SELECT 1 + $3::bigint / holds FROM first)) FOR UPDATE SKIP LOCKED),
                   taken AS (
                     SELECT id, sum(holds) OVER (ORDER BY next_attempt_at, id) - holds AS before FROM due)
                   SELECT o.id, o.order_id, o.sale_id, o.shard, o.quantity, o.returns_units, o.attempts, o.trace,
                          o.members AS released,
                          ARRAY(SELECT (extract(epoch FROM l.lapsed_at) * 1000)::bigint
                                FROM unnest(o.members) WITH ORDINALITY AS m (order_id, place)
                                LEFT JOIN lapsed_holds l ON l.order_id = m.order_id ORDER BY m.place)
                              AS "lapsed_at_ms!: Vec<Option<i64>>"
                   FROM taken JOIN outbox o USING (id) WHERE taken.before < $3::bigint ORDER BY o.next_attempt_at, o.id"#,
                kind.as_str(),
                limit,
                HOLDS_A_CLAIM
            );
            for row in due.fetch_all(&mut *tx).await? {
                let task = if kind == OutboxKind::WaveRelease {
                    UnitRelease::Wave { wave: WaveId(row.order_id), units: row.quantity.into() }
                } else {
                    let returns_units = row.returns_units.ok_or(LedgerError::Unreadable("outbox.returns_units"))?;
                    let hold =
                        |(order, lapsed_at_ms)| HoldRelease { order: OrderId(order), returns_units, lapsed_at_ms };
                    UnitRelease::Holds(row.released.into_iter().flatten().zip(row.lapsed_at_ms).map(hold).collect())
                };
                rows.push(OutboxRow::new(row.id, row.sale_id, row.shard, row.attempts, task, row.trace));
            }
        }
        Ok(ClaimedBatch::new(&self.0, tx, rows))
    }

    /// Counts a failure. The message is sent again later, or parked after `max_attempts`. Returns whether it was parked.
    pub async fn fail_message(
        &self,
        kind: OutboxKind,
        group: GroupId,
        error: &str,
        terms: RetryPolicy,
    ) -> Result<bool, LedgerError> {
        let mut tx = self.0.begin().await?;
        let row = sqlx::query!(
            "SELECT id, attempts FROM outbox WHERE kind = $1 AND order_id = $2 AND status || '' IN ('pending', 'sent')
             FOR UPDATE",
            kind.as_str(),
            group.0
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(false) };
        let parked = count_failure(&mut tx, row.id, row.attempts.unsigned_abs(), error, terms).await?;
        tx.commit().await?;
        Ok(parked)
    }

    /// Sends messages again later, without counting a failure. Skips locked rows: their messages are sent again like lost ones.
    pub async fn put_off(&self, kind: OutboxKind, about: &[Uuid], pause: Duration) -> Result<(), LedgerError> {
        self.0.run(sqlx::query!(
            "UPDATE outbox SET status = 'pending', next_attempt_at = now() + $3::bigint * interval '1 ms'
             WHERE id IN (SELECT id FROM outbox WHERE kind = $1 AND order_id = ANY($2) AND status || '' IN ('pending', 'sent')
                          ORDER BY id FOR UPDATE SKIP LOCKED)",
            kind.as_str(),
            about,
            i64::try_from(pause.as_millis()).unwrap_or(i64::MAX)
        )).await
    }
}

/// Closes a row whose work goes on in other rows, with the reason; `false` if it was already closed.
pub(super) async fn close_split(
    tx: &mut PgConnection,
    kind: OutboxKind,
    group: GroupId,
    why: &str,
) -> Result<bool, LedgerError> {
    let closed = sqlx::query!(
        "UPDATE outbox SET status = 'processed', processed_at = now(), sent_at = coalesce(sent_at, now()), last_error = $3
         WHERE kind = $1 AND order_id = $2 AND status || '' <> 'processed'",
        kind.as_str(),
        group.0,
        one_line(why)
    );
    Ok(closed.execute(tx).await?.rows_affected() > 0)
}

/// An error's text as one line of limited length.
pub(super) fn one_line(error: &str) -> String {
    error.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect()
}
