//! Epochs: a purchase is valid only under the sale's current fill of Redis (protocol, rules 10 and 11).

use sqlx::{AssertSqlSafe, Executor, PgExecutor, Postgres, Transaction};
use uuid::Uuid;

use super::terms::{per_user, shard_count};
use crate::{LedgerError, Sales, numbers};
use seckill_domain::ids::{Epoch, OrderId, SaleId, Shard, Units, WaveId};
use seckill_domain::sale::SaleStatus;
use seckill_domain::shards::SaleShards;
use seckill_domain::stock::Stock;

/// First attempt to lock an epoch's row. Each lock may take 250 ms, all of them 400 ms.
const IN_ROW: &str = "SET LOCAL lock_timeout = '250ms'; SET LOCAL statement_timeout = '400ms'";
/// Second attempt. It queues for the table, and commits of all sales queue behind it. So its time-out is shorter than theirs (250 ms).
const IN_TABLE: &str = "SET LOCAL lock_timeout = '150ms'; LOCK TABLE sale_epochs IN EXCLUSIVE MODE";

const ROW_ATTEMPTS: usize = 4;

/// A sale's epoch, and the run of the Redis server that has it. Without a `run_id`, the sale needs a refill.
#[derive(Debug, Clone)]
pub struct EpochRow {
    pub sale: SaleId,
    pub epoch: Epoch,
    pub run_id: Option<String>,
    pub shards: SaleShards,
    pub status: SaleStatus,
    /// The catalogue version of this status.
    pub version: i64,
    /// Whether the sale starts within a minute or has started, and has not ended.
    pub live: bool,
    over_ms: i64,
}

impl EpochRow {
    /// Whether the sale ended at least `retire_after_ms` ago, so that Redis does not keep it.
    pub fn is_retired(&self, retire_after_ms: u64) -> bool {
        self.over_ms >= retire_after_ms.cast_signed()
    }
}

/// A row of `sale_epochs`, joined with columns of its sale.
pub(super) struct Row {
    pub(super) sale_id: i64,
    pub(super) epoch: i64,
    pub(super) run_id: Option<String>,
    pub(super) status: String,
    pub(super) shards: i16,
    pub(super) asks_pass: bool,
    pub(super) version: i64,
    pub(super) live: bool,
    pub(super) over_ms: i64,
}

impl TryFrom<Row> for EpochRow {
    type Error = LedgerError;

    fn try_from(row: Row) -> Result<Self, LedgerError> {
        let status = row.status.parse().map_err(|_| LedgerError::Unreadable("sales.status"))?;
        let shards = sharding(row.sale_id, row.shards, row.asks_pass)?;
        let Row { epoch, run_id, version, live, over_ms, .. } = row;
        Ok(Self { sale: shards.sale, epoch: Epoch(epoch), run_id, shards, status, version, live, over_ms })
    }
}

pub(crate) fn sharding(sale: i64, shards: i16, asks_pass: bool) -> Result<SaleShards, LedgerError> {
    Ok(SaleShards { sale: SaleId::from_db(sale), count: shard_count(shards)?, asks_pass })
}

/// The shards of a sale, and the lot size in which they get its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShardedSale {
    pub shards: SaleShards,
    pub per_user: Units,
}

#[derive(Debug)]
pub struct RestingSale {
    pub shards: SaleShards,
    pub epoch: Epoch,
    pub left: i64,
}

#[derive(Debug, Clone)]
pub struct LedgerTicket {
    pub order: OrderId,
    pub user: String,
    pub units: i64,
    /// The shard of the units, also after their release.
    pub shard: Shard,
    pub live: bool,
    /// If the hold lapsed: when.
    pub lapsed_at_ms: Option<i64>,
}

/// The contents of a refill, from one snapshot. Tickets are read page by page.
pub struct RefillSnapshot {
    tx: Transaction<'static, Postgres>,
    stock: i64,
    /// The units of purchases without an order, as far as they were read.
    promised: i64,
    /// Waves already in the stock.
    pub waves: Vec<WaveId>,
    /// The statements that are not finished. Each reads a next page.
    unread: &'static [&'static str],
}

