//! Orders as lines of a table: `seckill orders`, and the file that the console exports.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;

use seckill_postgres::orders::read::OwnedOrder;

#[derive(Debug, Clone, Serialize)]
pub struct OrderLine {
    pub(crate) order_id: String,
    pub(crate) sale_id: i64,
    pub(crate) user: String,
    pub(crate) quantity: i32,
    pub(crate) amount_cents: i64,
    pub(crate) status: &'static str,
    pub(crate) reason: String,
    pub(crate) created_at: String,
    pub(crate) expires_at: String,
}

const COLUMNS: [&str; 9] =
    ["order_id", "sale_id", "user", "quantity", "amount_cents", "status", "reason", "created_at", "expires_at"];

impl From<&OwnedOrder> for OrderLine {
    fn from(owned: &OwnedOrder) -> Self {
        let order = &owned.order;
        Self {
            order_id: order.order_id.to_string(),
            sale_id: order.sale_id.get(),
            user: owned.user_id.clone(),
            quantity: order.quantity,
            amount_cents: order.amount_cents,
            status: order.status.as_str(),
            reason: order.reason.clone().unwrap_or_default(),
            created_at: time(order.created_at_ms),
            expires_at: time(order.expires_at_ms),
        }
    }
}

pub fn time(ms: i64) -> String {
    let time = DateTime::<Utc>::from_timestamp_millis(ms).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// The first line of a file of orders, and the lines of some orders: CSV (RFC 4180) in which no cell is a formula.
pub(crate) fn csv(with_columns: bool, orders: &[OwnedOrder]) -> Result<Vec<u8>, csv::Error> {
    let mut terms = csv::WriterBuilder::new();
    let mut lines = terms.has_headers(false).terminator(csv::Terminator::CRLF).from_writer(Vec::new());
    if with_columns {
        lines.write_record(COLUMNS)?;
    }
    for order in orders {
        let line = OrderLine::from(order);
        lines.serialize(OrderLine { user: no_formula(line.user), reason: no_formula(line.reason), ..line })?;
    }
    lines.into_inner().map_err(|error| error.into_error().into())
}

/// Spreadsheets calculate a cell that begins so, and a formula can call programs and send data away. With an apostrophe before it
/// the cell is a text. A cell that has one itself gets another: so different buyers stay different.
fn no_formula(cell: String) -> String {
    if cell.starts_with(['=', '+', '-', '@', '\'', '\t', '\r', '\n']) { format!("'{cell}") } else { cell }
}
