//! Cancels unpaid orders (protocol, rule 8): status, stock, the buyer's counter and the release of the hold change in one
//! transaction, and only while the order waits for payment.

use std::collections::{BTreeMap, HashSet};

use sqlx::{Executor, PgConnection};
use uuid::Uuid;

use crate::die_at;
use crate::domain::ids::{OrderId, SaleId};
use crate::domain::order::CancelReason;
use crate::ledger::{Ledger, LedgerError};

/// What became of an order's expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryOutcome {
    /// The order has ended or is paid, now or since before.
    Settled,
    /// The order has this long left.
    Early { remaining_ms: i64 },
}

impl Ledger {
    /// Cancels those of the orders that are unpaid and overdue. Returns the outcome of each, in order.
    pub async fn expire(&self, orders: &[OrderId]) -> Result<Vec<(OrderId, ExpiryOutcome)>, LedgerError> {
        let ids: Vec<Uuid> = orders.iter().map(|order| order.0).collect();
        let mut tx = self.begin().await?;
        let overdue = lock_overdue(&mut tx, &ids).await?;
        cancel(&mut tx, overdue, CancelReason::Expired, Releases::Each).await?;
        // Only now: a payment that began meanwhile has prolonged an order, which was then not cancelled.
        let early = sqlx::query!(
            r#"SELECT id, ceil(extract(epoch FROM coalesce(wait_until, expires_at) - now()) * 1000)::bigint AS "remaining_ms!"
               FROM orders
               WHERE id = ANY($1) AND status || '' = 'pending_payment'"#,
            &ids
        )
        .fetch_all(&mut *tx)
        .await?;
        let early: BTreeMap<Uuid, i64> = early.into_iter().map(|row| (row.id, row.remaining_ms)).collect();
        let ended: Vec<Uuid> = ids.iter().copied().filter(|id| !early.contains_key(id)).collect();
        // Rows that the relay has locked are skipped, because it waits for the broker, and this transaction has locked
        // the sale's row. Their messages find the order ended, and settle the rows.
        sqlx::query!(
            "UPDATE outbox SET status = 'processed', processed_at = now()
             WHERE id IN (SELECT id FROM outbox WHERE kind = 'order_expire' AND order_id = ANY($1) AND status || '' <> 'processed'
                          FOR UPDATE SKIP LOCKED)",
            &ended
        )
        .execute(&mut *tx)
        .await?;
        die_at!("expire.before_commit");
        tx.commit().await?;
        die_at!("expire.after_commit");
        let expiry = |id| early.get(id).map_or(ExpiryOutcome::Settled, |ms| ExpiryOutcome::Early { remaining_ms: *ms });
        Ok(ids.iter().map(|id| (OrderId(*id), expiry(id))).collect())
    }

    /// The sales of these orders, each with its orders.
    pub async fn orders_by_sale(&self, orders: &[OrderId]) -> Result<BTreeMap<SaleId, Vec<OrderId>>, LedgerError> {
        let ids: Vec<Uuid> = orders.iter().map(|order| order.0).collect();
        let rows = sqlx::query!("SELECT id, sale_id FROM orders WHERE id = ANY($1) ORDER BY id", &ids);
        let mut by_sale = BTreeMap::<_, Vec<_>>::new();
        for row in rows.fetch_all(&self.pool).await? {
            by_sale.entry(SaleId::from_db(row.sale_id)).or_default().push(OrderId(row.id));
        }
        Ok(by_sale)
    }

    /// Cancels an order for its buyer; `false` when the order does not wait for payment.
    pub async fn cancel_by_buyer(&self, order: OrderId, user: &str) -> Result<bool, LedgerError> {
        let mut tx = self.begin().await?;
        sqlx::query!("SELECT FROM orders WHERE id = $1 FOR UPDATE", order.0).execute(&mut *tx).await?;
        let locked = lock_of_buyers(&mut tx, &[(order, user)]).await?;
        let cancelled = cancel(&mut tx, locked, CancelReason::ByBuyer, Releases::Each).await?;
        tx.commit().await?;
        Ok(!cancelled.is_empty())
    }

    /// Cancels those of the orders that wait for payment, belong to the buyer who is named with each, and are not locked, all in one
    /// transaction. Returns which.
    ///
    /// # Errors
    /// `Locked` when another transaction keeps the row of a sale: none is cancelled.
    pub async fn cancel_by_buyers(&self, orders: &[(OrderId, &str)]) -> Result<HashSet<OrderId>, LedgerError> {
        let mut tx = self.begin().await?;
        // Less than a buyer waits: what is locked is cancelled apart.
        (&mut *tx).execute("SET LOCAL lock_timeout = '500ms'").await?;
        let locked = lock_of_buyers(&mut tx, orders).await?;
        let cancelled = cancel(&mut tx, locked, CancelReason::ByBuyer, Releases::Each).await?;
        die_at!("cancel.before_commit");
        tx.commit().await?;
        die_at!("cancel.after_commit");
        Ok(cancelled.into_iter().map(OrderId).collect())
    }

