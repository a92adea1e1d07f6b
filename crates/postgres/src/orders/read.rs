//! Reads orders. A purchase without an order reads as one order with status `accepted`, even if two groups contain it.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::money::add_money;
use crate::{LedgerError, Orders, numbers};
use seckill_domain::ids::{OrderId, SaleId, UserId};
use seckill_domain::order::{Order, OrderStatus};

pub(super) struct OrderRow {
    pub(super) id: Uuid,
    pub(super) sale_id: i64,
    pub(super) user_id: String,
    pub(super) quantity: i32,
    pub(super) amount_cents: i64,
    pub(super) currency: String,
    pub(super) status: String,
    pub(super) reason: Option<String>,
    pub(super) expires_at: DateTime<Utc>,
    pub(super) created_at: DateTime<Utc>,
}

/// An order and its buyer.
#[derive(Debug, Clone, serde::Serialize, utoipa::ToSchema)]
#[schema(as = BuyersOrder)]
pub struct OwnedOrder {
    #[serde(flatten)]
    pub order: Order,
    /// The buyer. Empty for accounts that may not see buyers.
    #[serde(rename = "user")]
    pub user_id: String,
}

impl TryFrom<OrderRow> for OwnedOrder {
    type Error = LedgerError;

    fn try_from(row: OrderRow) -> Result<Self, LedgerError> {
        let order = Order {
            order_id: OrderId(row.id),
            sale_id: SaleId::from_db(row.sale_id),
            quantity: row.quantity,
            amount_cents: row.amount_cents,
            currency: row.currency.parse().map_err(|_| LedgerError::Unreadable("orders.currency"))?,
            status: row.status.parse().map_err(|_| LedgerError::Unreadable("orders.status"))?,
            reason: row.reason,
            refunded_cents: 0,
            payment: None,
            expires_at_ms: row.expires_at.timestamp_millis(),
            created_at_ms: row.created_at.timestamp_millis(),
        };
        Ok(Self { order, user_id: row.user_id })
    }
}

/// A change of an order's status, with the order as of then; or a failed payment of it.
#[derive(Debug, Clone)]
pub struct OrderStep {
    /// Rises with each step of an order. 0 is the purchase, before the order exists.
    pub id: i64,
    pub of: OwnedOrder,
    /// Whether this is a failed payment, and no change of the status.
    pub is_payment: bool,
}

#[derive(Debug, Clone, Default)]
pub struct OrderSearch {
    pub sales: Option<Vec<SaleId>>,
    pub user: Option<UserId>,
    pub status: Option<OrderStatus>,
    /// What `OrderId::number` returns.
    pub number: Option<String>,
    /// Only orders that were made at or after this moment, and before the next one, in ms.
    pub from_ms: Option<i64>,
    pub until_ms: Option<i64>,
    /// Only orders after this one in the list.
    pub before: Option<OrderId>,
    pub limit: i64,
}

impl Orders {
    /// One order of any buyer. For an accepted order, this may read all unsettled groups: people know only the order's id.
    pub async fn order(&self, order: OrderId) -> Result<Option<OwnedOrder>, LedgerError> {
        order_on(&mut *self.0.begin_reading().await?, order).await
    }

    pub async fn order_of(&self, order: OrderId, user: &str) -> Result<Option<OwnedOrder>, LedgerError> {
        match self.orders_of_buyers(&[(order, user)]).await?.remove(&order) {
            Some(None) => Err(LedgerError::Unreadable("orders.status")),
            found => Ok(found.flatten()),
        }
    }

