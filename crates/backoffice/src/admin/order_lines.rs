//! Orders as lines of a table: `seckill orders`, and the file that the console exports.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;

use super::csv_file::write_csv;
use seckill_postgres::orders::listed::ListedOrder;

#[derive(Debug, Clone, Serialize)]
pub struct OrderLine {
    pub(crate) order_id: String,
    pub(crate) sale_id: i64,
    pub(crate) user: String,
    pub(crate) quantity: i32,
    pub(crate) amount_cents: i64,
    pub(crate) currency: &'static str,
    pub(crate) status: &'static str,
    pub(crate) reason: String,
    pub(crate) created_at: String,
    pub(crate) expires_at: String,
    pub(crate) number: String,
    pub(crate) product: String,
    pub(crate) channel: String,
    pub(crate) paid_at: String,
    pub(crate) refunded_cents: Option<i64>,
    pub(crate) refunded_at: String,
}

const COLUMNS: [&str; 16] = [
    "order_id",
    "sale_id",
    "user",
    "quantity",
    "amount_cents",
    "currency",
    "status",
    "reason",
    "created_at",
    "expires_at",
    "number",
    "product",
    "channel",
    "paid_at",
    "refunded_cents",
    "refunded_at",
];

impl From<&ListedOrder> for OrderLine {
    fn from(listed: &ListedOrder) -> Self {
        let order = &listed.of.order;
        let time_or_none = |ms: Option<i64>| ms.map(time).unwrap_or_default();
        Self {
            order_id: order.order_id.to_string(),
            sale_id: order.sale_id.get(),
            user: listed.of.user_id.clone(),
            quantity: order.quantity,
            amount_cents: order.amount_cents,
            currency: order.currency.code(),
            status: order.status.as_str(),
            reason: order.reason.clone().unwrap_or_default(),
            created_at: time(order.created_at_ms),
            expires_at: time(order.expires_at_ms),
            number: listed.number.clone(),
            product: listed.product.clone(),
            channel: listed.channel.clone().unwrap_or_default(),
            paid_at: time_or_none(listed.paid_at_ms),
            refunded_cents: listed.refunded_at_ms.map(|_| listed.of.order.refunded_cents),
            refunded_at: time_or_none(listed.refunded_at_ms),
        }
    }
}

pub fn time(ms: i64) -> String {
    let time = DateTime::<Utc>::from_timestamp_millis(ms).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// The first line of a file of orders, and the lines of some orders.
pub(crate) fn csv(with_columns: bool, orders: &[ListedOrder]) -> Result<Vec<u8>, csv::Error> {
    let mut lines = Vec::new();
    if with_columns {
        write_csv([COLUMNS].into_iter(), false, &mut lines)?;
    }
    write_csv(orders.iter().map(OrderLine::from), false, &mut lines)?;
    Ok(lines)
}
