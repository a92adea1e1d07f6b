//! What the auditor reads: a snapshot of one sale, and the rows that break an invariant.

use std::collections::{HashMap, HashSet};

use futures_util::TryStreamExt;
use sqlx::Executor;
use uuid::Uuid;

use crate::domain::ids::{Epoch, OrderId, SaleId, Shard, WaveId};
use crate::ledger::{Ledger, LedgerError};

/// One sale's numbers, all from one snapshot.
#[derive(Debug, Clone)]
pub struct LedgerSnapshot {
    pub total_stock: i64,
    pub stock: i64,
    pub epoch: Epoch,
    /// The sale ended long ago, and Redis no longer keeps it.
    pub retired: bool,
    /// Units in orders that hold them: pending payment, paid, being refunded.
    pub live_units: i64,
    /// Units of purchases that have no order yet.
    pub promised_units: i64,
    /// Ended orders whose hold release is not processed, with their units.
    pub unreleased: HashMap<OrderId, i64>,
    /// Units of waves that are not released yet.
    pub held_back: i64,
    /// Payments and refunds whose outcome is not known yet.
    pub money_under_way: i64,
    /// Released waves whose row is not processed, with their units.
    pub unreleased_waves: HashMap<WaveId, i64>,
    /// Orders and purchases that hold units, with their units.
    pub live: HashMap<OrderId, LiveOrder>,
    /// Outbox rows that are not settled.
    pub unsettled_rows: i64,
    /// Invariants that do not hold.
    pub findings: Vec<Finding>,
}

/// An order or a purchase that holds units.
#[derive(Debug, Clone)]
pub struct LiveOrder {
    pub units: i64,
    pub user: String,
    /// The shard that holds them.
    pub shard: Shard,
}

/// An invariant that does not hold, and the rows that show it.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Finding {
    pub invariant: &'static str,
    pub problem: String,
    pub evidence: Vec<String>,
}

/// How many rows each finding shows.
const EVIDENCE_MAX: i64 = 20;