    /// The existing orders among these, also of other buyers; an accepted one only with its buyer. A row that cannot be read is `None`.
    pub async fn orders_of_buyers(
        &self,
        asked: &[(OrderId, &str)],
    ) -> Result<HashMap<OrderId, Option<OwnedOrder>>, LedgerError> {
        let (ids, users): (Vec<Uuid>, Vec<&str>) = asked.iter().map(|(order, user)| (order.0, *user)).unzip();
        // One statement is one snapshot: a purchase that becomes an order meanwhile is found exactly once. The index
        // `purchase_groups_buyers` finds groups by buyer. `num_nulls` is its condition.
        let rows = sqlx::query_as!(
            OrderRow,
            r#"WITH made AS MATERIALIZED (
                 SELECT id, sale_id, user_id, quantity, amount_cents, currency, status, reason, expires_at, created_at
                 FROM orders WHERE id = ANY($1))
               SELECT id AS "id!", sale_id AS "sale_id!", user_id AS "user_id!", quantity AS "quantity!",
                      amount_cents AS "amount_cents!", currency AS "currency!", status AS "status!", reason, expires_at AS "expires_at!",
                      created_at AS "created_at!"
               FROM made
               UNION ALL
               (SELECT DISTINCT ON (a.order_id) a.order_id, g.sale_id, a.user_id, g.quantities[m.place],
                      s.price_cents * g.quantities[m.place], s.currency, 'accepted', NULL, g.created_at + s.pay_within_ms * interval '1 ms',
                      g.created_at
               FROM unnest($1::uuid[], $2::text[]) AS a (order_id, user_id)
               JOIN purchase_groups g ON num_nulls(g.settled_at) = 1 AND g.user_ids @> ARRAY[a.user_id] COLLATE "C"
               CROSS JOIN LATERAL (SELECT array_position(g.order_ids, a.order_id) AS place) AS m
               JOIN sales s ON s.id = g.sale_id
               WHERE g.user_ids[m.place] = a.user_id AND a.order_id NOT IN (SELECT id FROM made)
               ORDER BY a.order_id, g.id <> a.order_id)"#,
            &ids,
            &users as &[&str]
        )
        .fetch_all(&self.0.pool)
        .await?;
        let readable = rows.into_iter().map(|row| {
            let (order, found) = (OrderId(row.id), OwnedOrder::try_from(row));
            (order, found.inspect_err(|error| tracing::error!(%order, %error, "order not read")).ok())
        });
        let mut found: HashMap<_, _> = readable.collect();
        add_money(&self.0.pool, found.values_mut().flatten().map(|owned| &mut owned.order)).await?;
        Ok(found)
    }

    /// Orders by sales, status and buyer, newest first.
    pub async fn orders(&self, search: &OrderSearch) -> Result<Vec<OwnedOrder>, LedgerError> {
        let rows = sqlx::query_as!(
            OrderRow,
            r#"SELECT id AS "id!", sale_id AS "sale_id!", user_id AS "user_id!", quantity AS "quantity!",
                      amount_cents AS "amount_cents!", currency AS "currency!", status AS "status!", reason, expires_at AS "expires_at!",
                      created_at AS "created_at!"
               FROM (
                 SELECT id, sale_id, user_id, quantity, amount_cents, currency, status, reason, expires_at, created_at FROM orders
                 UNION ALL
                 SELECT m.order_id, g.sale_id, m.user_id, m.quantity, s.price_cents * m.quantity, s.currency, 'accepted', NULL,
                        g.created_at + s.pay_within_ms * interval '1 ms', g.created_at
                 FROM purchase_groups g JOIN sales s ON s.id = g.sale_id
                 CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids, g.quantities) AS m (order_id, user_id, quantity)
                 WHERE g.settled_at IS NULL AND num_nulls(g.settled_at) = 1
                   AND ($3::text IS NULL OR g.user_ids @> ARRAY[$3::text] COLLATE "C")
                   AND NOT EXISTS (SELECT FROM orders o WHERE o.id = m.order_id)
                   AND (g.id = m.order_id OR NOT EXISTS (SELECT FROM purchase_groups one
                                                         WHERE one.id = m.order_id AND one.settled_at IS NULL))) AS every
               WHERE ($1::bigint[] IS NULL OR sale_id = ANY($1)) AND ($2::text IS NULL OR status = $2)
                 AND ($3::text IS NULL OR user_id = $3)
                 AND ($5::uuid IS NULL OR (created_at, id) < (
                   SELECT created_at, id FROM (
                     SELECT 1 AS rank, created_at, id FROM orders WHERE id = $5
                     UNION ALL
                     SELECT CASE id WHEN $5 THEN 2 ELSE 3 END, created_at, $5 FROM purchase_groups
                     WHERE num_nulls(settled_at) = 1 AND user_ids @> ARRAY[$3::text] COLLATE "C" AND order_ids @> ARRAY[$5::uuid]
                   ) AS last ORDER BY rank LIMIT 1))
               ORDER BY created_at DESC, id DESC LIMIT $4"#,
            search.sales.as_deref().map(numbers) as Option<Vec<i64>>,
            search.status.map(OrderStatus::as_str),
            search.user.as_ref().map(UserId::as_str),
            search.limit,
            search.before.map(|order| order.0)
        )
        .fetch_all(&self.0.pool)
        .await?;
        let mut orders = rows.into_iter().map(OwnedOrder::try_from).collect::<Result<Vec<_>, _>>()?;
        add_money(&self.0.pool, orders.iter_mut().map(|owned| &mut owned.order)).await?;
        Ok(orders)
    }

    /// Adds the payments and refunds to the orders of these steps.
    pub async fn add_money(&self, steps: impl Iterator<Item = &mut OrderStep>) -> Result<(), LedgerError> {
        add_money(&self.0.pool, steps.map(|step| &mut step.of.order)).await
    }

    /// The units of a buyer's live orders in a sale, and the newest order.
    pub async fn holdings(&self, sale: SaleId, user: &str) -> Result<(i64, Option<OrderId>), LedgerError> {
        let row = sqlx::query!(
            r#"SELECT (SELECT coalesce(sum(quantity), 0)::bigint FROM orders
                       WHERE sale_id = $1 AND user_id = $2 AND status IN ('pending_payment', 'paid', 'refunding')) AS "units!",
                      (SELECT id FROM orders WHERE sale_id = $1 AND user_id = $2 ORDER BY created_at DESC LIMIT 1) AS newest"#,
            sale.get(),
            user
        )
        .fetch_one(&self.0.pool)
        .await?;
        Ok((row.units, row.newest.map(OrderId)))
    }

    /// The steps of each order after the given step, and its failed payments, without money. Those of one order commit in the order of their ids. Those of several may not.
    pub async fn steps_since(&self, seen: &[(OrderId, i64)]) -> Result<Vec<OrderStep>, LedgerError> {
        let (orders, steps): (Vec<Uuid>, Vec<i64>) = seen.iter().map(|(order, step)| (order.0, *step)).unzip();
        let rows = sqlx::query!(
            r#"SELECT s.id AS "step!", s.status AS "status!", s.is_payment AS "is_payment!", o.id, o.sale_id, o.user_id, o.quantity,
                      o.amount_cents, o.currency, o.expires_at, o.created_at, CASE WHEN s.status = o.status THEN o.reason END AS reason
               FROM (SELECT s.id, s.order_id, s.to_status AS status, false AS is_payment
                     FROM unnest($1::uuid[], $2::bigint[]) AS seen (order_id, step)
                     JOIN order_steps s ON s.order_id = seen.order_id AND s.id > seen.step
                     UNION ALL
                     SELECT p.failed_step, p.order_id, 'pending_payment', true
                     FROM unnest($1::uuid[], $2::bigint[]) AS seen (order_id, step)
                     JOIN payments p ON p.order_id = seen.order_id AND p.failed_step > seen.step) AS s
               JOIN orders o ON o.id = s.order_id
               ORDER BY s.id"#,
            &orders,
            &steps
        )
        .map(|row| {
            let order = OrderRow {
                id: row.id,
                sale_id: row.sale_id,
                user_id: row.user_id,
                quantity: row.quantity,
                amount_cents: row.amount_cents,
                currency: row.currency,
                status: row.status,
                reason: row.reason,
                expires_at: row.expires_at,
                created_at: row.created_at,
            };
            Ok(OrderStep { id: row.step, of: order.try_into()?, is_payment: row.is_payment })
        });
        rows.fetch_all(&self.0.pool).await?.into_iter().collect()
    }

    pub async fn order_id_secret(&self) -> Result<[u8; 32], LedgerError> {
        let secret =
            sqlx::query_scalar!("SELECT secret FROM keyring WHERE name = 'order-id'").fetch_one(&self.0.pool).await?;
        secret.try_into().map_err(|_| LedgerError::Unreadable("keyring.secret"))
    }
}

