//! Waves: stock that goes on sale later (protocol, rule 14). Each is released once, in one transaction with the outbox
//! row that carries it to Redis.

use serde_json::json;
use uuid::Uuid;

use crate::domain::ids::SaleId;
use crate::ledger::audit_log;
use crate::ledger::{Ledger, LedgerError};

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
}
