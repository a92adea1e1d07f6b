//! Searches and exports orders, for people. Orders and purchases without an order are two lists, because a purchase moves when it becomes
//! an order. Within its list, an order keeps its place, so that paging misses and repeats none. One exception: a purchase moves to the
//! front of its list if it gets a second record, or if its group is split.

use chrono::{DateTime, Utc};
use sqlx::{Connection, Executor, PgConnection, Postgres, Transaction};
use uuid::Uuid;

use crate::orders::listed::{ListedOrder, listed};
use crate::orders::money::add_money;
use crate::orders::read::{OrderRow, OrderSearch, OwnedOrder, order_on};
use crate::{LedgerError, Orders, numbers};
use seckill_domain::ids::{OrderId, SaleId, UserId};
use seckill_domain::order::OrderStatus;

/// Orders per read of an export.
const PIECE: i64 = 1000;

/// A page of orders, newest first. On the first page, purchases whose order is not made yet come before the orders.
#[derive(Debug, serde::Serialize, utoipa::ToSchema)]
#[schema(as = BuyersOrders)]
pub struct FoundOrders {
    /// The first page begins with purchases without an order, if all statuses are searched. They are at most `limit` rows more.
    pub orders: Vec<ListedOrder>,
    /// `before` of the next page; `None` on the last one.
    #[serde(rename = "next_before")]
    pub next: Option<OrderId>,
    /// There are purchases without an order that could not be read in time, because there are many.
    pub lacks_accepted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    /// Purchases without an order, ordered by group.
    Accepted,
    Orders,
}

/// A running export: one snapshot of the orders, read in pieces.
pub struct OrderExport {
    tx: Transaction<'static, Postgres>,
    search: OrderSearch,
    /// The current list and place; `None` at the end.
    at: Option<(List, Place)>,
}

impl Orders {
    /// A page of results; `None` if the order `before` does not exist.
    pub async fn search_orders(&self, search: &OrderSearch) -> Result<Option<FoundOrders>, LedgerError> {
        let mut tx = self.0.begin_reading().await?;
        let list = if search.status == Some(OrderStatus::Accepted) { List::Accepted } else { List::Orders };
        let (mut found, mut lacks_accepted) = (Vec::new(), false);
        let Some(place) = Place::find(&mut tx, list, search.before).await? else { return Ok(None) };
        if search.status.is_none() && search.before.is_none() {
            match accepted_in_time(&mut tx, search).await? {
                Some(accepted) => found = accepted,
                None => lacks_accepted = true,
            }
        }
        // One row more than the page shows whether there is another page.
        let more = OrderSearch { limit: search.limit.saturating_add(1), ..search.clone() };
        let (mut page, _) = read(&mut tx, list, &more, &place).await?;
        let page_max = usize::try_from(search.limit).unwrap_or(usize::MAX);
        let is_last = page.len() <= page_max;
        page.truncate(page_max);
        let next = if is_last { None } else { page.last().map(|last| last.order.order_id) };
        found.append(&mut page);
        Ok(Some(FoundOrders { orders: listed(&mut tx, found).await?, next, lacks_accepted }))
    }

    /// As `Orders::order`, with product and money.
    pub async fn listed_order(&self, order: OrderId) -> Result<Option<ListedOrder>, LedgerError> {
        let mut tx = self.0.begin_reading().await?;
        let found = order_on(&mut tx, order).await?;
        Ok(listed(&mut tx, found.into_iter().collect()).await?.pop())
    }

    /// Begins an export of at most `search.limit` orders, as of now; `None` if the order `before` does not exist. Its reader may pause.
    pub async fn export_orders(&self, search: OrderSearch) -> Result<Option<OrderExport>, LedgerError> {
        let mut tx = self.0.begin_reading().await?;
        (&mut *tx).execute("SET LOCAL idle_in_transaction_session_timeout = '5min'").await?;
        let with_accepted =
            search.status == Some(OrderStatus::Accepted) || search.status.is_none() && search.before.is_none();
        let list = if with_accepted { List::Accepted } else { List::Orders };
        let place = Place::find(&mut tx, list, search.before).await?;
        Ok(place.map(|place| OrderExport { tx, search, at: Some((list, place)) }))
    }
}