/// As `Orders::order`, on the caller's connection.
pub(super) async fn order_on(connection: &mut PgConnection, order: OrderId) -> Result<Option<OwnedOrder>, LedgerError> {
    // One snapshot, as above. A group of one is found by its key. If nothing is found, all unsettled groups are read.
    let row = sqlx::query_as!(
        OrderRow,
        r#"WITH made AS MATERIALIZED (
             SELECT id, sale_id, user_id, quantity, amount_cents, currency, status, reason, expires_at, created_at
             FROM orders WHERE id = $1),
           one AS MATERIALIZED (
             SELECT * FROM purchase_groups WHERE id = $1 AND num_nulls(settled_at) = 1 AND NOT EXISTS (SELECT FROM made)),
           accepted AS (
             SELECT * FROM one
             UNION ALL
             (SELECT * FROM purchase_groups g
              WHERE g.settled_at IS NULL AND g.order_ids @> ARRAY[$1]
                AND NOT EXISTS (SELECT FROM made) AND NOT EXISTS (SELECT FROM one) LIMIT 1))
           SELECT id AS "id!", sale_id AS "sale_id!", user_id AS "user_id!", quantity AS "quantity!",
                  amount_cents AS "amount_cents!", currency AS "currency!", status AS "status!", reason, expires_at AS "expires_at!",
                  created_at AS "created_at!"
           FROM made
           UNION ALL
           SELECT $1, g.sale_id, g.user_ids[m.place], g.quantities[m.place], s.price_cents * g.quantities[m.place], s.currency, 'accepted', NULL,
                  g.created_at + s.pay_within_ms * interval '1 ms', g.created_at
           FROM accepted g JOIN sales s ON s.id = g.sale_id
           CROSS JOIN LATERAL (SELECT array_position(g.order_ids, $1) AS place) AS m"#,
        order.0
    )
    .fetch_optional(&mut *connection)
    .await?;
    let mut found = row.map(OwnedOrder::try_from).transpose()?;
    add_money(connection, found.iter_mut().map(|owned| &mut owned.order)).await?;
    Ok(found)
}
