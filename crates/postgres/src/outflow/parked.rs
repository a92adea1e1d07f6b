//! Parked outflow items: their receivers refused them, and they wait for people.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::outbox::UNPARK_STEP;
use crate::{LedgerError, Outflows, audit_log};

/// An item that its receiver did not take, and which is no longer tried.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = OutflowItem)]
pub struct ParkedItem {
    pub id: Uuid,
    #[serde(rename = "outflow")]
    pub channel: String,
    pub key: String,
    /// Rises with the time at which items were added, over all channels.
    #[serde(skip)]
    pub seq: i64,
    pub attempts: i32,
    #[serde(rename = "error")]
    pub last_error: Option<String>,
    #[serde(rename = "created_at_ms", with = "chrono::serde::ts_milliseconds")]
    #[schema(value_type = i64)]
    pub created_at: DateTime<Utc>,
    /// The beginning of the payload.
    pub payload: String,
}

impl Outflows {
    /// Newest first, with a `seq` below `before`, by the index `outflow_items_parked`.
    pub async fn parked_outflow(
        &self,
        channel: Option<&str>,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<ParkedItem>, LedgerError> {
        Ok(sqlx::query_as!(
            ParkedItem,
            r#"SELECT id, channel, key, seq, attempts, last_error, created_at, left(payload::text, 2000) AS "payload!"
               FROM outflow_items
               WHERE status = 'parked' AND ($1::text IS NULL OR channel = $1) AND ($2::bigint IS NULL OR seq < $2)
               ORDER BY seq DESC LIMIT $3"#,
            channel,
            before,
            limit
        )
        .fetch_all(&mut *self.0.begin_reading().await?)
        .await?)
    }

    /// Makes one parked item pending again. Returns `false` if it is not parked.
    pub async fn unpark_outflow_item(&self, id: Uuid, actor: &str) -> Result<bool, LedgerError> {
        let channel =
            sqlx::query_scalar!("SELECT channel FROM outflow_items WHERE id = $1 AND status || '' = 'parked'", id)
                .fetch_optional(&self.0.pool)
                .await?;
        match channel {
            Some(channel) => Ok(self.unpark_outflow(&channel, &[id], actor).await? > 0),
            None => Ok(false),
        }
    }

    /// Makes parked items pending again: these, or the first `UNPARK_STEP`. Returns how many. They precede later items of their keys.
    pub async fn unpark_outflow(&self, channel: &str, ids: &[Uuid], actor: &str) -> Result<u64, LedgerError> {
        let mut tx = self.0.begin().await?;
        // Not locked, because keys are locked first. Items that become pending meanwhile are skipped below.
        let found = sqlx::query_scalar!(
            "SELECT id FROM outflow_items
             WHERE channel = $1 AND status = 'parked' AND (cardinality($2::uuid[]) = 0 OR id = ANY($2))
             ORDER BY seq LIMIT $3",
            channel,
            ids,
            if ids.is_empty() { UNPARK_STEP } else { i64::MAX }
        )
        .fetch_all(&mut *tx)
        .await?;
        // Keys first, in a fixed order, as in every transaction.
        sqlx::query!(
            "INSERT INTO outflow_keys (channel, key, turn_at)
             SELECT channel, key, clock_timestamp() FROM outflow_items
             WHERE channel = $1 AND status || '' = 'parked' AND id = ANY($2) GROUP BY channel, key ORDER BY key
             ON CONFLICT (channel, key) DO UPDATE SET turn_at = outflow_keys.turn_at",
            channel,
            &found
        )
        .execute(&mut *tx)
        .await?;
        let done = sqlx::query!(
            "UPDATE outflow_items i SET status = 'pending', attempts = 0
             WHERE channel = $1 AND status || '' = 'parked' AND id = ANY($2)
               AND EXISTS (SELECT FROM outflow_keys k WHERE k.channel = i.channel AND k.key = i.key)",
            channel,
            &found
        )
        .execute(&mut *tx)
        .await?;
        let rows = done.rows_affected();
        if rows > 0 {
            let details = serde_json::json!({ "items": rows, "ids": ids });
            audit_log::append(&mut tx, actor, "outflow retry", &format!("outflow {channel}"), details).await?;
            // The trigger announces only inserted items. These existed before.
            sqlx::query!("SELECT pg_notify('seckill_outflow', '')").execute(&mut *tx).await?;
            tx.commit().await?;
        }
        Ok(rows)
    }
}
