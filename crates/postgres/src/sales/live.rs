//! The live page's figures of a sale, read in one snapshot within a time limit.

use sqlx::Executor;

use crate::{LedgerError, Sales};
use seckill_domain::alarm::AlarmKind;
use seckill_domain::ids::SaleId;
use seckill_domain::live::{LedgerFigures, OrderFigures, OutboxFigures};

/// Limit of outbox rows per count, and so of index entries read.
const DEPTH_MAX: i64 = 10_000;

/// After a count that took T, there is a pause of 19 T, so that counting takes at most 5 % of PostgreSQL's time.
pub const REST_FACTOR: u32 = 19;

impl Sales {
    /// A sale's figures; `None` if there is no such sale. Rows are read by key, or by partial indexes (`outbox_due`, `outbox_sent`,
    /// `outbox_parked`, `alarms_open`), at most 10,000 each. Only the sale's orders are counted (`orders_of_sale`,
    /// `purchase_groups_unsettled`), so the caller rests. A purchase in two groups counts twice until one is settled.
    pub async fn live_figures(&self, sale: SaleId) -> Result<Option<LedgerFigures>, LedgerError> {
        let mut tx = self.0.begin_snapshot(&self.0.pool).await?;
        (&mut *tx).execute("SET LOCAL statement_timeout = '2s'").await?;
        let row = sqlx::query!(
            r#"SELECT status, total_stock, stock, (extract(epoch FROM now()) * 1000)::bigint AS "read_at_ms!",
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
        let counted = sqlx::query!(
            r#"SELECT status AS "status!", count(*) AS "orders!", coalesce(sum(quantity), 0)::bigint AS "units!",
                      coalesce(sum(quantity) FILTER (WHERE units_kept), 0)::bigint AS "kept!"
               FROM orders WHERE sale_id = $1 GROUP BY status
               UNION ALL
               SELECT 'accepted', coalesce(sum(members), 0)::bigint, coalesce(sum(units), 0)::bigint, 0
               FROM purchase_groups WHERE sale_id = $1 AND settled_at IS NULL"#,
            sale.get()
        )
        .fetch_all(&mut *tx)
        .await?;
        let orders = counted.iter().map(|row| {
            let status = row.status.parse().map_err(|_| LedgerError::Unreadable("orders.status"))?;
            Ok(OrderFigures { status, orders: row.orders, units: row.units })
        });
        Ok(Some(LedgerFigures {
            read_at_ms: row.read_at_ms,
            status: row.status.parse().map_err(|_| LedgerError::Unreadable("sales.status"))?,
            total_stock: row.total_stock,
            stock: row.stock,
            held_back_units: row.held_back,
            kept_units: counted.iter().map(|row| row.kept).sum(),
            orders: orders.collect::<Result<_, LedgerError>>()?,
            outbox: OutboxFigures {
                pending: row.pending.min(DEPTH_MAX),
                releasing: row.releasing.min(DEPTH_MAX),
                sent: row.sent.min(DEPTH_MAX),
                parked: row.parked,
            },
            drift_alarm: row.drift_alarm,
        }))
    }
}
