//! Reads for the console's overview: current and next sales, the number of open alarms, and the last message.

use crate::sales::terms::{SaleFigures, figures_of};
use crate::{Database, LedgerError};

impl Database {
    /// The sales that are neither over nor closed, ordered by start (index `sales_by_end`).
    pub async fn current_sales(&self, limit: i64) -> Result<Vec<SaleFigures>, LedgerError> {
        let mut tx = self.begin_snapshot(&self.pool).await?;
        let ids = sqlx::query_scalar!(
            "SELECT id FROM sales WHERE ends_at > now() AND status <> 'closed' ORDER BY starts_at, id LIMIT $1",
            limit
        );
        let ids = ids.fetch_all(&mut *tx).await?;
        let mut sales = figures_of(&mut tx, &ids).await?;
        sales.sort_unstable_by_key(|figures| (figures.sale.starts_at_ms, figures.sale.id));
        Ok(sales)
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
