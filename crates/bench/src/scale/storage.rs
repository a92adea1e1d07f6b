//! How many bytes an order takes in PostgreSQL.

use std::fmt::Write;

use anyhow::ensure;
use serde_json::{Map, Value, json};
use sqlx::PgPool;

use crate::series::thousands;

/// Tables whose rows stay as long as the orders; and those that are cleared after days (`retention` of config.default.toml).
const KEPT: [&str; 2] = ["orders", "sale_buyers"];
const CLEARED: [&str; 3] = ["outbox", "order_steps", "processed_messages"];

pub struct Storage {
    orders: i64,
    /// Bytes an order, by table: with indexes, and with what updates have left behind.
    tables: Vec<(&'static str, f64)>,
}

/// Reads the sizes after all purchases are settled.
pub async fn measure(sql: &PgPool) -> anyhow::Result<Storage> {
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(sql).await?;
    ensure!(orders > 0, "there are no orders");
    let mut tables = Vec::new();
    for table in KEPT.into_iter().chain(CLEARED) {
        let size = sqlx::query_scalar("SELECT pg_total_relation_size($1::regclass)").bind(table);
        let bytes: i64 = size.fetch_one(sql).await?;
        tables.push((table, bytes as f64 / orders as f64));
    }
    Ok(Storage { orders, tables })
}

impl Storage {
    fn sum(&self, of: &[&str]) -> f64 {
        self.tables.iter().filter(|(table, _)| of.contains(table)).map(|(_, bytes)| bytes).sum()
    }

    pub fn markdown(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "An unpaid order takes {:.0} bytes in PostgreSQL for as long as it is kept ({}), and {:.0} more until they are cleared \
             ({}), with indexes and with what updates have left behind; of {} orders.\n",
            self.sum(&KEPT),
            KEPT.join(", "),
            self.sum(&CLEARED),
            CLEARED.join(", "),
            thousands(self.orders as f64),
        );
    }

    pub fn json(&self) -> Value {
        let tables = self.tables.iter().map(|(table, bytes)| ((*table).to_owned(), json!(bytes)));
        json!({
            "orders": self.orders,
            "kept_bytes_an_order": self.sum(&KEPT),
            "cleared_bytes_an_order": self.sum(&CLEARED),
            "bytes_an_order_by_table": tables.collect::<Map<_, _>>(),
        })
    }
}
