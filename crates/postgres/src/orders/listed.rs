//! Orders as people read them: with the product's name, and with what was paid and refunded.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::LedgerError;
use crate::orders::read::OwnedOrder;

/// An order of a list, with its product and its money.
#[derive(Debug, Clone, serde::Serialize, utoipa::ToSchema)]
pub struct ListedOrder {
    #[serde(flatten)]
    pub of: OwnedOrder,
    /// What buyers see of the order's id: its last 8 characters.
    #[schema(min_length = 8, max_length = 8)]
    pub number: String,
    pub product: String,
    /// The payment channel that paid it. Null until it is paid, as the next field. Both are null for accounts that are not operators.
    pub channel: Option<String>,
    pub paid_at_ms: Option<i64>,
    /// When it was given back. Null without a refund, and for accounts that are not operators.
    pub refunded_at_ms: Option<i64>,
}

impl ListedOrder {
    pub fn hide_money(&mut self) {
        (self.channel, self.paid_at_ms, self.refunded_at_ms, self.of.order.payment) = (None, None, None, None);
    }
}

struct MoneyOfOrder {
    channel: String,
    paid_at: Option<DateTime<Utc>>,
    refunded_at: Option<DateTime<Utc>>,
}

/// Adds products and money, by the keys of sales, payments (`payments_one_pays`) and refunds (`refunds_once`). Money that came for an order
/// that was paid or over already, and went back, is no part of it.
pub(super) async fn listed(tx: &mut PgConnection, orders: Vec<OwnedOrder>) -> Result<Vec<ListedOrder>, LedgerError> {
    let mut sales: Vec<i64> = orders.iter().map(|owned| owned.order.sale_id.get()).collect();
    sales.sort_unstable();
    sales.dedup();
    let products = sqlx::query!(
        "SELECT s.id, p.name FROM sales s JOIN products p ON p.id = s.product_id WHERE s.id = ANY($1)",
        &sales
    );
    let products = products.fetch_all(&mut *tx).await?;
    let products: HashMap<i64, String> = products.into_iter().map(|row| (row.id, row.name)).collect();
    let ids: Vec<Uuid> = orders.iter().map(|owned| owned.order.order_id.0).collect();
    let money = sqlx::query!(
        r#"SELECT p.order_id, p.channel, p.ended_at AS paid_at, r.ended_at AS "refunded_at?"
           FROM payments p LEFT JOIN refunds r ON r.payment_id = p.id AND r.status || '' = 'succeeded'
           WHERE p.order_id = ANY($1) AND p.pays"#,
        &ids
    );
    let money = money.fetch_all(tx).await?.into_iter().map(|row| {
        let of = MoneyOfOrder { channel: row.channel, paid_at: row.paid_at, refunded_at: row.refunded_at };
        (row.order_id, of)
    });
    let mut money: HashMap<Uuid, MoneyOfOrder> = money.collect();
    let ms = |at: DateTime<Utc>| at.timestamp_millis();
    let listed = orders.into_iter().map(|of| {
        let money = money.remove(&of.order.order_id.0);
        ListedOrder {
            number: of.order.order_id.number(),
            product: products.get(&of.order.sale_id.get()).cloned().unwrap_or_default(),
            paid_at_ms: money.as_ref().and_then(|money| money.paid_at.map(ms)),
            refunded_at_ms: money.as_ref().and_then(|money| money.refunded_at.map(ms)),
            channel: money.map(|money| money.channel),
            of,
        }
    });
    Ok(listed.collect())
}
