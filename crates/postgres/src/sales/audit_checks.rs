//! The auditor's queries for rows that break an invariant.

/// The rows a check needs, apart from orders and money, which are kept for ever.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    /// Outbox rows, cleared some days after a sale's end.
    Messages,
    /// Steps of orders, cleared later.
    Steps,
}

/// A query that must return no rows. $1: the sale. $2: a grace in milliseconds. $3: the row limit.
pub(super) struct Check {
    pub(crate) invariant: &'static str,
    pub(crate) needs: Needs,
    pub(crate) problem: &'static str,
    pub(crate) rows: &'static str,
}

pub(super) const CHECKS: [Check; 18] = [
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
        needs: Needs::Steps,
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
        rows: "SELECT format('purchase %s of user %s', m.order_id, m.user_id) FROM purchase_groups g
               CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids) AS m (order_id, user_id)
               WHERE g.sale_id = $1 AND g.settled_at IS NOT NULL AND NOT g.was_split AND $2::bigint IS NOT NULL
                 AND NOT EXISTS (SELECT FROM orders o WHERE o.id = m.order_id) LIMIT $3",
    },
    Check {
        invariant: "I3",
        needs: Needs::Messages,
        problem: "an order is no member of its group, or the group is of another sale, buyer or quantity",
        rows: "SELECT format('order %s of user %s', o.id, o.user_id) FROM orders o
               WHERE o.sale_id = $1 AND $2::bigint IS NOT NULL
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
        problem: "a purchase stands twice in groups of several",
        rows: "SELECT format('order %s, %s times', m.order_id, count(*)) FROM purchase_groups g
               CROSS JOIN LATERAL unnest(g.order_ids) AS m (order_id)
               WHERE g.sale_id = $1 AND g.members > 1 AND $2::bigint IS NOT NULL GROUP BY m.order_id HAVING count(*) > 1 LIMIT $3",
    },
    Check {
        invariant: "I3",
        needs: Needs::Messages,
        problem: "a purchase of a group that was split has neither a group of its own nor an order",
        rows: "SELECT format('purchase %s of user %s', m.order_id, m.user_id) FROM purchase_groups g
               CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids) AS m (order_id, user_id)
               WHERE g.sale_id = $1 AND g.was_split AND $2::bigint IS NOT NULL
                 AND NOT EXISTS (SELECT FROM purchase_groups one WHERE one.id = m.order_id)
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
               FULL JOIN (SELECT m.order_id FROM outbox b CROSS JOIN LATERAL unnest(b.members) AS m (order_id)
                          WHERE b.sale_id = $1 AND b.kind = 'hold_release') r ON r.order_id = o.id
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
        invariant: "I4",
        needs: Needs::Nothing,
        problem: "a payment or refund is of another amount or currency than its order, or an order of another currency than its sale",
        rows: "SELECT format('%s %s of order %s: %s %s, and the order %s %s', m.what, m.id, o.id, m.amount_cents, m.currency,
                             o.amount_cents, o.currency)
               FROM (SELECT 'payment' AS what, id, order_id, amount_cents, currency FROM payments
                     UNION ALL SELECT 'refund', id, order_id, amount_cents, currency FROM refunds) m
               JOIN orders o ON o.id = m.order_id
               WHERE o.sale_id = $1 AND $2::bigint IS NOT NULL
                 AND (m.amount_cents, m.currency) <> (o.amount_cents, o.currency)
               UNION ALL
               SELECT format('order %s: %s, and the sale %s', o.id, o.currency, s.currency)
               FROM orders o JOIN sales s ON s.id = o.sale_id
               WHERE o.sale_id = $1 AND o.currency <> s.currency LIMIT $3",
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
