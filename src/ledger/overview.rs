//! Reads for the console's overview: current and next sales, open alarms, and the last message.

use crate::domain::ids::SaleId;
use crate::domain::sale::SaleStatus;
use crate::domain::shards::SaleShards;
use crate::ledger::flow::alarms::Alarm;
use crate::ledger::sales::epochs::sharding;
use crate::ledger::{Ledger, LedgerError};

#[derive(Debug, Clone)]
pub struct CurrentSale {
    pub id: SaleId,
    pub shards: SaleShards,
    pub product: String,
    pub status: SaleStatus,
    pub starts_at_ms: i64,
    pub ends_at_ms: i64,
    /// -1: unlimited, as in `stock`.
    pub total_stock: i64,
    /// The unsold units in PostgreSQL. Fulfilment lowers them shortly after Redis.
    pub stock: i64,
}

impl Ledger {
    /// The sales that are neither over nor closed, ordered by start (index `sales_by_end`).
    pub async fn current_sales(&self, limit: i64) -> Result<Vec<CurrentSale>, LedgerError> {
        let rows = sqlx::query!(
            r#"SELECT s.id, p.name AS product, s.status, s.starts_at, s.ends_at, s.total_stock, s.stock, s.shards, s.captcha <> 'none' AS "asks_pass!"
             FROM sales s JOIN products p ON p.id = s.product_id
             WHERE s.ends_at > now() AND s.status <> 'closed' ORDER BY s.starts_at, s.id LIMIT $1"#,
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        let sales = rows.into_iter().map(|row| -> Result<CurrentSale, LedgerError> {
            Ok(CurrentSale {
                id: SaleId::from_db(row.id),
                shards: sharding(row.id, row.shards, row.asks_pass)?,
                product: row.product,
                status: row.status.parse().map_err(|_| LedgerError::Unreadable("sales.status"))?,
                starts_at_ms: row.starts_at.timestamp_millis(),
                ends_at_ms: row.ends_at.timestamp_millis(),
                total_stock: row.total_stock,
                stock: row.stock,
            })
        });
        sales.collect()
    }

    /// The newest open alarms of these kinds (index `alarms_open`).
    pub async fn open_alarms(&self, kinds: &[String], limit: i64) -> Result<Vec<Alarm>, LedgerError> {
        let alarms = sqlx::query_as!(
            Alarm,
            "SELECT id, kind, subject, details, raised_at, cleared_at FROM alarms
             WHERE cleared_at IS NULL AND kind = ANY($1) ORDER BY id DESC LIMIT $2",
            kinds,
            limit
        );
        Ok(alarms.fetch_all(&self.pool).await?)
    }

    pub async fn count_open_alarms(&self, kinds: &[String]) -> Result<i64, LedgerError> {
        let open = sqlx::query_scalar!(
            r#"SELECT count(*) AS "open!" FROM alarms WHERE cleared_at IS NULL AND kind = ANY($1)"#,
            kinds
        );
        Ok(open.fetch_one(&self.pool).await?)
    }

    /// When a worker last finished a message, in ms since the epoch (index `processed_messages_by_age`).
    pub async fn last_message_ms(&self) -> Result<Option<i64>, LedgerError> {
        let last =
            sqlx::query_scalar!("SELECT max(processed_at) FROM processed_messages").fetch_one(&self.pool).await?;
        Ok(last.map(|at| at.timestamp_millis()))
    }
}
