//! Waves: stock that goes on sale later (protocol, rule 14). Each is released once, in one transaction with the outbox row for Redis.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::json;
use uuid::Uuid;

use crate::{LedgerError, Sales, audit_log, numbers};
use seckill_domain::ids::{IdempotencyKey, SaleId};

/// How many of a sale's newest waves are shown. Each addition to the stock is a wave.
const WAVES_MAX: i64 = 1000;

/// Stock that goes on sale at one moment.
#[derive(Debug, Clone, serde::Serialize, utoipa::ToSchema)]
#[schema(as = ManagedWave)]
pub struct WaveRow {
    pub units: i32,
    #[serde(rename = "due_at_ms", with = "chrono::serde::ts_milliseconds")]
    #[schema(value_type = i64)]
    pub due_at: DateTime<Utc>,
    /// Null while the units are not for sale.
    #[serde(rename = "released_at_ms", with = "chrono::serde::ts_milliseconds_option")]
    #[schema(value_type = Option<i64>)]
    pub released_at: Option<DateTime<Utc>>,
    /// Whether buyers were told of it in advance.
    pub planned: bool,
}

#[derive(Debug)]
pub struct DueWaves {
    pub sales: BTreeSet<SaleId>,
    /// The time until the next wave, if within a second.
    pub next_in: Option<Duration>,
}

/// The outcome of a request to add stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StockAdded {
    Now,
    /// An earlier request with the same key has added the units.
    Before,
    /// An earlier request with the same key has added another number of units.
    OtherUnits,
    /// The sale does not exist, is closed, or has unlimited stock.
    Impossible,
}

#[derive(Debug, Clone)]
pub struct SalePlan {
    pub refund_returns_stock: bool,
    pub created_at: DateTime<Utc>,
    /// Latest first.
    pub waves: Vec<WaveRow>,
}

impl Sales {
    /// Adds a wave that is due now. A repeat with the same key adds nothing.
    pub async fn add_stock(
        &self,
        sale: SaleId,
        units: i32,
        key: Option<&IdempotencyKey>,
        actor: &str,
    ) -> Result<StockAdded, LedgerError> {
        let (mut tx, key) = (self.0.begin().await?, key.map(IdempotencyKey::as_str));
        // Before the search for the key: of two repeats at once, the later one finds the wave of the other.
        sqlx::query!("SELECT FROM sales WHERE id = $1 FOR NO KEY UPDATE", sale.get()).execute(&mut *tx).await?;
        let before = sqlx::query_scalar!(
            "SELECT units FROM sale_waves WHERE sale_id = $1 AND idempotency_key = $2",
            sale.get(),
            key
        );
        match before.fetch_optional(&mut *tx).await? {
            Some(before) if before == units => return Ok(StockAdded::Before),
            Some(_) => return Ok(StockAdded::OtherUnits),
            None => {}
        }
        let added = sqlx::query!(
            "UPDATE sales SET total_stock = total_stock + $2
             WHERE id = $1 AND total_stock <> -1 AND total_stock + $2 <= 1000000000000 AND status <> 'closed'",
            sale.get(),
            i64::from(units)
        )
        .execute(&mut *tx)
        .await?;
        if added.rows_affected() == 0 {
            return Ok(StockAdded::Impossible);
        }
        sqlx::query!(
            "INSERT INTO sale_waves (sale_id, units, due_at, idempotency_key) VALUES ($1, $2, now(), $3)",
            sale.get(),
            units,
            key
        )
        .execute(&mut *tx)
        .await?;
        audit_log::append(&mut tx, actor, "add stock", &format!("sale {sale}"), json!({ "units": units })).await?;
        tx.commit().await?;
        Ok(StockAdded::Now)
    }

    /// The sales with due waves, among the first `limit` waves of the next second (index `sale_waves_to_release`).
    pub async fn due_waves(&self, limit: i64, without: &[SaleId]) -> Result<DueWaves, LedgerError> {
        let waves = sqlx::query!(
            r#"SELECT sale_id, ceil(extract(epoch FROM due_at - now()) * 1000)::bigint AS "in_ms!" FROM sale_waves
               WHERE released_at IS NULL AND due_at <= now() + interval '1 second' AND sale_id <> ALL($2)
               ORDER BY due_at LIMIT $1"#,
            limit,
            &numbers(without)
        )
        .fetch_all(&self.0.pool)
        .await?;
        let later = waves.iter().map(|wave| wave.in_ms).find(|in_ms| *in_ms > 0);
        let due = waves.iter().filter(|wave| wave.in_ms <= 0);
        Ok(DueWaves {
            sales: due.map(|wave| SaleId::from_db(wave.sale_id)).collect(),
            next_in: later.map(|in_ms| Duration::from_millis(in_ms.unsigned_abs())),
        })
    }

    /// Releases the due waves of a sale. Returns their number.
    pub async fn release_waves(&self, sale: SaleId) -> Result<usize, LedgerError> {
        let mut tx = self.0.begin().await?;
        let due = sqlx::query!(
            "UPDATE sale_waves SET released_at = now()
             WHERE id IN (SELECT id FROM sale_waves WHERE sale_id = $1 AND released_at IS NULL AND due_at <= now()
                          FOR UPDATE SKIP LOCKED)
             RETURNING id, units",
            sale.get()
        )
        .fetch_all(&mut *tx)
        .await?;
        if due.is_empty() {
            return Ok(0);
        }
        let ids: Vec<Uuid> = due.iter().map(|wave| wave.id).collect();
        sqlx::query!(
            "INSERT INTO outbox (kind, order_id, sale_id, quantity, shard)
             SELECT 'wave_release', id, sale_id, units, 0 FROM sale_waves WHERE id = ANY($1)",
            &ids
        )
        .execute(&mut *tx)
        .await?;
        let units: i64 = due.iter().map(|wave| i64::from(wave.units)).sum();
        sqlx::query!("UPDATE sales SET stock = stock + $2 WHERE id = $1", sale.get(), units).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(due.len())
    }

    /// The terms that only a sale's manager sees; `None` if there is no such sale. By key, and `sale_waves_once`.
    pub async fn sale_plan(&self, sale: SaleId) -> Result<Option<SalePlan>, LedgerError> {
        let mut connection = self.0.pool.acquire().await?;
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
