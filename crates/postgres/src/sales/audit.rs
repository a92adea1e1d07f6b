//! Reads a snapshot of one sale for the auditor, with the rows that break an invariant.

use std::collections::{HashMap, HashSet};

use futures_util::TryStreamExt;
use sqlx::Executor;
use uuid::Uuid;

use crate::sales::audit_checks::{CHECKS, Needs};
use crate::{LedgerError, Sales};
use seckill_domain::ids::{Epoch, OrderId, SaleId, Shard, WaveId};

#[derive(Debug, Clone)]
pub struct LedgerSnapshot {
    pub total_stock: i64,
    pub stock: i64,
    pub epoch: Epoch,
    /// The sale ended long ago. Redis has dropped it.
    pub retired: bool,
    /// Units in live orders: pending payment, paid or refunding.
    pub live_units: i64,
    /// Units of purchases without an order.
    pub promised_units: i64,
    /// Ended orders with an unprocessed release of their hold, with their units.
    pub unreleased: HashMap<OrderId, i64>,
    /// Payments and refunds with an unknown outcome.
    pub money_under_way: i64,
    /// Released waves with an unprocessed row, with their units.
    pub unreleased_waves: HashMap<WaveId, i64>,
    /// Orders and purchases that hold units.
    pub live: HashMap<OrderId, LiveOrder>,
    pub unsettled_rows: i64,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone)]
pub struct LiveOrder {
    pub units: i64,
    pub user: String,
    pub shard: Shard,
}

/// A broken invariant, with the rows that show it.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Finding {
    pub invariant: &'static str,
    pub problem: String,
    pub evidence: Vec<String>,
}

const EVIDENCE_MAX: i64 = 20;

