//! One order with its history, payments, refunds and messages, in one snapshot, for people.

use chrono::{DateTime, Utc};
use serde::Serialize;
use strum::VariantArray;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::money::lists::{MoneyFilter, MoneyRow, payments_on, refunds_on};
use crate::orders::listed::{ListedOrder, listed};
use crate::orders::read::order_on;
use crate::{LedgerError, Orders};
use seckill_domain::ids::OrderId;
use seckill_domain::message::OutboxKind;

/// Row limit per kind. Only an order with very many failed payments has more.
const ROWS_MAX: i64 = 100;

/// An order with its history.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WholeOrder)]
pub struct OrderDetails {
    pub order: ListedOrder,
    /// Oldest first. Empty for sales that ended long ago: their steps are cleared.
    pub changes: Vec<StatusChange>,
    /// Newest first. Empty, as refunds and messages, for accounts that are not operators.
    pub payments: Vec<MoneyRow>,
    pub refunds: Vec<MoneyRow>,
    /// Messages about the order, its group and its payments, and events that the webhook has not accepted yet. Oldest first.
    pub messages: Vec<OrderMessage>,
}

/// A change of an order's status.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OrderChange)]
pub struct StatusChange {
    #[serde(rename = "at_ms", with = "chrono::serde::ts_milliseconds")]
    #[schema(value_type = i64)]
    pub at: DateTime<Utc>,
    pub from: Option<String>,
    pub to: String,
}

/// A message about an order, with the state of its delivery.
#[derive(Debug, Serialize, ToSchema)]
pub struct OrderMessage {
    pub id: i64,
    pub kind: String,
    /// `pending`, `sent`, `processed` or `parked`.
    pub status: String,
    pub attempts: i32,
    #[serde(rename = "error")]
    pub last_error: Option<String>,
    #[serde(rename = "created_at_ms", with = "chrono::serde::ts_milliseconds")]
    #[schema(value_type = i64)]
    pub created_at: DateTime<Utc>,
}

impl Orders {
    pub async fn order_details(&self, id: OrderId) -> Result<Option<OrderDetails>, LedgerError> {
        let mut tx = self.0.begin_reading().await?;
        let Some(order) = order_on(&mut tx, id).await? else { return Ok(None) };
        let Some(order) = listed(&mut tx, vec![order]).await?.pop() else { return Ok(None) };
        let changes = sqlx::query_as!(
            StatusChange,
            r#"SELECT at, from_status AS "from", to_status AS "to" FROM order_steps WHERE order_id = $1 ORDER BY id LIMIT $2"#,
            id.0,
            ROWS_MAX
        )
        .fetch_all(&mut *tx)
        .await?;
        let of_order = MoneyFilter { order: Some(id), limit: ROWS_MAX, ..MoneyFilter::default() };
        let payments = payments_on(&mut tx, &of_order).await?;
        let refunds = refunds_on(&mut tx, &of_order).await?;
        let group = sqlx::query_scalar!(
            r#"SELECT group_id AS "group!" FROM orders WHERE id = $1
               UNION ALL
               SELECT id FROM purchase_groups WHERE settled_at IS NULL AND order_ids @> ARRAY[$1] AND id <> $1
                 AND NOT EXISTS (SELECT FROM orders WHERE id = $1) LIMIT 1"#,
            id.0
        )
        .fetch_optional(&mut *tx)
        .await?;
        // Messages of a payment or group have its id. All kinds are listed, because the index `outbox_once` begins with the kind.
        let of_others = payments.iter().map(|payment| payment.id).chain(group);
        let about: Vec<Uuid> = std::iter::once(id.0).chain(of_others).collect();
        let kinds: Vec<String> = OutboxKind::VARIANTS.iter().map(OutboxKind::to_string).collect();
        let messages = sqlx::query_as!(
            OrderMessage,
            r#"SELECT id AS "id!", kind AS "kind!", status AS "status!", attempts AS "attempts!", last_error,
                      created_at AS "created_at!"
               FROM (SELECT id, kind, status, attempts, last_error, created_at FROM outbox
                     WHERE kind = ANY($1) AND order_id = ANY($2)
                     UNION ALL
                     SELECT id, 'order_event', status, attempts, last_error, created_at FROM order_events
                     WHERE order_id = $3) AS messages
               ORDER BY id LIMIT $4"#,
            &kinds,
            &about,
            id.0,
            ROWS_MAX
        )
        .fetch_all(&mut *tx)
        .await?;
        Ok(Some(OrderDetails { order, changes, payments, refunds, messages }))
    }
}