impl Ledger {
    /// Audits a sale in one snapshot; `None` when there is no such sale.
    pub async fn audit_snapshot(
        &self,
        sale: SaleId,
        overdue_grace_ms: i64,
        retire_after_ms: u64,
    ) -> Result<Option<LedgerSnapshot>, LedgerError> {
        let mut tx = self.begin().await?;
        (&mut *tx).execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        // Right after a rush the planner's statistics still say that these tables are small: it would join them row by
        // row.
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
                    AND kind <> 'payment_requested' AND NOT (kind IN ('order_expire', 'group_expire') AND status = 'sent')) AS "moving!"
               FROM sales s JOIN sale_epochs e ON e.sale_id = s.id WHERE s.id = $1"#,
            sale.get(),
            retire_after_ms.cast_signed()
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let unreleased = sqlx::query!(
            r#"SELECT order_id AS "order_id!", quantity AS "quantity!" FROM outbox
               WHERE sale_id = $1 AND kind = 'hold_release' AND status <> 'processed'
               UNION ALL
               SELECT o.id, o.quantity FROM outbox r CROSS JOIN LATERAL unnest(r.members) AS m (order_id)
               JOIN orders o ON o.id = m.order_id
               WHERE r.sale_id = $1 AND r.kind = 'group_release' AND r.status <> 'processed'"#,
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
        stock_adds_up(row.total_stock, row.stock, row.live_units, row.kept, row.held_back, &mut findings);
        let is_kept = |needs| match needs {
            Needs::Nothing => true,
            Needs::Messages => !row.cleared,
            Needs::Steps => !row.steps_cleared,
        };
        for check in CHECKS.iter().filter(|check| is_kept(check.needs)) {
            let rows: Vec<String> = sqlx::query_scalar(check.rows)
                .bind(sale.get())
                .bind(overdue_grace_ms)
                .bind(EVIDENCE_MAX)
                .fetch_all(&mut *tx)
                .await?;
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
            held_back: row.held_back,
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

    /// Returns those of the orders of a sale that are durable: they have a purchase row, an order, or a place in a group row, all of which
    /// are looked through that are not settled.
    pub async fn known_orders(&self, sale: SaleId, orders: &[OrderId]) -> Result<HashSet<OrderId>, LedgerError> {
        if orders.is_empty() {
            return Ok(HashSet::new());
        }
        let ids: Vec<Uuid> = orders.iter().map(|order| order.0).collect();
        let asked: HashSet<Uuid> = ids.iter().copied().collect();
        let mut known = HashSet::new();
        // Groups first: what is settled meanwhile is found as an order. PostgreSQL would compare each member with each id.
        let mut groups = sqlx::query_scalar!(
            "SELECT order_ids FROM purchase_groups WHERE sale_id = $1 AND settled_at IS NULL",
            sale.get()
        )
        .fetch(&self.pool);
        while let Some(members) = groups.try_next().await? {
            known.extend(members.into_iter().filter(|order| asked.contains(order)).map(OrderId));
        }
        drop(groups);
        let rows = sqlx::query_scalar!(
            r#"SELECT order_id AS "order_id!" FROM outbox WHERE kind = 'order_placed' AND order_id = ANY($1)
               UNION SELECT id FROM orders WHERE id = ANY($1)"#,
            &ids
        );
        known.extend(rows.fetch_all(&self.pool).await?.into_iter().map(OrderId));
        Ok(known)
    }
}

fn stock_adds_up(total: i64, stock: i64, live: i64, kept: i64, held_back: i64, findings: &mut Vec<Finding>) {
    if total != -1 && stock + live + kept + held_back != total {
        findings.push(Finding {
            invariant: "I1",
            problem:
                "stock left, units in live orders, refunded units that were kept and unreleased waves do not add up to the total"
                    .into(),
            evidence: vec![format!(
                "total {total}, left {stock}, in live orders {live}, kept {kept}, in unreleased waves {held_back}"
            )],
        });
    }
}

/// What a check reads beside orders and money, which are kept for ever.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// Rows of the outbox, which are cleared some days after a sale's end.
    Messages,
    /// The steps of orders, which are cleared later.
    Steps,
}

/// A query that must return no rows. $1 is the sale, $2 a grace in milliseconds, $3 the most rows to return.
struct Check {
    invariant: &'static str,
    needs: Needs,
    problem: &'static str,
    rows: &'static str,
}

const CHECKS: [Check; 17] = [
    Check {
        invariant: "I2",
        needs: Needs::Nothing,
        problem: "a buyer holds more live units than the sale allows",
        rows: "SELECT format('user %s holds %s of at most %s', o.user_id, sum(quantity), max(s.per_user))
               FROM orders o JOIN sales s ON s.id = o.sale_id
               WHERE o.sale_id = $1 AND o.status IN ('pending_payment', 'paid', 'refunding') AND $2::bigint IS NOT NULL
               GROUP BY o.user_id HAVING sum(quantity) > max(s.per_user) LIMIT $3",
    },
    Check {
        invariant: "I2",
        needs: Needs::Nothing,
        problem: "a buyer's counter differs from the units of the buyer's live orders",
        rows: "SELECT format('user %s: counter %s, live units %s', user_id, coalesce(b.units, 0), coalesce(o.units, 0))
               FROM (SELECT user_id, units FROM sale_buyers WHERE sale_id = $1) b
               FULL JOIN (SELECT user_id, sum(quantity) AS units FROM orders
                          WHERE sale_id = $1 AND status IN ('pending_payment', 'paid', 'refunding') GROUP BY 1) o
               USING (user_id) WHERE coalesce(b.units, 0) <> coalesce(o.units, 0) AND $2::bigint IS NOT NULL LIMIT $3",
    },
    Check {
        invariant: "I3",
        needs: Needs::Nothing,
        problem: "an unpaid order is past its deadline",
        rows: "SELECT format('order %s, due %s', id, expires_at) FROM orders
               WHERE sale_id = $1 AND status = 'pending_payment'
                 AND coalesce(wait_until, expires_at) < now() - $2::bigint * interval '1 ms' LIMIT $3",
    },
    Check {
        invariant: "I3",
        needs: Needs::Messages,
        problem: "a processed purchase has no order",
        rows: "SELECT format('purchase %s of user %s', p.order_id, p.user_id)
               FROM (SELECT order_id, user_id FROM outbox
                     WHERE sale_id = $1 AND kind = 'order_placed' AND status = 'processed'
                     UNION ALL
                     SELECT m.order_id, m.user_id FROM purchase_groups g
                     CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids) AS m (order_id, user_id)
                     WHERE g.sale_id = $1 AND g.settled_at IS NOT NULL AND NOT g.was_split) AS p
               WHERE $2::bigint IS NOT NULL AND NOT EXISTS (SELECT FROM orders o WHERE o.id = p.order_id) LIMIT $3",
    },
    Check {
        invariant: "I3",
        needs: Needs::Messages,
        problem: "an order has no record of its purchase, or one of another sale, buyer or quantity",
        rows: "SELECT format('order %s of user %s', o.id, o.user_id) FROM orders o
               WHERE o.sale_id = $1 AND $2::bigint IS NOT NULL
                 AND NOT EXISTS (
                   SELECT FROM outbox p WHERE p.kind = 'order_placed' AND p.order_id = o.id AND p.status = 'processed'
                     AND p.sale_id = o.sale_id AND p.user_id = o.user_id AND p.quantity = o.quantity AND o.group_id IS NULL)
                 AND NOT EXISTS (
                   SELECT FROM (SELECT g.id, m.order_id, m.user_id, m.quantity FROM purchase_groups g
                                CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids, g.quantities)
                                                   AS m (order_id, user_id, quantity)
                                WHERE g.sale_id = $1 AND g.settled_at IS NOT NULL AND NOT g.was_split) AS p
                   WHERE p.id = o.group_id AND p.order_id = o.id AND p.user_id = o.user_id AND p.quantity = o.quantity)
               LIMIT $3",
    },
    Check {
        invariant: "I3",
        needs: Needs::Messages,
        problem: "a purchase stands twice in group rows",
        rows: "SELECT format('order %s, %s times', m.order_id, count(*)) FROM purchase_groups g
               CROSS JOIN LATERAL unnest(g.order_ids) AS m (order_id)
               WHERE g.sale_id = $1 AND $2::bigint IS NOT NULL GROUP BY m.order_id HAVING count(*) > 1 LIMIT $3",
    },
    Check {
        invariant: "I3",
        needs: Needs::Messages,
        problem: "a purchase of a group that was split has neither a purchase row nor an order",
        rows: "SELECT format('purchase %s of user %s', m.order_id, m.user_id) FROM purchase_groups g
               CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids) AS m (order_id, user_id)
               WHERE g.sale_id = $1 AND g.was_split AND $2::bigint IS NOT NULL
                 AND NOT EXISTS (SELECT FROM outbox p WHERE p.kind = 'order_placed' AND p.order_id = m.order_id)
                 AND NOT EXISTS (SELECT FROM orders o WHERE o.id = m.order_id) LIMIT $3",
    },
    Check {
        invariant: "I6",
        needs: Needs::Messages,
        problem: "a group is settled and its outbox row is not processed, or the reverse",
        rows: "SELECT format('group %s, outbox %s', coalesce(g.id, r.order_id), coalesce(r.status, 'has no row'))
               FROM (SELECT id, settled_at FROM purchase_groups WHERE sale_id = $1) g
               FULL JOIN (SELECT order_id, status FROM outbox WHERE sale_id = $1 AND kind = 'group_placed') r
                 ON r.order_id = g.id
               WHERE (g.id IS NULL OR r.order_id IS NULL OR (g.settled_at IS NOT NULL) <> (r.status = 'processed'))
                 AND $2::bigint IS NOT NULL LIMIT $3",
    },
    Check {
        invariant: "I6",
        needs: Needs::Messages,
        problem: "a message is parked",
        rows: "SELECT format('outbox %s, %s of order %s after %s attempts: %s', id, kind, order_id, attempts, last_error)
               FROM outbox WHERE sale_id = $1 AND status = 'parked' AND $2::bigint IS NOT NULL ORDER BY id LIMIT $3",
    },
    Check {
        invariant: "I6",
        needs: Needs::Messages,
        problem: "an order has ended without a release of its hold, or a hold is released whose order has not ended",
        rows: "SELECT format('order %s, %s', coalesce(o.id, r.order_id), coalesce(o.status, 'unknown'))
               FROM (SELECT id, status FROM orders WHERE sale_id = $1 AND status IN ('cancelled', 'rejected', 'refunded')) o
               FULL JOIN (SELECT order_id FROM outbox WHERE sale_id = $1 AND kind = 'hold_release'
                          UNION ALL
                          SELECT m.order_id FROM outbox b CROSS JOIN LATERAL unnest(b.members) AS m (order_id)
                          WHERE b.sale_id = $1 AND b.kind = 'group_release') r ON r.order_id = o.id
               WHERE (o.id IS NULL OR r.order_id IS NULL) AND $2::bigint IS NOT NULL LIMIT $3",
    },
    Check {
        invariant: "I4",
        needs: Needs::Nothing,
        problem: "an order that is paid, being refunded or refunded does not have exactly one payment that pays it",
        rows: "SELECT format('order %s, %s, %s payments', o.id, o.status, count(p.id)) FROM orders o
               LEFT JOIN payments p ON p.order_id = o.id AND p.pays
               WHERE o.sale_id = $1 AND o.status IN ('paid', 'refunding', 'refunded') AND $2::bigint IS NOT NULL
               GROUP BY o.id HAVING count(p.id) <> 1 LIMIT $3",
    },
    Check {
        invariant: "I4",
        needs: Needs::Nothing,
        problem: "a payment that pays no order is not refunded, or a payment pays an order that is not paid",
        rows: "SELECT format('payment %s of order %s, %s', p.id, o.id, o.status) FROM payments p
               JOIN orders o ON o.id = p.order_id LEFT JOIN refunds r ON r.payment_id = p.id
               WHERE o.sale_id = $1 AND p.status = 'succeeded' AND $2::bigint IS NOT NULL
                 AND (NOT p.pays AND r.id IS NULL OR p.pays AND o.status NOT IN ('paid', 'refunding', 'refunded')
                      OR p.pays AND r.cause <> 'asked') LIMIT $3",
    },
    Check {
        invariant: "I5",
        needs: Needs::Nothing,
        problem: "a refund's status does not match its order's",
        rows: "SELECT format('refund %s, %s, of order %s, %s', r.id, r.status, o.id, o.status) FROM refunds r
               JOIN orders o ON o.id = r.order_id
               WHERE o.sale_id = $1 AND r.cause = 'asked' AND $2::bigint IS NOT NULL
                 AND o.status <> CASE r.status WHEN 'succeeded' THEN 'refunded' ELSE 'refunding' END
               UNION ALL
               SELECT format('order %s, %s, without a refund', o.id, o.status) FROM orders o
               WHERE o.sale_id = $1 AND o.status IN ('refunding', 'refunded')
                 AND NOT EXISTS (SELECT FROM refunds r WHERE r.order_id = o.id AND r.cause = 'asked') LIMIT $3",
    },
    Check {
        invariant: "I5",
        needs: Needs::Nothing,
        problem: "the channel has refused a refund",
        rows: "SELECT format('refund %s of order %s', r.id, o.id) FROM refunds r JOIN orders o ON o.id = r.order_id
               WHERE o.sale_id = $1 AND r.status = 'failed' AND $2::bigint IS NOT NULL LIMIT $3",
    },
    Check {
        invariant: "I4",
        needs: Needs::Nothing,
        problem: "a payment was sent an hour ago and its outcome is not known",
        rows: "SELECT format('payment %s of order %s, %s', p.id, p.order_id, p.status) FROM payments p
               JOIN orders o ON o.id = p.order_id
               WHERE o.sale_id = $1 AND p.status IN ('sending', 'waiting') AND $2::bigint IS NOT NULL
                 AND p.sent_at < now() - interval '1 hour' LIMIT $3",
    },
    Check {
        invariant: "I4",
        needs: Needs::Nothing,
        problem: "the journal does not match payments and refunds",
        rows: "WITH moved AS (
                 SELECT 'payment' AS entry, p.id, p.order_id, p.amount_cents, p.currency,
                        'channel:' || p.channel AS debit, CASE WHEN p.pays THEN 'sales' ELSE 'refunds-due' END AS credit
                 FROM payments p WHERE p.status = 'succeeded'
                 UNION ALL SELECT 'refund_due', id, order_id, amount_cents, currency, 'sales', 'refunds-due'
                 FROM refunds WHERE cause = 'asked'
                 UNION ALL SELECT 'refund', id, order_id, amount_cents, currency, 'refunds-due', 'channel:' || channel
                 FROM refunds WHERE status = 'succeeded'),
               ours AS (SELECT m.* FROM moved m JOIN orders o ON o.id = m.order_id WHERE o.sale_id = $1),
               books AS (SELECT j.* FROM journal j JOIN orders o ON o.id = j.order_id WHERE o.sale_id = $1)
               SELECT format('%s of %s', coalesce(m.entry, j.entry), coalesce(m.id, j.subject))
               FROM ours m FULL JOIN books j ON j.entry = m.entry AND j.subject = m.id
               WHERE $2::bigint IS NOT NULL
                 AND (m.order_id, m.amount_cents, m.currency, m.debit, m.credit)
                     IS DISTINCT FROM (j.order_id, j.amount_cents, j.currency, j.debit, j.credit) LIMIT $3",
    },
    Check {
        invariant: "I9",
        needs: Needs::Steps,
        problem: "an order's steps are not a series of legal steps that ends in its status",
        rows: "WITH steps AS (
                 SELECT s.order_id, s.id, s.from_status, s.to_status, o.status,
                        lag(s.to_status, 1, 'accepted') OVER w AS before, lead(s.id) OVER w IS NULL AS last
                 FROM order_steps s JOIN orders o ON o.id = s.order_id WHERE o.sale_id = $1
                 WINDOW w AS (PARTITION BY s.order_id ORDER BY s.id))
               SELECT format('order %s: %s to %s, now %s', order_id, from_status, to_status, status) FROM steps
               WHERE $2::bigint IS NOT NULL AND (from_status <> before OR (last AND to_status <> status)
                  OR NOT EXISTS (SELECT FROM order_status_steps l WHERE l.from_status = steps.from_status AND l.to_status = steps.to_status))
               UNION ALL
               SELECT format('order %s has no history', id) FROM orders o
               WHERE sale_id = $1 AND NOT EXISTS (SELECT FROM order_steps WHERE order_id = o.id) LIMIT $3",
    },
];