impl Sales {
    /// The epochs of all sales that Redis keeps: not ended, or ended less than `retire_after_ms` ago.
    pub async fn epochs(&self, retire_after_ms: u64) -> Result<Vec<EpochRow>, LedgerError> {
        let rows = sqlx::query_as!(
            Row,
            r#"SELECT e.sale_id, e.epoch, e.run_id, s.status, s.shards, s.captcha <> 'none' AS "asks_pass!",
                      v.version AS "version!",
                      s.starts_at < now() + interval '1 minute' AND s.ends_at > now() AS "live!",
                      (extract(epoch FROM now() - s.ends_at) * 1000)::bigint AS "over_ms!"
               FROM sale_epochs e JOIN sales s ON s.id = e.sale_id CROSS JOIN catalog_version v
               WHERE s.ends_at > now() - $1::bigint * interval '1 ms'
               ORDER BY e.sale_id"#,
            retire_after_ms.cast_signed()
        )
        .fetch_all(&self.0.pool)
        .await?;
        rows.into_iter().map(EpochRow::try_from).collect()
    }

    /// The shards of the existing sales among these.
    pub async fn shards_of(&self, sales: &[SaleId]) -> Result<Vec<ShardedSale>, LedgerError> {
        shards_of(&self.0.pool, sales).await
    }

    pub async fn epoch(&self, sale: SaleId) -> Result<Option<EpochRow>, LedgerError> {
        Ok(self.epochs_of(&[sale]).await?.pop())
    }

    /// The epochs of these sales, whether Redis keeps them or not. Unknown sales are left out.
    pub async fn epochs_of(&self, sales: &[SaleId]) -> Result<Vec<EpochRow>, LedgerError> {
        let rows = sqlx::query_as!(
            Row,
            r#"SELECT e.sale_id, e.epoch, e.run_id, s.status, s.shards, s.captcha <> 'none' AS "asks_pass!",
                      v.version AS "version!",
                      s.starts_at < now() + interval '1 minute' AND s.ends_at > now() AS "live!",
                      (extract(epoch FROM now() - s.ends_at) * 1000)::bigint AS "over_ms!"
               FROM sale_epochs e JOIN sales s ON s.id = e.sale_id CROSS JOIN catalog_version v
               WHERE e.sale_id = ANY($1)"#,
            &numbers(sales)
        )
        .fetch_all(&self.0.pool)
        .await?;
        rows.into_iter().map(EpochRow::try_from).collect()
    }

    /// The sales among these that ended at least `retire_after_ms` ago, but may still be in Redis. Few have ended: PostgreSQL reads those first.
    pub async fn retired(&self, sales: &[SaleId], retire_after_ms: u64) -> Result<Vec<EpochRow>, LedgerError> {
        let rows = sqlx::query_as!(
            Row,
            r#"SELECT e.sale_id, e.epoch, e.run_id, s.status, s.shards, s.captcha <> 'none' AS "asks_pass!",
                      v.version AS "version!",
                      s.starts_at < now() + interval '1 minute' AND s.ends_at > now() AS "live!",
                      (extract(epoch FROM now() - s.ends_at) * 1000)::bigint AS "over_ms!"
               FROM sale_epochs e JOIN sales s ON s.id = e.sale_id CROSS JOIN catalog_version v
               WHERE e.in_redis AND e.sale_id = ANY($1) AND s.ends_at <= now() - $2::bigint * interval '1 ms'"#,
            &numbers(sales),
            retire_after_ms.cast_signed()
        )
        .fetch_all(&self.0.pool)
        .await?;
        rows.into_iter().map(EpochRow::try_from).collect()
    }

    /// Records that Redis has dropped a sale, unless a refill has begun meanwhile.
    pub async fn forget_sale(&self, sale: SaleId, epoch: Epoch) -> Result<(), LedgerError> {
        self.0
            .run(sqlx::query!(
                "UPDATE sale_epochs SET run_id = NULL, in_redis = false WHERE sale_id = $1 AND epoch = $2",
                sale.get(),
                epoch.0
            ))
            .await
    }

    /// Raises the epoch, after all transactions that share its row have ended. Later purchases of older epochs are refused. Fails with
    /// `Locked` if a transaction does not release the row in time.
    pub async fn raise_epoch(&self, sale: SaleId) -> Result<Epoch, LedgerError> {
        let mut tx = self.lock_epoch(sale).await?;
        let epoch = sqlx::query_scalar!(
            "UPDATE sale_epochs SET epoch = epoch + 1, run_id = NULL, in_redis = true WHERE sale_id = $1 RETURNING epoch",
            sale.get()
        )
        .fetch_one(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(Epoch(epoch))
    }

    /// Locks an epoch's row. New shared row locks overtake a waiting exclusive one, so the second attempt queues for the table.
    async fn lock_epoch(&self, sale: SaleId) -> Result<Transaction<'static, Postgres>, LedgerError> {
        match self.lock_epoch_by(sale, IN_ROW).await {
            Err(LedgerError::TooSlow(_)) => self.lock_epoch_by(sale, IN_TABLE).await,
            locked => locked,
        }
    }