    /// Orders that are overdue by more than `grace_ms`, because their message was lost. Orders whose expiry is parked are
    /// left to people, and those of the sales in `without` are left out.
    pub async fn overdue(&self, grace_ms: u64, limit: i64, without: &[SaleId]) -> Result<Vec<OrderId>, LedgerError> {
        let without: Vec<i64> = without.iter().map(|sale| sale.get()).collect();
        let ids = sqlx::query_scalar!(
            "SELECT id FROM orders o
             WHERE status = 'pending_payment' AND expires_at < now() - $1::bigint * interval '1 ms'
               AND coalesce(wait_until, expires_at) < now() - $1::bigint * interval '1 ms'
               AND NOT EXISTS (SELECT FROM outbox p WHERE p.kind = 'order_expire' AND p.order_id = o.id
                               AND (p.status = 'parked' OR p.attempts > 0 AND p.next_attempt_at > now()))
               AND sale_id <> ALL($3)
             ORDER BY expires_at LIMIT $2",
            grace_ms.cast_signed(),
            limit,
            &without
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(ids.into_iter().map(OrderId).collect())
    }
}

/// Which rows ask for the release of the holds of cancelled orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Releases {
    /// One for each order, which every version reads.
    Each,
    /// One for all of a sale.
    Together,
}

/// An order that waits for payment, and is locked.
pub(super) struct Unpaid {
    id: Uuid,
    sale_id: i64,
    user_id: String,
    quantity: i32,
}

/// Locks those of the orders that wait for payment and are overdue.
pub(super) async fn lock_overdue(tx: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<Unpaid>, LedgerError> {
    let orders = sqlx::query_as!(
        Unpaid,
        "SELECT id, sale_id, user_id, quantity FROM orders
         WHERE id = ANY($1) AND status || '' = 'pending_payment' AND coalesce(wait_until, expires_at) <= now()
         ORDER BY id FOR UPDATE",
        ids
    );
    Ok(orders.fetch_all(&mut *tx).await?)
}

/// Locks those of the orders that wait for payment, belong to these buyers, and that no other transaction has locked.
async fn lock_of_buyers(tx: &mut PgConnection, orders: &[(OrderId, &str)]) -> Result<Vec<Unpaid>, LedgerError> {
    let (ids, users): (Vec<Uuid>, Vec<&str>) = orders.iter().map(|(order, user)| (order.0, *user)).unzip();
    let orders = sqlx::query_as!(
        Unpaid,
        "SELECT id, sale_id, user_id, quantity FROM orders
         WHERE id = ANY($1) AND status || '' = 'pending_payment' AND (id, user_id) IN (SELECT * FROM unnest($1, $2::text[]))
         ORDER BY id FOR UPDATE SKIP LOCKED",
        &ids,
        &users as &[&str]
    );
    Ok(orders.fetch_all(&mut *tx).await?)
}

/// Cancels orders. Returns their ids.
pub(super) async fn cancel(
    tx: &mut PgConnection,
    orders: Vec<Unpaid>,
    reason: CancelReason,
    releases: Releases,
) -> Result<Vec<Uuid>, LedgerError> {
    if orders.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<Uuid> = orders.iter().map(|order| order.id).collect();
    let reason_text = <&str>::from(reason);
    match releases {
        Releases::Each => {
            sqlx::query!(
                "WITH ended AS (
                   UPDATE orders SET status = 'cancelled', reason = $2 WHERE id = ANY($1)
                   RETURNING id, sale_id, user_id, quantity, shard)
                 INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard, returns_units)
                 SELECT 'hold_release', id, sale_id, user_id, quantity, 0, shard, true FROM ended",
                &ids,
                reason_text
            )
            .execute(&mut *tx)
            .await?;
        }
        Releases::Together => {
            sqlx::query!(
                "WITH ended AS (
                   UPDATE orders SET status = 'cancelled', reason = $2 WHERE id = ANY($1)
                   RETURNING id, sale_id, quantity, shard)
                 INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard, returns_units, members)
                 SELECT 'group_release', gen_random_uuid(), sale_id, '', sum(quantity)::integer, 0, shard, true, array_agg(id)
                 FROM ended GROUP BY sale_id, shard",
                &ids,
                reason_text
            )
            .execute(&mut *tx)
            .await?;
        }
    }
    write_lapsed_holds(tx, &ids, reason).await?;
    // Payments that were not sent end here. The others go on, and their money is refunded.
    abandon(tx, &ids).await?;
    let held: Vec<_> = orders.into_iter().map(|order| (order.sale_id, order.user_id, order.quantity)).collect();
    give_back(tx, &held, true).await?;
    Ok(ids)
}

