//! Selects the sales to check: selling ones, changed ones, and the others in turn. No query here reads all sales.

use super::epochs::{EpochRow, Row};
use crate::{LedgerError, Sales, numbers};
use seckill_domain::ids::SaleId;

const CHANGES_MAX: i64 = 1000;

/// The sales that changed since a catalogue version.
pub struct ChangedSales {
    pub sales: Vec<SaleId>,
    /// The version of the last change in `sales`.
    pub version: i64,
    /// `false` if some changes were cleared.
    pub complete: bool,
}

impl Sales {
    /// The sales with a window that is open, opens within a minute, or closed less than ten minutes ago (index `sales_by_window`).
    pub async fn selling_sales(&self) -> Result<Vec<SaleId>, LedgerError> {
        let ids = sqlx::query_scalar!(
            "SELECT id FROM sales
             WHERE tstzrange(starts_at, ends_at) && tstzrange(now() - interval '10 minutes', now() + interval '1 minute')"
        );
        Ok(ids.fetch_all(&self.0.pool).await?.into_iter().map(SaleId::from_db).collect())
    }

    /// At most `limit` sales in Redis, with ids above `after` (index `sale_epochs_in_redis`).
    pub async fn sales_in_redis(&self, after: SaleId, limit: usize) -> Result<Vec<SaleId>, LedgerError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let ids = sqlx::query_scalar!(
            "SELECT sale_id FROM sale_epochs WHERE in_redis AND sale_id > $1 ORDER BY sale_id LIMIT $2",
            after.get(),
            limit
        );
        Ok(ids.fetch_all(&self.0.pool).await?.into_iter().map(SaleId::from_db).collect())
    }

    /// The sales with terms or status changed since this version, removed ones too.
    pub async fn changed_sales(&self, since: i64) -> Result<ChangedSales, LedgerError> {
        let mut changed = ChangedSales { sales: Vec::new(), version: since, complete: true };
        loop {
            let rows = sqlx::query!(
                "SELECT version, kind, id FROM catalog_changes WHERE version > $1 ORDER BY version LIMIT $2",
                changed.version,
                CHANGES_MAX
            )
            .fetch_all(&self.0.pool)
            .await?;
            let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(changed) };
            // Versions have no gaps, and the newest change is never cleared.
            changed.complete &= first.version == changed.version + 1;
            changed.version = last.version;
            let sales = rows.iter().filter(|row| row.kind == "sale");
            changed.sales.extend(sales.map(|row| SaleId::from_db(row.id)));
            if i64::try_from(rows.len()).unwrap_or(i64::MAX) < CHANGES_MAX {
                return Ok(changed);
            }
        }
    }

    /// The epochs of these sales, and of all that wait for a refill (index `sale_epochs_to_fill`), by id; only of sales in Redis.
    pub async fn epochs_due(&self, sales: &[SaleId], retire_after_ms: u64) -> Result<Vec<EpochRow>, LedgerError> {
        let rows = sqlx::query_as!(
            Row,
            r#"SELECT e.sale_id, e.epoch, e.run_id, s.status, s.shards, s.captcha <> 'none' AS "asks_pass!",
                      v.version AS "version!",
                      s.starts_at < now() + interval '1 minute' AND s.ends_at > now() AS "live!",
                      (extract(epoch FROM now() - s.ends_at) * 1000)::bigint AS "over_ms!"
               FROM (SELECT sale_id FROM sale_epochs WHERE in_redis AND run_id IS NULL
                     UNION SELECT unnest($2::bigint[])) AS due (id)
                 JOIN sale_epochs e ON e.sale_id = due.id JOIN sales s ON s.id = due.id CROSS JOIN catalog_version v
               WHERE s.ends_at > now() - $1::bigint * interval '1 ms'
               ORDER BY e.sale_id"#,
            retire_after_ms.cast_signed(),
            &numbers(sales)
        )
        .fetch_all(&self.0.pool)
        .await?;
        rows.into_iter().map(EpochRow::try_from).collect()
    }
}