    /// Locks an epoch's row for a longer transaction: other sales never wait for it. The caller has stopped the sale in Redis, so that
    /// the commits of its purchases come to an end.
    pub(super) async fn lock_epoch_of_stopped(
        &self,
        sale: SaleId,
    ) -> Result<Transaction<'static, Postgres>, LedgerError> {
        for _ in 1..ROW_ATTEMPTS {
            match self.lock_epoch_by(sale, IN_ROW).await {
                Err(LedgerError::TooSlow(_) | LedgerError::Locked) => {}
                locked => return locked,
            }
        }
        self.lock_epoch_by(sale, IN_ROW).await
    }

    async fn lock_epoch_by(
        &self,
        sale: SaleId,
        wait: &'static str,
    ) -> Result<Transaction<'static, Postgres>, LedgerError> {
        let mut tx = self.0.begin().await?;
        (&mut *tx).execute(wait).await?;
        sqlx::query!("SELECT FROM sale_epochs WHERE sale_id = $1 FOR UPDATE", sale.get()).execute(&mut *tx).await?;
        Ok(tx)
    }

    /// Requests a refill of the sale, unless its epoch was raised meanwhile.
    pub async fn request_refill(&self, sale: SaleId, epoch: Epoch) -> Result<(), LedgerError> {
        self.0
            .run(sqlx::query!(
                "UPDATE sale_epochs SET run_id = NULL WHERE sale_id = $1 AND epoch = $2",
                sale.get(),
                epoch.0
            ))
            .await
    }

    /// The sales in Redis, among these, without pending work: no purchase without an order, and no release on its way to Redis.
    /// `OFFSET 0` keeps the searches separate: joined, PostgreSQL 18 reads the backlog of all sales.
    pub async fn resting(&self, sales: &[SaleId], retire_after_ms: u64) -> Result<Vec<RestingSale>, LedgerError> {
        let rows = sqlx::query!(
            r#"SELECT s.id, s.shards, s.captcha <> 'none' AS "asks_pass!", e.epoch, s.stock FROM sales s JOIN sale_epochs e ON e.sale_id = s.id
             WHERE s.id = ANY($2)
               AND s.ends_at > now() - $1::bigint * interval '1 ms' AND s.total_stock <> -1 AND e.run_id IS NOT NULL
               AND NOT EXISTS (SELECT FROM purchase_groups g WHERE g.sale_id = s.id AND g.settled_at IS NULL OFFSET 0)
               AND NOT EXISTS (SELECT FROM outbox o WHERE o.sale_id = s.id AND o.status = 'pending'
                               AND o.kind IN ('hold_release', 'wave_release') OFFSET 0)"#,
            retire_after_ms.cast_signed(),
            &numbers(sales)
        )
        .fetch_all(&self.0.pool)
        .await?;
        let resting = rows.into_iter().map(|row| {
            let shards = sharding(row.id, row.shards, row.asks_pass)?;
            Ok(RestingSale { shards, epoch: Epoch(row.epoch), left: row.stock })
        });
        resting.collect()
    }

    /// Records the server that has the fill. Returns `false` if another refill has taken over.
    pub async fn record_fill(&self, sale: SaleId, epoch: Epoch, run_id: &str) -> Result<bool, LedgerError> {
        let mut tx = self.lock_epoch(sale).await?;
        let done = sqlx::query!(
            "UPDATE sale_epochs SET run_id = $3, filled_at = now() WHERE sale_id = $1 AND epoch = $2",
            sale.get(),
            epoch.0,
            run_id
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(done.rows_affected() == 1)
    }

    pub async fn has_orders(&self, sale: SaleId, more_than: i64) -> Result<bool, LedgerError> {
        let found = sqlx::query_scalar!(
            r#"SELECT count(*) > $2::bigint AS "more!" FROM (SELECT FROM orders WHERE sale_id = $1 LIMIT $2::bigint + 1) AS part"#,
            sale.get(),
            more_than
        );
        Ok(found.fetch_one(&self.0.pool).await?)
    }

    /// Begins to read a refill. After `raise_epoch`, no purchase of an older epoch can commit after this snapshot.
    pub async fn refill_snapshot(&self, sale: SaleId) -> Result<RefillSnapshot, LedgerError> {
        let mut tx = self.0.begin().await?;
        // The first page sorts all purchases of the sale, which may be millions.
        (&mut *tx)
            .execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 0")
            .await?;
        let stock =
            sqlx::query_scalar!("SELECT stock FROM sales WHERE id = $1", sale.get()).fetch_one(&mut *tx).await?;
        let waves =
            sqlx::query_scalar!("SELECT id FROM sale_waves WHERE sale_id = $1 AND released_at IS NOT NULL", sale.get())
                .fetch_all(&mut *tx)
                .await?;
        // Cursors read any number of tickets by pages. DECLARE takes no bind parameters, but a sale's id is a number, so it is safe.
        let orders = format!(
            "DECLARE orders_tickets NO SCROLL CURSOR FOR
             SELECT o.id, o.user_id, o.quantity::bigint, o.shard, o.status NOT IN ('cancelled', 'rejected', 'refunded'),
                    CASE WHEN o.status = 'cancelled' THEN (
                      SELECT (extract(epoch FROM l.lapsed_at) * 1000)::bigint FROM lapsed_holds l WHERE l.order_id = o.id)
                    END
             FROM orders o WHERE o.sale_id = {sale} ORDER BY o.created_at"
        );
        let purchases = format!(
            "DECLARE purchase_tickets NO SCROLL CURSOR FOR
             SELECT order_id, user_id, quantity::bigint, shard, true, NULL::bigint FROM accepted_purchases WHERE sale_id = {sale}"
        );
        for declare in [orders, purchases] {
            (&mut *tx).execute(AssertSqlSafe(declare)).await?;
        }
        let waves = waves.into_iter().map(WaveId).collect();
        Ok(RefillSnapshot {
            tx,
            stock,
            promised: 0,
            waves,
            unread: &["FETCH 5000 FROM orders_tickets", "FETCH 5000 FROM purchase_tickets"],
        })
    }
}