impl Sales {
    /// Audits a sale in one snapshot; `None` if there is no such sale.
    pub async fn audit_snapshot(
        &self,
        sale: SaleId,
        overdue_grace_ms: i64,
        retire_after_ms: u64,
    ) -> Result<Option<LedgerSnapshot>, LedgerError> {
        let mut tx = self.0.begin_snapshot(&self.0.pool).await?;
        // This counts all rows of a sale, and searches the whole outbox.
        (&mut *tx).execute("SET LOCAL statement_timeout = '300s'").await?;
        // Right after a rush, the planner still takes these tables for small, and would choose nested loops.
        (&mut *tx).execute("SET LOCAL enable_nestloop = off").await?;
        let row = sqlx::query!(
            r#"SELECT total_stock, stock, e.epoch,
                 ends_at < now() - $2::bigint * interval '1 ms' AS "retired!",
                 cleared_at IS NOT NULL AS "cleared!", steps_cleared_at IS NOT NULL AS "steps_cleared!",
                 (SELECT coalesce(sum(quantity), 0)::bigint FROM orders
                  WHERE sale_id = s.id AND status IN ('pending_payment', 'paid', 'refunding')) AS "live_units!",
                 (SELECT coalesce(sum(quantity), 0)::bigint FROM accepted_purchases
                  WHERE sale_id = s.id) AS "promised_units!",
                 (SELECT coalesce(sum(units), 0)::bigint FROM sale_waves
                  WHERE sale_id = s.id AND released_at IS NULL) AS "held_back!",
                 (SELECT coalesce(sum(quantity), 0)::bigint FROM orders
                  WHERE sale_id = s.id AND units_kept) AS "kept!",
                 (SELECT count(*) FROM payments p JOIN orders o ON o.id = p.order_id
                  WHERE o.sale_id = s.id AND p.status IN ('created', 'sending', 'waiting'))
                 + (SELECT count(*) FROM refunds r JOIN orders o ON o.id = r.order_id
                    WHERE o.sale_id = s.id AND r.status = 'requested') AS "money!",
                 (SELECT count(*) FROM outbox WHERE sale_id = s.id AND status IN ('pending', 'sent')
                    AND kind <> 'payment_requested' AND NOT (kind = 'group_expire' AND status = 'sent')) AS "moving!"
               FROM sales s JOIN sale_epochs e ON e.sale_id = s.id WHERE s.id = $1"#,
            sale.get(),
            retire_after_ms.cast_signed()
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let unreleased = sqlx::query!(
            r#"SELECT o.id AS "order_id!", o.quantity AS "quantity!"
               FROM outbox r CROSS JOIN LATERAL unnest(r.members) AS m (order_id) JOIN orders o ON o.id = m.order_id
               WHERE r.sale_id = $1 AND r.kind = 'hold_release' AND r.status <> 'processed'"#,
            sale.get()
        )
        .fetch_all(&mut *tx)
        .await?;
        let waves = sqlx::query!(
            "SELECT order_id, quantity FROM outbox WHERE sale_id = $1 AND kind = 'wave_release' AND status <> 'processed'",
            sale.get()
        )
        .fetch_all(&mut *tx)
        .await?;
        let live = sqlx::query!(
            r#"SELECT id AS "id!", quantity AS "quantity!", user_id AS "user_id!", shard AS "shard!" FROM orders
               WHERE sale_id = $1 AND status IN ('pending_payment', 'paid', 'refunding')
               UNION ALL
               SELECT order_id, quantity, user_id, shard FROM accepted_purchases WHERE sale_id = $1"#,
            sale.get()
        )
        .fetch_all(&mut *tx)
        .await?;
        let mut findings = Vec::new();
        let (total, stock, in_orders, kept, held_back) =
            (row.total_stock, row.stock, row.live_units, row.kept, row.held_back);
        if total != -1 && stock + in_orders + kept + held_back != total {
            let evidence = format!(
                "total {total}, left {stock}, in live orders {in_orders}, kept {kept}, in unreleased waves {held_back}"
            );
            let problem = "stock left, units in live orders, refunded units that were kept and unreleased waves do not \
                           add up to the total";
            findings.push(Finding { invariant: "I1", problem: problem.into(), evidence: vec![evidence] });
        }
        let is_kept = |needs| match needs {
            Needs::Nothing => true,
            Needs::Messages => !row.cleared,
            Needs::Steps => !row.steps_cleared,
        };
        for check in CHECKS.iter().filter(|check| is_kept(check.needs)) {
            let mut rows: Vec<String> = sqlx::query_scalar(check.rows)
                .bind(sale.get())
                .bind(overdue_grace_ms)
                .bind(EVIDENCE_MAX + 1)
                .fetch_all(&mut *tx)
                .await?;
            if rows.len() > EVIDENCE_MAX as usize {
                rows.pop();
                rows.push("and more".to_owned());
            }
            if !rows.is_empty() {
                findings.push(Finding { invariant: check.invariant, problem: check.problem.into(), evidence: rows });
            }
        }
        Ok(Some(LedgerSnapshot {
            total_stock: row.total_stock,
            stock: row.stock,
            epoch: Epoch(row.epoch),
            retired: row.retired,
            live_units: row.live_units,
            promised_units: row.promised_units,
            money_under_way: row.money,
            unreleased_waves: waves.into_iter().map(|r| (WaveId(r.order_id), r.quantity.into())).collect(),
            unreleased: unreleased.into_iter().map(|r| (OrderId(r.order_id), r.quantity.into())).collect(),
            live: live
                .into_iter()
                .map(|r| {
                    (OrderId(r.id), LiveOrder { units: r.quantity.into(), user: r.user_id, shard: Shard(r.shard) })
                })
                .collect(),
            unsettled_rows: row.moving,
            findings,
        }))
    }

    /// The durable orders among these: an order exists, or an unsettled group contains it. Reads all unsettled groups.
    pub async fn known_orders(&self, sale: SaleId, orders: &[OrderId]) -> Result<HashSet<OrderId>, LedgerError> {
        if orders.is_empty() {
            return Ok(HashSet::new());
        }
        let ids: Vec<Uuid> = orders.iter().map(|order| order.0).collect();
        let asked: HashSet<Uuid> = ids.iter().copied().collect();
        let mut known = HashSet::new();
        // Groups first: a group that is settled meanwhile is found as an order. PostgreSQL would compare each member with each id.
        let mut groups = sqlx::query_scalar!(
            "SELECT order_ids FROM purchase_groups WHERE sale_id = $1 AND settled_at IS NULL",
            sale.get()
        )
        .fetch(&self.0.pool);
        while let Some(members) = groups.try_next().await? {
            known.extend(members.into_iter().filter(|order| asked.contains(order)).map(OrderId));
        }
        drop(groups);
        let rows = sqlx::query_scalar!("SELECT id FROM orders WHERE id = ANY($1)", &ids);
        known.extend(rows.fetch_all(&self.0.pool).await?.into_iter().map(OrderId));
        Ok(known)
    }
}