/// Writes down which holds of these cancelled orders have lapsed (protocol, rule 17), with the address that each was taken from: its
/// purchase row has it, or the row of its group.
async fn write_lapsed_holds(tx: &mut PgConnection, orders: &[Uuid], reason: CancelReason) -> Result<(), LedgerError> {
    sqlx::query!(
        "INSERT INTO lapsed_holds (order_id, sale_id, user_id, address, quantity)
         SELECT o.id, o.sale_id, o.user_id, coalesce(m.address, p.address), o.quantity
         FROM orders o LEFT JOIN outbox p ON p.kind = 'order_placed' AND p.order_id = o.id
         LEFT JOIN (SELECT m.order_id, m.address
                    FROM purchase_groups g
                    CROSS JOIN LATERAL unnest(g.order_ids, g.addresses) AS m (order_id, address)
                    WHERE g.id IN (SELECT group_id FROM orders WHERE id = ANY($1))) AS m ON m.order_id = o.id
         WHERE o.id = ANY($1)
           AND ($2 OR now() >= o.created_at + (o.expires_at - o.created_at) / 2
                OR (SELECT id FROM payments WHERE order_id = o.id AND status || '' = 'failed' ORDER BY id LIMIT 1) IS NOT NULL)",
        orders,
        reason == CancelReason::Expired
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Abandons the payments of these orders that have certainly not been sent. One that may have been sent before is not sent
/// again: its channel is asked about it.
pub(in crate::ledger) async fn abandon(tx: &mut PgConnection, orders: &[Uuid]) -> Result<(), LedgerError> {
    sqlx::query!(
        "UPDATE payments SET status = 'abandoned', ended_at = now()
         WHERE id IN (SELECT id FROM payments WHERE order_id = ANY($1) AND status || '' = 'created' AND NOT unsure
                      ORDER BY id FOR UPDATE)",
        orders
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "UPDATE payments SET status = 'waiting', ask_at = now()
         WHERE id IN (SELECT id FROM payments WHERE order_id = ANY($1) AND status || '' = 'created' AND unsure
                      ORDER BY id FOR UPDATE)",
        orders
    )
    .execute(&mut *tx)
    .await?;
    Ok(())
}

/// Takes the units of ended orders (sale, buyer, quantity) off the buyers' counters, and returns them to the stock if
/// `returns_units`.
pub(in crate::ledger) async fn give_back(
    tx: &mut PgConnection,
    orders: &[(i64, String, i32)],
    returns_units: bool,
) -> Result<(), LedgerError> {
    let (mut buyers, mut sales) = (BTreeMap::<(i64, String), i32>::new(), BTreeMap::<i64, i64>::new());
    for (sale, user, quantity) in orders {
        *buyers.entry((*sale, user.clone())).or_default() += quantity;
        if returns_units {
            *sales.entry(*sale).or_default() += i64::from(*quantity);
        }
    }
    let of_sales: Vec<i64> = buyers.keys().map(|(sale, _)| *sale).collect();
    let users: Vec<String> = buyers.keys().map(|(_, user)| user.clone()).collect();
    let units: Vec<i32> = buyers.values().copied().collect();
    // Locked in the order of their keys first, as fulfilment does: an UPDATE alone locks its rows in any order.
    sqlx::query!(
        "SELECT 1 AS one FROM sale_buyers WHERE (sale_id, user_id) IN (SELECT * FROM unnest($1::bigint[], $2::text[]))
         ORDER BY sale_id, user_id COLLATE \"C\" FOR UPDATE",
        &of_sales,
        &users
    )
    .fetch_all(&mut *tx)
    .await?;
    sqlx::query!(
        "UPDATE sale_buyers b SET units = b.units - back.units
         FROM unnest($1::bigint[], $2::text[], $3::integer[]) AS back (sale_id, user_id, units)
         WHERE b.sale_id = back.sale_id AND b.user_id = back.user_id",
        &of_sales,
        &users,
        &units
    )
    .execute(&mut *tx)
    .await?;
    for (sale, units) in sales {
        sqlx::query!("UPDATE sales SET stock = stock + $2 WHERE id = $1 AND total_stock <> -1", sale, units)
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}
