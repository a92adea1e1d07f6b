//! A payment or refund, as lists of money and whole orders have it.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::admin::money::MoneyRow;
use crate::domain::ids::OrderId;

/// A payment or refund.
#[derive(Serialize, ToSchema)]
pub(super) struct MoneyLine {
    id: Uuid,
    order_id: OrderId,
    channel: String,
    amount_cents: i64,
    currency: String,
    status: String,
    created_at_ms: i64,
    ended_at_ms: Option<i64>,
    /// Of a payment, why it failed; of a refund, its cause, who asked for it, and why.
    note: Option<String>,
}

impl From<MoneyRow> for MoneyLine {
    fn from(row: MoneyRow) -> Self {
        Self {
            id: row.id,
            order_id: OrderId(row.order_id),
            channel: row.channel,
            amount_cents: row.amount_cents,
            currency: row.currency,
            status: row.status,
            created_at_ms: row.created_at.timestamp_millis(),
            ended_at_ms: row.ended_at.map(|at| at.timestamp_millis()),
            note: row.note,
        }
    }
}
