//! Parked rows: work that has failed too often, and waits for people.

use chrono::{DateTime, Utc};
use serde_json::json;
use uuid::Uuid;

use crate::ledger::{Ledger, LedgerError, audit_log};

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
    /// Parked rows, oldest first, with the parked events of the order webhook.
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

    /// Makes these parked rows pending again, or all of them when `ids` is empty. Returns how many there were.
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
        audit_log::append(&mut tx, actor, "outbox retry", "outbox", json!({ "rows": rows })).await?;
        tx.commit().await?;
        Ok(rows)
    }
}
