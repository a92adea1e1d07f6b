//! The live page's figures of a sale, read in one snapshot within a time limit.

use sqlx::{Executor, PgConnection};

use crate::{LedgerError, Sales};
use seckill_domain::alarm::AlarmKind;
use seckill_domain::ids::SaleId;
use seckill_domain::live::{LedgerFigures, OrderFigures, OutboxFigures};
use seckill_domain::sale::SalePhase;
use seckill_domain::sale_result::SaleResult;

/// Limit of outbox rows per count, and so of index entries read.
const DEPTH_MAX: i64 = 10_000;

/// After a count that took T, there is a pause of 19 T, so that counting takes at most 5 % of PostgreSQL's time.
pub const REST_FACTOR: u32 = 19;

/// A sale of ten million orders is counted within this time. Nobody waits so long: the page shows the result when it is loaded again.
const RESULT_MAX: &str = "SET LOCAL statement_timeout = '30s'";

impl Sales {
    /// A sale's figures; `None` if there is no such sale. Rows are read by key, or by partial indexes (`outbox_due`, `outbox_sent`,
    /// `outbox_parked`, `alarms_open`), at most 10,000 each. Only the sale's orders are counted (`orders_of_sale`,
    /// `purchase_groups_unsettled`), so the caller rests. A purchase in two groups counts twice until one is settled.
    pub async fn live_figures(&self, sale: SaleId) -> Result<Option<LedgerFigures>, LedgerError> {
        let mut tx = self.0.begin_snapshot(&self.0.pool).await?;
        (&mut *tx).execute("SET LOCAL statement_timeout = '2s'").await?;
        let row = sqlx::query!(
            r#"SELECT status, total_stock, stock, starts_at, ends_at, (extract(epoch FROM now()) * 1000)::bigint AS "read_at_ms!",
                 (SELECT coalesce(sum(units), 0)::bigint FROM sale_waves
                  WHERE sale_id = s.id AND released_at IS NULL) AS "held_back!",
                 (SELECT count(*) FROM (SELECT FROM outbox WHERE status = 'pending'
                    AND kind IN ('group_placed', 'group_expire', 'payment_requested') LIMIT $3) AS part) AS "pending!",
                 (SELECT count(*) FROM (SELECT FROM outbox WHERE status = 'pending'
                    AND kind IN ('hold_release', 'wave_release') LIMIT $3) AS part) AS "releasing!",
                 (SELECT count(*) FROM (SELECT FROM outbox WHERE status = 'sent'
                    AND kind = 'group_placed' LIMIT $3) AS part) AS "sent!",
                 (SELECT count(*) FROM (SELECT FROM outbox WHERE status = 'parked' LIMIT $3) AS part) AS "parked!",
                 EXISTS (SELECT FROM alarms WHERE kind = $2 AND subject = 'sale ' || s.id AND cleared_at IS NULL) AS "drift_alarm!"
               FROM sales s WHERE id = $1"#,
            sale.get(),
            AlarmKind::Drift.as_str(),
            DEPTH_MAX
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let (orders, kept_units) = count_orders(&mut tx, sale).await?;
        let status = row.status.parse().map_err(|_| LedgerError::Unreadable("sales.status"))?;
        let [starts_at_ms, ends_at_ms] = [row.starts_at, row.ends_at].map(|at| at.timestamp_millis());
        Ok(Some(LedgerFigures {
            read_at_ms: row.read_at_ms,
            status,
            phase: SalePhase::at(row.read_at_ms, status, starts_at_ms, ends_at_ms),
            total_stock: row.total_stock,
            stock: row.stock,
            held_back_units: row.held_back,
            kept_units,
            orders,
            outbox: OutboxFigures {
                pending: row.pending.min(DEPTH_MAX),
                releasing: row.releasing.min(DEPTH_MAX),
                sent: row.sent.min(DEPTH_MAX),
                parked: row.parked,
            },
            drift_alarm: row.drift_alarm,
        }))
    }

    /// The units and sums of a sale's orders; `None` if there is no such sale. It counts all orders of the sale, so the caller pauses after it.
    pub async fn sale_result(&self, sale: SaleId) -> Result<Option<SaleResult>, LedgerError> {
        let mut tx = self.0.begin_snapshot(&self.0.pool).await?;
        (&mut *tx).execute(RESULT_MAX).await?;
        let read_at = sqlx::query_scalar!(r#"SELECT now() AS "now!" FROM sales WHERE id = $1"#, sale.get());
        let Some(read_at) = read_at.fetch_optional(&mut *tx).await? else { return Ok(None) };
        let (orders, _) = count_orders(&mut tx, sale).await?;
        Ok(Some(SaleResult::of(&orders, read_at.timestamp_millis())))
    }
}

/// The orders of a sale by status, and the units of refunded orders that are not for sale again.
async fn count_orders(tx: &mut PgConnection, sale: SaleId) -> Result<(Vec<OrderFigures>, i64), LedgerError> {
    let counted = sqlx::query!(
        r#"SELECT status AS "status!", count(*) AS "orders!", coalesce(sum(quantity), 0)::bigint AS "units!",
                  coalesce(sum(amount_cents), 0)::bigint AS "amount_cents!",
                  coalesce(sum(quantity) FILTER (WHERE units_kept), 0)::bigint AS "kept!"
           FROM orders WHERE sale_id = $1 GROUP BY status
           UNION ALL
           SELECT 'accepted', coalesce(sum(members), 0)::bigint, coalesce(sum(units), 0)::bigint,
                  coalesce(sum(units), 0)::bigint * (SELECT price_cents FROM sales WHERE id = $1), 0
           FROM purchase_groups WHERE sale_id = $1 AND settled_at IS NULL"#,
        sale.get()
    )
    .fetch_all(tx)
    .await?;
    let kept = counted.iter().map(|row| row.kept).sum();
    let orders = counted.into_iter().map(|row| {
        let status = row.status.parse().map_err(|_| LedgerError::Unreadable("orders.status"))?;
        Ok(OrderFigures { status, orders: row.orders, units: row.units, amount_cents: row.amount_cents })
    });
    Ok((orders.collect::<Result<_, LedgerError>>()?, kept))
}
