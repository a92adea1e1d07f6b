//! Epochs: which fill of Redis purchases are believed under (protocol, rules 10 and 11).

use sqlx::{Executor, PgConnection};
use uuid::Uuid;

use crate::domain::ids::{Epoch, OrderId, SaleId};
use crate::domain::sale::{SaleStatus, Stock};
use crate::ledger::{Ledger, LedgerError};

/// A sale's epoch, and the Redis server it was filled on; no run_id means that it waits to be filled.
#[derive(Debug, Clone)]
pub struct EpochRow {
    pub sale: SaleId,
    pub epoch: Epoch,
    pub run_id: Option<String>,
    /// What its manager decided.
    pub status: SaleStatus,
}

struct Row {
    sale_id: i64,
    epoch: i64,
    run_id: Option<String>,
    status: String,
}

impl TryFrom<Row> for EpochRow {
    type Error = LedgerError;

    fn try_from(row: Row) -> Result<Self, LedgerError> {
        let status = SaleStatus::parse(&row.status).ok_or(LedgerError::Unreadable("sales.status"))?;
        Ok(Self { sale: SaleId::from_db(row.sale_id), epoch: Epoch(row.epoch), run_id: row.run_id, status })
    }
}

/// A ticket as the ledger knows it.
#[derive(Debug, Clone)]
pub struct LedgerTicket {
    pub order: OrderId,
    pub user: String,
    pub units: i64,
    pub live: bool,
}

/// What a sale's Redis is filled from: one moment of the ledger.
#[derive(Debug)]
pub struct FillFrom {
    pub left: Stock,
    /// Waves that `left` contains.
    pub waves: Vec<Uuid>,
    /// Oldest first.
    pub tickets: Vec<LedgerTicket>,
}

