//! Waves: stock that goes on sale later (protocol, rule 14). Each is released once, in one transaction with the outbox
//! row that carries it to Redis.

use chrono::{DateTime, Utc};
use serde_json::json;
use uuid::Uuid;

use crate::domain::ids::SaleId;
use crate::ledger::audit_log;
use crate::ledger::{Ledger, LedgerError};

/// The newest waves of a sale that are shown. Each addition to the stock is one.
const WAVES_MAX: i64 = 1000;

/// A wave, planned with its sale or added since.
#[derive(Debug, Clone)]
pub struct WaveRow {
    pub units: i32,
    pub due_at: DateTime<Utc>,
    pub released_at: Option<DateTime<Utc>>,
    pub planned: bool,
}

/// What only a sale's manager sees of its terms.
#[derive(Debug, Clone)]
pub struct SalePlan {
    pub refund_returns_stock: bool,
    pub created_at: DateTime<Utc>,
    /// The waves that come last first.
    pub waves: Vec<WaveRow>,
}

impl Ledger {
    /// Adds units to a sale's stock, as a wave that is due at once; `false` when there is no such sale, the sale is
    /// closed, or its stock is unlimited.
    pub async fn add_stock(&self, sale: SaleId, units: i32, actor: &str) -> Result<bool, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let added = sqlx::query!(
            "UPDATE sales SET total_stock = total_stock + $2 WHERE id = $1 AND total_stock <> -1 AND status <> 'closed'",
            sale.get(),
            i64::from(units)
        )
        .execute(&mut *tx)
        .await?;
        if added.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query!("INSERT INTO sale_waves (sale_id, units, due_at) VALUES ($1, $2, now())", sale.get(), units)
            .execute(&mut *tx)
            .await?;
        audit_log::append(&mut tx, actor, "add stock", &format!("sale {sale}"), json!({ "units": units })).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Releases the waves that are due, at most `limit`. Returns how many there were.
    pub async fn release_waves(&self, limit: i64) -> Result<usize, LedgerError> {
        // Waves are rare, and this is asked several times a second: one statement says that there is none.
        let is_due = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM sale_waves WHERE released_at IS NULL AND due_at <= now()) AS "is_due!""#
        );
        if !is_due.fetch_one(&self.pool).await? {
            return Ok(0);
        }
        let mut tx = self.pool.begin().await?;
        let due = sqlx::query!(
            "UPDATE sale_waves SET released_at = now()
             WHERE id IN (SELECT id FROM sale_waves WHERE released_at IS NULL AND due_at <= now()
                          ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED)
             RETURNING id, sale_id, units",
            limit
        )
        .fetch_all(&mut *tx)
        .await?;
        if due.is_empty() {
            return Ok(0);
        }
        let ids: Vec<Uuid> = due.iter().map(|wave| wave.id).collect();
        sqlx::query!(
            "INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard)
             SELECT 'wave_release', id, sale_id, '', units, 0, 0 FROM sale_waves WHERE id = ANY($1)",
            &ids
        )
        .execute(&mut *tx)
        .await?;
        let mut by_sale = std::collections::BTreeMap::<i64, i64>::new();
        for wave in &due {
            *by_sale.entry(wave.sale_id).or_default() += i64::from(wave.units);
        }
        for (sale, units) in by_sale {
            sqlx::query!("UPDATE sales SET stock = stock + $2 WHERE id = $1", sale, units).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(due.len())
    }

    /// What only a sale's manager sees of its terms; `None` when there is no such sale. By key, and `sale_waves_of_sale`.
    pub async fn sale_plan(&self, sale: SaleId) -> Result<Option<SalePlan>, LedgerError> {
        let mut connection = self.pool.acquire().await?;
        let row = sqlx::query!("SELECT refund_returns_stock, created_at FROM sales WHERE id = $1", sale.get());
        let Some(row) = row.fetch_optional(&mut *connection).await? else { return Ok(None) };
        let waves = sqlx::query_as!(
            WaveRow,
            "SELECT units, due_at, released_at, planned FROM sale_waves WHERE sale_id = $1 ORDER BY due_at DESC, id LIMIT $2",
            sale.get(),
            WAVES_MAX
        );
        Ok(Some(SalePlan {
            refund_returns_stock: row.refund_returns_stock,
            created_at: row.created_at,
            waves: waves.fetch_all(&mut *connection).await?,
        }))
    }
}
