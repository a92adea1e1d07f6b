//! Payments, refunds and quarantined callbacks, for people.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{LedgerError, Payments, audit_log};
use seckill_domain::ids::OrderId;

/// A payment or refund.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = MoneyLine)]
pub struct MoneyRow {
    pub id: Uuid,
    #[schema(value_type = OrderId)]
    pub order_id: Uuid,
    pub channel: String,
    pub amount_cents: i64,
    pub currency: String,
    pub status: String,
    #[serde(rename = "created_at_ms", with = "chrono::serde::ts_milliseconds")]
    #[schema(value_type = i64)]
    pub created_at: DateTime<Utc>,
    #[serde(rename = "ended_at_ms", with = "chrono::serde::ts_milliseconds_option")]
    #[schema(value_type = Option<i64>)]
    pub ended_at: Option<DateTime<Utc>>,
    /// For a payment: why it failed. For a refund: cause, who asked for it, and why.
    pub note: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub struct MoneyFilter {
    pub order: Option<OrderId>,
    pub status: Option<&'static str>,
    /// Only rows after this one in the list: the next page.
    pub before: Option<Uuid>,
    pub limit: i64,
}

/// A signed callback, or an answer of a payment channel, that cannot be applied to our books. It had no effect.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = CallbackSetAside)]
pub struct SetAside {
    pub id: i64,
    #[serde(rename = "at_ms", with = "chrono::serde::ts_milliseconds")]
    #[schema(value_type = i64)]
    pub at: DateTime<Utc>,
    pub channel: String,
    pub message_id: String,
    pub problem: String,
    /// The callback's body, as it came.
    pub body: String,
}

impl Payments {
    pub async fn payments(&self, filter: &MoneyFilter) -> Result<Vec<MoneyRow>, LedgerError> {
        payments_on(&mut *self.0.begin_reading().await?, filter).await
    }

    pub async fn refunds(&self, filter: &MoneyFilter) -> Result<Vec<MoneyRow>, LedgerError> {
        refunds_on(&mut *self.0.begin_reading().await?, filter).await
    }

    /// Quarantined callbacks that are not settled, newest first, with ids below `before` (index `callbacks_set_aside_open`).
    pub async fn callbacks_set_aside(&self, before: Option<i64>, limit: i64) -> Result<Vec<SetAside>, LedgerError> {
        Ok(sqlx::query_as!(
            SetAside,
            "SELECT id, at, channel, message_id, problem, body FROM callbacks_set_aside
             WHERE settled_at IS NULL AND ($1::bigint IS NULL OR id < $1) ORDER BY id DESC LIMIT $2",
            before,
            limit
        )
        .fetch_all(&mut *self.0.begin_reading().await?)
        .await?)
    }

    /// Marks callbacks as settled by an operator. Returns how many were marked.
    pub async fn settle_set_aside(&self, ids: &[i64], actor: &str) -> Result<u64, LedgerError> {
        let mut tx = self.0.begin().await?;
        let done = sqlx::query!(
            "UPDATE callbacks_set_aside SET settled_at = now() WHERE id = ANY($1) AND num_nulls(settled_at) = 1",
            ids
        )
        .execute(&mut *tx)
        .await?;
        if done.rows_affected() > 0 {
            audit_log::append(&mut tx, actor, "settle callbacks", "callbacks set aside", json!({ "ids": ids })).await?;
            tx.commit().await?;
        }
        Ok(done.rows_affected())
    }
}

/// Payments, newest first: ids rise with time, within the precision of clocks. The index `payments_of_order` has the payments of an order.
/// Payments in flight, and payments that moved no money, have partial indexes. The others are most of the table.
pub(crate) async fn payments_on(
    connection: &mut PgConnection,
    filter: &MoneyFilter,
) -> Result<Vec<MoneyRow>, LedgerError> {
    let rows = sqlx::query_as!(
        MoneyRow,
        "SELECT id, order_id, channel, amount_cents, currency, status, created_at, ended_at, reason AS note FROM payments
         WHERE ($1::uuid IS NULL OR order_id = $1) AND ($2::text IS NULL OR status = $2) AND ($3::uuid IS NULL OR id < $3)
         ORDER BY id DESC LIMIT $4",
        filter.order.map(|order| order.0),
        filter.status,
        filter.before,
        filter.limit
    );
    Ok(rows.fetch_all(connection).await?)
}

/// Refunds, newest first, by the same order and indexes.
pub(crate) async fn refunds_on(
    connection: &mut PgConnection,
    filter: &MoneyFilter,
) -> Result<Vec<MoneyRow>, LedgerError> {
    let rows = sqlx::query_as!(
        MoneyRow,
        r#"SELECT id, order_id, channel, amount_cents, currency, status, created_at, ended_at,
                  cause || ' by ' || asked_by || CASE reason WHEN '' THEN '' ELSE ': ' || reason END AS "note?"
           FROM refunds
           WHERE ($1::uuid IS NULL OR order_id = $1) AND ($2::text IS NULL OR status = $2) AND ($3::uuid IS NULL OR id < $3)
           ORDER BY id DESC LIMIT $4"#,
        filter.order.map(|order| order.0),
        filter.status,
        filter.before,
        filter.limit
    );
    Ok(rows.fetch_all(connection).await?)
}