impl OrderExport {
    /// The next orders, newest first. Empty at the end.
    pub async fn next_piece(&mut self) -> Result<Vec<ListedOrder>, LedgerError> {
        while let Some((list, place)) = self.at.take() {
            let limit = self.search.limit.min(PIECE);
            let piece = OrderSearch { limit, ..self.search.clone() };
            if limit <= 0 {
                break;
            }
            let (rows, last) = read(&mut self.tx, list, &piece, &place).await?;
            let n = i64::try_from(rows.len()).unwrap_or(i64::MAX);
            self.search.limit -= n;
            self.at = match last {
                Some(last) if n == limit => Some((list, last)),
                // The other list is read from its start.
                _ if list == List::Accepted && self.search.status.is_none() => Some((List::Orders, Place::Start)),
                _ => None,
            };
            if !rows.is_empty() {
                return listed(&mut self.tx, rows).await;
            }
        }
        Ok(Vec::new())
    }
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Start,
    /// After this member of the group with this number.
    Purchase {
        place: i64,
        member: i64,
    },
    Order(DateTime<Utc>, Uuid),
}

impl Place {
    /// The place after an order, or the start without one; `None` if the order was never in the list.
    async fn find(tx: &mut PgConnection, list: List, before: Option<OrderId>) -> Result<Option<Self>, LedgerError> {
        let Some(before) = before else { return Ok(Some(Self::Start)) };
        match list {
            List::Accepted => {
                // A purchase that has become an order had a place too. If nothing else is found, all unsettled groups are read.
                let row = sqlx::query!(
                    r#"WITH known AS MATERIALIZED (
                         SELECT place, 1 AS member FROM purchase_groups WHERE id = $1
                         UNION ALL
                         SELECT g.place, array_position(g.order_ids, o.id)
                         FROM orders o JOIN purchase_groups g ON g.id = o.group_id WHERE o.id = $1)
                       SELECT place AS "place!", coalesce(member, 0)::bigint AS "member!"
                       FROM (SELECT * FROM known
                             UNION ALL
                             SELECT g.place, array_position(g.order_ids, $1) FROM purchase_groups g
                             WHERE g.settled_at IS NULL AND g.order_ids @> ARRAY[$1] AND NOT EXISTS (SELECT FROM known)) AS places
                       LIMIT 1"#,
                    before.0
                );
                let row = row.fetch_optional(tx).await?;
                Ok(row.map(|row| Self::Purchase { place: row.place, member: row.member }))
            }
            List::Orders => {
                let row = sqlx::query!("SELECT created_at, id FROM orders WHERE id = $1", before.0);
                Ok(row.fetch_optional(tx).await?.map(|row| Self::Order(row.created_at, row.id)))
            }
        }
    }
}

/// The next orders of one list, with the last one's place.
async fn read(
    tx: &mut PgConnection,
    list: List,
    search: &OrderSearch,
    from: &Place,
) -> Result<(Vec<OwnedOrder>, Option<Place>), LedgerError> {
    if list == List::Accepted {
        let rows = accepted(tx, search, from).await?;
        let last = rows.last().map(|(place, _)| *place);
        return Ok((owned(rows.into_iter().map(|(_, row)| row))?, last));
    }
    let at = match from {
        Place::Start | Place::Purchase { .. } => None,
        Place::Order(at, id) => Some((*at, *id)),
    };
    let rows = match (&search.number, &search.user, search.sales.as_deref()) {
        (Some(number), ..) => numbered(tx, search, number, at).await?,
        (None, None, None) => of_all(tx, search, at).await?,
        (None, Some(_), _) | (None, None, Some([_])) => of_buyer_or_sale(tx, search, at).await?,
        (None, None, Some(sales)) => of_sales(tx, search, sales, at).await?,
    };
    let last = rows.last().map(|last| Place::Order(last.created_at, last.id));
    let mut orders = owned(rows.into_iter())?;
    add_money(tx, orders.iter_mut().map(|owned| &mut owned.order)).await?;
    Ok((orders, last))
}