impl Ledger {
    /// The epochs of all sales that are kept in Redis: those that ended less than `retire_after_ms` ago.
    pub async fn epochs(&self, retire_after_ms: u64) -> Result<Vec<EpochRow>, LedgerError> {
        let rows = sqlx::query_as!(
            Row,
            "SELECT e.sale_id, e.epoch, e.run_id, s.status FROM sale_epochs e JOIN sales s ON s.id = e.sale_id
             WHERE s.ends_at > now() - $1::bigint * interval '1 ms' ORDER BY e.sale_id",
            retire_after_ms.cast_signed()
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter().map(EpochRow::try_from).collect()
    }

    /// Sales that ended longer ago, and that Redis may still know.
    pub async fn retired(&self, retire_after_ms: u64) -> Result<Vec<EpochRow>, LedgerError> {
        let rows = sqlx::query_as!(
            Row,
            "SELECT e.sale_id, e.epoch, e.run_id, s.status FROM sale_epochs e JOIN sales s ON s.id = e.sale_id
             WHERE e.run_id IS NOT NULL AND s.ends_at <= now() - $1::bigint * interval '1 ms' LIMIT 100",
            retire_after_ms.cast_signed()
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter().map(EpochRow::try_from).collect()
    }

    pub async fn epoch(&self, sale: SaleId) -> Result<Option<EpochRow>, LedgerError> {
        let row = sqlx::query_as!(
            Row,
            "SELECT e.sale_id, e.epoch, e.run_id, s.status FROM sale_epochs e JOIN sales s ON s.id = e.sale_id
             WHERE e.sale_id = $1",
            sale.get()
        )
        .fetch_optional(&self.pool)
        .await?;
        row.map(EpochRow::try_from).transpose()
    }

    /// Raises the epoch: waits for the purchases that hold it shared, and refuses older ones from then on.
    pub async fn raise_epoch(&self, sale: SaleId) -> Result<Epoch, LedgerError> {
        let epoch = sqlx::query_scalar!(
            "UPDATE sale_epochs SET epoch = epoch + 1, run_id = NULL WHERE sale_id = $1 RETURNING epoch",
            sale.get()
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(Epoch(epoch))
    }

    /// Doubts what Redis holds of a sale: it is to be filled anew.
    pub async fn doubt(&self, sale: SaleId, epoch: Epoch) -> Result<(), LedgerError> {
        sqlx::query!("UPDATE sale_epochs SET run_id = NULL WHERE sale_id = $1 AND epoch = $2", sale.get(), epoch.0)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// What is left of each sale that is kept in Redis and at rest: nothing promised, nothing on its way to Redis.
    pub async fn resting(&self, retire_after_ms: u64) -> Result<Vec<(SaleId, Epoch, i64)>, LedgerError> {
        let rows = sqlx::query!(
            "SELECT s.id, e.epoch, s.stock FROM sales s JOIN sale_epochs e ON e.sale_id = s.id
             WHERE s.ends_at > now() - $1::bigint * interval '1 ms' AND s.total_stock <> -1 AND e.run_id IS NOT NULL
               AND NOT EXISTS (SELECT FROM outbox o WHERE o.sale_id = s.id AND o.status <> 'processed'
                               AND o.kind = 'order_placed')
               AND NOT EXISTS (SELECT FROM outbox o WHERE o.sale_id = s.id AND o.status = 'pending'
                               AND o.kind IN ('hold_release', 'wave_release'))",
            retire_after_ms.cast_signed()
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(|r| (SaleId::from_db(r.id), Epoch(r.epoch), r.stock)).collect())
    }

    /// Says on which server the epoch was filled; `false` when another fill has taken over.
    pub async fn record_fill(&self, sale: SaleId, epoch: Epoch, run_id: &str) -> Result<bool, LedgerError> {
        let done = sqlx::query!(
            "UPDATE sale_epochs SET run_id = $3, filled_at = now() WHERE sale_id = $1 AND epoch = $2",
            sale.get(),
            epoch.0,
            run_id
        )
        .execute(&self.pool)
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// What Redis is to be filled with. Call it after `raise_epoch` has committed: then no purchase of an older epoch
    /// can come after this snapshot.
    pub async fn fill_from(&self, sale: SaleId) -> Result<FillFrom, LedgerError> {
        let mut tx = self.pool.begin().await?;
        (&mut *tx).execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let left = left_to_sell(&mut tx, sale).await?;
        let rows = sqlx::query!(
            r#"SELECT id AS "order!", user_id AS "user!", quantity::bigint AS "units!",
                      status NOT IN ('cancelled', 'rejected', 'refunded') AS "live!", created_at AS "at!"
               FROM orders WHERE sale_id = $1
               UNION ALL
               SELECT order_id, user_id, quantity::bigint, true, created_at
               FROM outbox WHERE kind = 'order_placed' AND sale_id = $1 AND status <> 'processed'
               ORDER BY 5, 1"#,
            sale.get()
        )
        .fetch_all(&mut *tx)
        .await?;
        let waves =
            sqlx::query_scalar!("SELECT id FROM sale_waves WHERE sale_id = $1 AND released_at IS NOT NULL", sale.get())
                .fetch_all(&mut *tx)
                .await?;
        let ticket = |(order, user, units, live)| LedgerTicket { order: OrderId(order), user, units, live };
        let tickets = rows.into_iter().map(|r| ticket((r.order, r.user, r.units, r.live))).collect();
        Ok(FillFrom { left, waves, tickets })
    }
}

/// The stock, less what purchases without an order have been promised.
async fn left_to_sell(tx: &mut PgConnection, sale: SaleId) -> Result<Stock, LedgerError> {
    let row = sqlx::query!(
        r#"SELECT stock, (SELECT coalesce(sum(quantity), 0)::bigint FROM outbox
                          WHERE kind = 'order_placed' AND sale_id = $1 AND status <> 'processed') AS "promised!"
           FROM sales WHERE id = $1"#,
        sale.get()
    )
    .fetch_one(tx)
    .await?;
    let left = if row.stock == -1 { -1 } else { (row.stock - row.promised).max(0) };
    Stock::parse(left).map_err(|_| LedgerError::Unreadable("sales.stock"))
}