impl RefillSnapshot {
    /// The next page of tickets. Tickets of orders come first, oldest first, then those of purchases without an order. Empty at the end.
    pub async fn next_tickets(&mut self) -> Result<Vec<LedgerTicket>, LedgerError> {
        while let Some((page, later)) = self.unread.split_first() {
            let rows: Vec<(Uuid, String, i64, i16, bool, Option<i64>)> =
                sqlx::query_as(*page).persistent(false).fetch_all(&mut *self.tx).await?;
            if !rows.is_empty() {
                if later.is_empty() {
                    self.promised += rows.iter().map(|(_, _, units, ..)| units).sum::<i64>();
                }
                let ticket = |(order, user, units, shard, live, lapsed_at_ms)| LedgerTicket {
                    order: OrderId(order),
                    user,
                    units,
                    shard: Shard(shard),
                    live,
                    lapsed_at_ms,
                };
                return Ok(rows.into_iter().map(ticket).collect());
            }
            self.unread = later;
        }
        Ok(Vec::new())
    }

    /// The unsold units, after all tickets were read: the stock, less the units of purchases without an order. Each purchase counts once.
    pub fn left(&self) -> Result<Stock, LedgerError> {
        let left = if self.stock == -1 { -1 } else { (self.stock - self.promised).max(0) };
        Stock::parse(left).map_err(|_| LedgerError::Unreadable("sales.stock"))
    }
}

/// The shards of the existing sales among these.
pub(crate) async fn shards_of(with: impl PgExecutor<'_>, sales: &[SaleId]) -> Result<Vec<ShardedSale>, LedgerError> {
    if sales.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query!(
        r#"SELECT id, shards, per_user, captcha <> 'none' AS "asks_pass!" FROM sales WHERE id = ANY($1)"#,
        &numbers(sales)
    );
    let of = rows.fetch_all(with).await?.into_iter().map(|row| {
        let shards = sharding(row.id, row.shards, row.asks_pass)?;
        Ok(ShardedSale { shards, per_user: per_user(row.per_user)? })
    });
    of.collect()
}