/// The purchases without an order; `None` if they cannot be read within 1 s. They are sorted, and may be a million.
async fn accepted_in_time(tx: &mut PgConnection, search: &OrderSearch) -> Result<Option<Vec<OwnedOrder>>, LedgerError> {
    // A savepoint, so that the transaction survives the cancelled statement and gets its own time-out back.
    #[expect(clippy::disallowed_methods, reason = "a part of a transaction that has begun")]
    let mut part = tx.begin().await?;
    (&mut *part).execute("SET LOCAL statement_timeout = '1s'").await?;
    let read = read(&mut part, List::Accepted, search, &Place::Start).await;
    part.rollback().await?;
    match read {
        Ok((found, _)) => Ok(Some(found)),
        Err(error @ LedgerError::TooSlow(_)) => {
            tracing::debug!(%error, "purchases without an order not read");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn owned(rows: impl Iterator<Item = OrderRow>) -> Result<Vec<OwnedOrder>, LedgerError> {
    rows.map(OwnedOrder::try_from).collect()
}

/// Members of groups, by the indexes `purchase_groups_buyers` and `purchase_groups_unsettled`. A purchase in two groups has the place of
/// its group of one. `num_nulls` is the condition of the first index, `IS NULL` of the second.
async fn accepted(
    tx: &mut PgConnection,
    search: &OrderSearch,
    from: &Place,
) -> Result<Vec<(Place, OrderRow)>, LedgerError> {
    let (place, member) = match from {
        Place::Purchase { place, member } => (Some(*place), *member),
        Place::Start | Place::Order(..) => (None, 0),
    };
    let rows = sqlx::query!(
        r#"SELECT p.place AS "place!", p.member AS "member!", p.order_id AS "order_id!", p.sale_id AS "sale_id!",
                  p.user_id AS "user_id!", p.quantity AS "quantity!", s.price_cents * p.quantity AS "amount_cents!", s.currency,
                  p.created_at + s.pay_within_ms * interval '1 ms' AS "expires_at!", p.created_at AS "created_at!"
           FROM (SELECT g.place, m.member, m.order_id, g.sale_id, m.user_id, m.quantity, g.created_at
                 FROM purchase_groups g
                 CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids, g.quantities)
                                    WITH ORDINALITY AS m (order_id, user_id, quantity, member)
                 WHERE g.settled_at IS NULL AND num_nulls(g.settled_at) = 1 AND ($1::bigint[] IS NULL OR g.sale_id = ANY($1))
                   AND ($6::text IS NULL OR right(m.order_id::text, 8) = $6)
                   AND ($7::timestamptz IS NULL OR g.created_at >= $7) AND ($8::timestamptz IS NULL OR g.created_at < $8)
                   AND ($2::text IS NULL OR g.user_ids @> ARRAY[$2::text] COLLATE "C" AND m.user_id = $2)
                   AND ($3::bigint IS NULL OR g.place < $3 OR g.place = $3 AND m.member < $4)
                   AND NOT EXISTS (SELECT FROM orders o WHERE o.id = m.order_id)
                   AND (g.id = m.order_id OR NOT EXISTS (SELECT FROM purchase_groups one
                                                         WHERE one.id = m.order_id AND one.settled_at IS NULL))
                 ORDER BY g.place DESC, m.member DESC LIMIT $5) AS p
           JOIN sales s ON s.id = p.sale_id ORDER BY p.place DESC, p.member DESC LIMIT $5"#,
        search.sales.as_deref().map(numbers) as Option<Vec<i64>>,
        search.user.as_ref().map(UserId::as_str),
        place,
        member,
        search.limit,
        search.number,
        moment(search.from_ms),
        moment(search.until_ms)
    )
    .map(|row| {
        let order = OrderRow {
            id: row.order_id,
            sale_id: row.sale_id,
            user_id: row.user_id,
            quantity: row.quantity,
            amount_cents: row.amount_cents,
            currency: row.currency,
            status: OrderStatus::Accepted.to_string(),
            reason: None,
            expires_at: row.expires_at,
            created_at: row.created_at,
        };
        (Place::Purchase { place: row.place, member: row.member }, order)
    });
    Ok(rows.fetch_all(tx).await?)
}

/// The orders of one buyer, or of one sale, by the indexes `orders_of_user` and `orders_of_sale`. For a rare status, by `orders_by_status`.
async fn of_buyer_or_sale(
    tx: &mut PgConnection,
    search: &OrderSearch,
    at: Option<(DateTime<Utc>, Uuid)>,
) -> Result<Vec<OrderRow>, LedgerError> {
    // Only one sale by `=` is read in the order of the index.
    let (one, several) = match search.sales.as_deref() {
        Some([one]) => (Some(one.get()), None),
        sales => (None, sales.map(numbers)),
    };
    let rows = sqlx::query_as!(
        OrderRow,
        "SELECT id, sale_id, user_id, quantity, amount_cents, currency, status, reason, expires_at, created_at FROM orders
         WHERE ($1::text IS NULL OR user_id = $1) AND ($3::text IS NULL OR status = $3)
           AND ($2::bigint IS NULL OR sale_id = $2) AND ($9::bigint[] IS NULL OR sale_id = ANY($9))
           AND ($7::timestamptz IS NULL OR created_at >= $7) AND ($8::timestamptz IS NULL OR created_at < $8)
           AND (created_at, id) < (coalesce($4::timestamptz, 'infinity'), $5)
         ORDER BY created_at DESC, id DESC LIMIT $6",
        search.user.as_ref().map(UserId::as_str),
        one,
        search.status.map(OrderStatus::as_str),
        at.map(|(at, _)| at),
        at.map_or(Uuid::nil(), |(_, id)| id),
        search.limit,
        moment(search.from_ms),
        moment(search.until_ms),
        several as Option<Vec<i64>>
    );
    Ok(rows.fetch_all(tx).await?)
}

/// The newest orders of several sales, by the index `orders_of_sale`.
async fn of_sales(
    tx: &mut PgConnection,
    search: &OrderSearch,
    sales: &[SaleId],
    at: Option<(DateTime<Utc>, Uuid)>,
) -> Result<Vec<OrderRow>, LedgerError> {
    let rows = sqlx::query_as!(
        OrderRow,
        r#"SELECT o.id AS "id!", o.sale_id AS "sale_id!", o.user_id AS "user_id!", o.quantity AS "quantity!",
                  o.amount_cents AS "amount_cents!", o.currency AS "currency!", o.status AS "status!", o.reason AS "reason?",
                  o.expires_at AS "expires_at!", o.created_at AS "created_at!"
           FROM unnest($1::bigint[]) AS wanted (sale)
           CROSS JOIN LATERAL (
             SELECT id, sale_id, user_id, quantity, amount_cents, currency, status, reason, expires_at, created_at FROM orders
             WHERE sale_id = wanted.sale AND ($2::text IS NULL OR status = $2)
               AND ($6::timestamptz IS NULL OR created_at >= $6) AND ($7::timestamptz IS NULL OR created_at < $7)
               AND (created_at, id) < (coalesce($3::timestamptz, 'infinity'), $4)
             ORDER BY created_at DESC, id DESC LIMIT $5) AS o
           ORDER BY o.created_at DESC, o.id DESC LIMIT $5"#,
        &numbers(sales),
        search.status.map(OrderStatus::as_str),
        at.map(|(at, _)| at),
        at.map_or(Uuid::nil(), |(_, id)| id),
        search.limit,
        moment(search.from_ms),
        moment(search.until_ms)
    );
    Ok(rows.fetch_all(tx).await?)
}

/// The orders with a number, of some sales, a buyer or a time. They are all read: an index on numbers would cost each purchase more than
/// this costs the few people who search so. The caller requires one of these conditions.
async fn numbered(
    tx: &mut PgConnection,
    search: &OrderSearch,
    number: &str,
    at: Option<(DateTime<Utc>, Uuid)>,
) -> Result<Vec<OrderRow>, LedgerError> {
    let rows = sqlx::query_as!(
        OrderRow,
        "SELECT id, sale_id, user_id, quantity, amount_cents, currency, status, reason, expires_at, created_at FROM orders
         WHERE status = ANY($1) AND ($2::text IS NULL OR user_id = $2) AND ($3::bigint[] IS NULL OR sale_id = ANY($3))
           AND created_at >= coalesce($4::timestamptz, '-infinity') AND created_at < coalesce($5::timestamptz, 'infinity')
           AND (created_at, id) < (coalesce($6::timestamptz, 'infinity'), $7) AND right(id::text, 8) = $8
         ORDER BY created_at DESC, id DESC LIMIT $9",
        &statuses(search),
        search.user.as_ref().map(UserId::as_str),
        search.sales.as_deref().map(numbers) as Option<Vec<i64>>,
        moment(search.from_ms),
        moment(search.until_ms),
        at.map(|(at, _)| at),
        at.map_or(Uuid::nil(), |(_, id)| id),
        number,
        search.limit
    );
    Ok(rows.fetch_all(tx).await?)
}

fn moment(ms: Option<i64>) -> Option<DateTime<Utc>> {
    ms.and_then(DateTime::<Utc>::from_timestamp_millis)
}

/// The statuses that are searched for.
fn statuses(search: &OrderSearch) -> Vec<String> {
    match search.status {
        Some(status) => vec![status.to_string()],
        None => OrderStatus::stored().map(|status| status.to_string()).collect(),
    }
}

/// The orders of all sales, by the index `orders_by_status`: the newest of one status, or of each.
async fn of_all(
    tx: &mut PgConnection,
    search: &OrderSearch,
    at: Option<(DateTime<Utc>, Uuid)>,
) -> Result<Vec<OrderRow>, LedgerError> {
    let rows = sqlx::query_as!(
        OrderRow,
        r#"SELECT o.id AS "id!", o.sale_id AS "sale_id!", o.user_id AS "user_id!", o.quantity AS "quantity!",
                  o.amount_cents AS "amount_cents!", o.currency AS "currency!", o.status AS "status!", o.reason AS "reason?",
                  o.expires_at AS "expires_at!", o.created_at AS "created_at!"
           FROM unnest($1::text[]) AS wanted (status)
           CROSS JOIN LATERAL (
             SELECT id, sale_id, user_id, quantity, amount_cents, currency, status, reason, expires_at, created_at FROM orders
             WHERE orders.status = wanted.status
               AND created_at >= coalesce($5::timestamptz, '-infinity') AND created_at < coalesce($6::timestamptz, 'infinity')
               AND (created_at, id) < (coalesce($2::timestamptz, 'infinity'), $3)
             ORDER BY created_at DESC, id DESC LIMIT $4) AS o
           ORDER BY o.created_at DESC, o.id DESC LIMIT $4"#,
        &statuses(search),
        at.map(|(at, _)| at),
        at.map_or(Uuid::nil(), |(_, id)| id),
        search.limit,
        moment(search.from_ms),
        moment(search.until_ms)
    );
    Ok(rows.fetch_all(tx).await?)
}
