//! Cancels unpaid orders (protocol, rule 8): status, stock, the buyer's counter and the hold's release change in one transaction.

use std::collections::{BTreeMap, HashSet};

use sqlx::{Executor, PgConnection};
use uuid::Uuid;

use crate::{LedgerError, Orders};
use seckill_domain::ids::{OrderId, SaleId};
use seckill_domain::order::CancelReason;
use seckill_runtime::die_at;

impl Orders {
    pub async fn orders_by_sale(&self, orders: &[OrderId]) -> Result<BTreeMap<SaleId, Vec<OrderId>>, LedgerError> {
        let ids: Vec<Uuid> = orders.iter().map(|order| order.0).collect();
        let rows = sqlx::query!("SELECT id, sale_id FROM orders WHERE id = ANY($1) ORDER BY id", &ids);
        let mut by_sale = BTreeMap::<_, Vec<_>>::new();
        for row in rows.fetch_all(&self.0.pool).await? {
            by_sale.entry(SaleId::from_db(row.sale_id)).or_default().push(OrderId(row.id));
        }
        Ok(by_sale)
    }

    /// Cancels an order for its buyer. Returns `false` if the order does not wait for payment.
    pub async fn cancel_by_buyer(&self, order: OrderId, user: &str) -> Result<bool, LedgerError> {
        let mut tx = self.0.begin().await?;
        sqlx::query!("SELECT FROM orders WHERE id = $1 FOR UPDATE", order.0).execute(&mut *tx).await?;
        let locked = lock_of_buyers(&mut tx, &[(order, user)]).await?;
        let cancelled = cancel(&mut tx, locked, CancelReason::ByBuyer).await?;
        tx.commit().await?;
        Ok(!cancelled.is_empty())
    }

    /// Cancels orders in one transaction. Skips orders that do not wait for payment, belong to another buyer than the given one, or are
    /// locked. Returns the cancelled orders. Fails with `Locked` if the row of a sale is locked. Then no order is cancelled.
    pub async fn cancel_by_buyers(&self, orders: &[(OrderId, &str)]) -> Result<HashSet<OrderId>, LedgerError> {
        let mut tx = self.0.begin().await?;
        // Shorter than a buyer waits. Orders of a locked sale are cancelled separately.
        (&mut *tx).execute("SET LOCAL lock_timeout = '500ms'").await?;
        let locked = lock_of_buyers(&mut tx, orders).await?;
        let cancelled = cancel(&mut tx, locked, CancelReason::ByBuyer).await?;
        die_at!("cancel.before_commit");
        tx.commit().await?;
        die_at!("cancel.after_commit");
        Ok(cancelled.into_iter().map(OrderId).collect())
    }
}

/// A locked order that waits for payment.
pub(super) struct Unpaid {
    id: Uuid,
    sale_id: i64,
    user_id: String,
    quantity: i32,
}

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

/// Locks the unpaid orders of these buyers. Skips orders that another transaction has locked.
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

/// Cancels orders. Adds one row per sale and shard for the release of their holds. Returns their ids.
pub(super) async fn cancel(
    tx: &mut PgConnection,
    orders: Vec<Unpaid>,
    reason: CancelReason,
) -> Result<Vec<Uuid>, LedgerError> {
    if orders.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<Uuid> = orders.iter().map(|order| order.id).collect();
    sqlx::query!(
        "WITH ended AS (
           UPDATE orders SET status = 'cancelled', reason = $2 WHERE id = ANY($1)
           RETURNING id, sale_id, quantity, shard)
         INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, returns_units, members)
         SELECT 'hold_release', CASE count(*) WHEN 1 THEN (array_agg(id))[1] ELSE gen_random_uuid() END, sale_id,
                sum(quantity)::integer, shard, true, array_agg(id)
         FROM ended GROUP BY sale_id, shard",
        &ids,
        <&str>::from(reason)
    )
    .execute(&mut *tx)
    .await?;
    write_lapsed_holds(tx, &ids, reason).await?;
    // Payments that were not sent end here. The others continue, and their money is refunded.
    abandon(tx, &ids).await?;
    let held: Vec<_> = orders.into_iter().map(|order| (order.sale_id, order.user_id, order.quantity)).collect();
    give_back(tx, &held, true).await?;
    Ok(ids)
}

/// Records the lapsed holds of these cancelled orders (protocol, rule 17), each with the buyer's address.
async fn write_lapsed_holds(tx: &mut PgConnection, orders: &[Uuid], reason: CancelReason) -> Result<(), LedgerError> {
    sqlx::query!(
        "INSERT INTO lapsed_holds (order_id, sale_id, user_id, address, quantity)
         SELECT o.id, o.sale_id, o.user_id, m.address, o.quantity
         FROM orders o LEFT JOIN (SELECT m.order_id, m.address
                    FROM purchase_groups g CROSS JOIN LATERAL unnest(g.order_ids, g.addresses) AS m (order_id, address)
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

/// Abandons the payments of these orders that were certainly not sent. For one that may have been sent, the channel is asked.
pub(crate) async fn abandon(tx: &mut PgConnection, orders: &[Uuid]) -> Result<(), LedgerError> {
    sqlx::query!(
        "UPDATE payments SET status = CASE WHEN unsure THEN 'waiting' ELSE 'abandoned' END,
                ask_at = CASE WHEN unsure THEN now() END, ended_at = CASE WHEN NOT unsure THEN now() END
         WHERE id IN (SELECT id FROM payments WHERE order_id = ANY($1) AND status || '' = 'created' ORDER BY id FOR UPDATE)",
        orders
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Nothing is left to expire of these orders or groups. Rows that the relay has locked are skipped, because the relay waits for the broker.
/// Their messages find the orders paid or ended, and settle the rows.
pub(crate) async fn settle_expiries(tx: &mut PgConnection, about: &[Uuid]) -> Result<(), LedgerError> {
    sqlx::query!(
        "UPDATE outbox SET status = 'processed', processed_at = now()
         WHERE id IN (SELECT id FROM outbox WHERE kind = 'group_expire' AND order_id = ANY($1) AND status || '' <> 'processed'
                      FOR UPDATE SKIP LOCKED)",
        about
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Subtracts the units of ended orders (sale, buyer, quantity) from the buyers' counters. With `returns_units`, returns them to the stock.
pub(crate) async fn give_back(
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
    let (buyers, units): (Vec<_>, Vec<i32>) = buyers.into_iter().unzip();
    let (of_sales, users): (Vec<i64>, Vec<String>) = buyers.into_iter().unzip();
    // Locked first, in the order of their keys, as fulfilment does. An UPDATE alone locks rows in any order.
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
