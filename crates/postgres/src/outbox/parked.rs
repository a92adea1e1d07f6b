//! Parked rows: work that failed too often and waits for people.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{LedgerError, Outbox, audit_log};
use seckill_domain::message::ParkedKind;

/// Row limit per transaction that makes rows pending again. It keeps locks and work small, however many rows are parked.
pub const UNPARK_STEP: i64 = 1000;

/// A message that has failed too often, and is no longer tried.
#[derive(Debug, Clone, serde::Serialize, utoipa::ToSchema)]
#[schema(as = ParkedMessage)]
pub struct ParkedRow {
    pub id: i64,
    pub kind: String,
    /// The order, payment or wave that the message is about.
    #[serde(rename = "about")]
    pub order_id: Uuid,
    pub sale_id: i64,
    /// The buyer if the message is about one order, else empty.
    #[serde(rename = "user")]
    pub user_id: String,
    pub attempts: i32,
    #[serde(rename = "error")]
    pub last_error: Option<String>,
    #[serde(rename = "created_at_ms", with = "chrono::serde::ts_milliseconds")]
    #[schema(value_type = i64)]
    pub created_at: DateTime<Utc>,
    /// The rest of the message.
    pub payload: Value,
}

impl Outbox {
    /// Parked outbox rows and parked webhook events, newest first, with ids below `before`. Both tables have an index of parked rows.
    pub async fn parked(
        &self,
        kind: Option<ParkedKind>,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<ParkedRow>, LedgerError> {
        Ok(sqlx::query_as!(
            ParkedRow,
            r#"SELECT id AS "id!", kind AS "kind!", order_id AS "order_id!", sale_id AS "sale_id!", user_id AS "user_id!",
                      attempts AS "attempts!", last_error, created_at AS "created_at!", payload AS "payload!"
               FROM ((SELECT id, kind, order_id, sale_id,
                             coalesce((SELECT o.user_id FROM orders o WHERE o.id = coalesce(
                                         (SELECT p.order_id FROM payments p WHERE p.id = outbox.order_id), outbox.order_id)),
                                      (SELECT g.user_ids[1] FROM purchase_groups g WHERE g.id = outbox.order_id AND g.members = 1),
                                      '') AS user_id,
                             attempts, last_error, created_at,
                             jsonb_strip_nulls(jsonb_build_object('quantity', quantity, 'shard', shard, 'due_at', due_at,
                                 'returns_units', returns_units, 'orders', members[1:10])) AS payload
                      FROM outbox
                      WHERE status = 'parked' AND ($1::text IS NULL OR kind = $1) AND ($2::bigint IS NULL OR id < $2)
                      ORDER BY id DESC LIMIT $3)
                     UNION ALL
                     (SELECT e.id, 'order_event', e.order_id, o.sale_id, o.user_id, e.attempts, e.last_error, e.created_at,
                             jsonb_strip_nulls(jsonb_build_object('step', e.step_id, 'status', s.to_status))
                      FROM order_events e JOIN orders o ON o.id = e.order_id LEFT JOIN order_steps s ON s.id = e.step_id
                      WHERE e.status = 'parked' AND ($1::text IS NULL OR $1 = 'order_event')
                        AND ($2::bigint IS NULL OR e.id < $2)
                      ORDER BY e.id DESC LIMIT $3)) AS parked
               ORDER BY id DESC LIMIT $3"#,
            kind.map(ParkedKind::as_str),
            before,
            limit
        )
        .fetch_all(&mut *self.0.begin_reading().await?)
        .await?)
    }

    /// Makes these parked rows pending again. Returns how many were.
    pub async fn unpark(&self, ids: &[i64], actor: &str) -> Result<u64, LedgerError> {
        // In the statements, an empty list of ids means all rows.
        if ids.is_empty() { Ok(0) } else { self.unpark_those(ids, None, i64::MAX, actor).await }
    }

    /// Makes the first `UNPARK_STEP` parked rows pending again, of one kind or of all. Returns how many were.
    pub async fn unpark_step(&self, kind: Option<ParkedKind>, actor: &str) -> Result<u64, LedgerError> {
        self.unpark_those(&[], kind, UNPARK_STEP, actor).await
    }

    /// If two people retry a row at once, the first makes it pending, and the second skips it.
    async fn unpark_those(
        &self,
        ids: &[i64],
        kind: Option<ParkedKind>,
        limit: i64,
        actor: &str,
    ) -> Result<u64, LedgerError> {
        let kind = kind.map(ParkedKind::as_str);
        let mut tx = self.0.begin().await?;
        let done = sqlx::query!(
            "UPDATE outbox SET status = 'pending', attempts = 0, next_attempt_at = now()
             WHERE id IN (SELECT id FROM outbox
                          WHERE status = 'parked' AND (cardinality($1::bigint[]) = 0 OR id = ANY($1))
                            AND ($2::text IS NULL OR kind = $2)
                          ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED)",
            ids,
            kind,
            limit
        )
        .execute(&mut *tx)
        .await?;
        let events = sqlx::query!(
            "UPDATE order_events SET status = 'pending', attempts = 0, next_attempt_at = now()
             WHERE (order_id, step_id) IN (
                 SELECT order_id, step_id FROM order_events
                 WHERE status = 'parked' AND (cardinality($1::bigint[]) = 0 OR id = ANY($1))
                   AND ($2::text IS NULL OR $2 = 'order_event')
                 ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED)",
            ids,
            kind,
            limit.saturating_sub_unsigned(done.rows_affected())
        )
        .execute(&mut *tx)
        .await?;
        let rows = done.rows_affected() + events.rows_affected();
        if rows > 0 {
            let details = json!({ "rows": rows, "ids": ids, "kind": kind });
            audit_log::append(&mut tx, actor, "outbox retry", "outbox", details).await?;
            tx.commit().await?;
        }
        Ok(rows)
    }
}
