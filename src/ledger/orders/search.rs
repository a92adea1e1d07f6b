//! Searching orders, and exporting them, for people. Orders and purchases that have no order yet are two lists, because a purchase
//! changes its place when it becomes an order. The place of an order in its list never changes, so that paging misses none and
//! repeats none, whatever arrives meanwhile.

use chrono::{DateTime, Utc};
use sqlx::{Connection, Executor, PgConnection, Postgres, Transaction};
use uuid::Uuid;

use crate::domain::ids::{OrderId, SaleId, UserId};
use crate::domain::order::OrderStatus;
use crate::ledger::orders::read::{OrderRow, OwnedOrder};
use crate::ledger::{Ledger, LedgerError};

/// Orders that an export reads at a time.
const PIECE: i64 = 1000;

/// Which orders are searched; all conditions must hold.
#[derive(Debug, Clone, Default)]
pub struct OrderSearch {
    pub sale: Option<SaleId>,
    pub user: Option<UserId>,
    pub status: Option<OrderStatus>,
    /// Only what comes after this order in the list: the next page.
    pub before: Option<OrderId>,
    pub limit: i64,
}

/// A page of what was found, newest first.
#[derive(Debug)]
pub struct FoundOrders {
    /// On the first page, purchases without an order come first, if all statuses are searched: at most as many as the limit, besides
    /// the orders.
    pub orders: Vec<OwnedOrder>,
    /// `before` of the next page; `None` on the last one.
    pub next: Option<OrderId>,
    /// Purchases without an order belong here, and could not be read in time: there are many of them.
    pub lacks_accepted: bool,
}

/// The two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    /// Purchases without an order, by the order of their purchase rows.
    Accepted,
    /// Orders, by the time at which they were made.
    Orders,
}

/// An export under way: one snapshot of the orders, which is read in pieces.
pub struct OrderExport {
    tx: Transaction<'static, Postgres>,
    search: OrderSearch,
    /// The list that is being read; `None` at the end.
    list: Option<List>,
}

impl Ledger {
    /// A page of the orders that are searched; `None` if there is no order `before`.
    pub async fn search_orders(&self, search: &OrderSearch) -> Result<Option<FoundOrders>, LedgerError> {
        let mut tx = self.begin_reading().await?;
        let list = if search.status == Some(OrderStatus::Accepted) { List::Accepted } else { List::Orders };
        let (mut found, mut lacks_accepted) = (Vec::new(), false);
        if search.status.is_none() && search.before.is_none() {
            match accepted_in_time(&mut tx, search).await? {
                Some(accepted) => found = accepted,
                None => lacks_accepted = true,
            }
        }
        // One more than the page has shows whether there is another page.
        let more = OrderSearch { limit: search.limit.saturating_add(1), ..search.clone() };
        let Some(mut page) = read(&mut tx, list, &more).await? else { return Ok(None) };
        let page_max = usize::try_from(search.limit).unwrap_or(usize::MAX);
        let is_last = page.len() <= page_max;
        page.truncate(page_max);
        let next = if is_last { None } else { page.last().map(|last| last.order.order_id) };
        found.append(&mut page);
        Ok(Some(FoundOrders { orders: found, next, lacks_accepted }))
    }

    /// Begins an export of at most `search.limit` orders, which are those of this moment; `None` if there is no order `before`. It
    /// holds a connection until it is dropped.
    pub async fn export_orders(&self, search: OrderSearch) -> Result<Option<OrderExport>, LedgerError> {
        let mut tx = self.begin_reading().await?;
        let with_accepted =
            search.status == Some(OrderStatus::Accepted) || search.status.is_none() && search.before.is_none();
        let list = if with_accepted { List::Accepted } else { List::Orders };
        let known = Place::find(&mut tx, list, search.before).await?.is_some();
        Ok(known.then_some(OrderExport { tx, search, list: Some(list) }))
    }
}

impl OrderExport {
    /// The next orders, newest first; none at the end.
    pub async fn next_piece(&mut self) -> Result<Vec<OwnedOrder>, LedgerError> {
        while let Some(list) = self.list {
            let limit = self.search.limit.min(PIECE);
            let piece = OrderSearch { limit, ..self.search.clone() };
            let rows = if limit > 0 { read(&mut self.tx, list, &piece).await?.unwrap_or_default() } else { Vec::new() };
            let n = i64::try_from(rows.len()).unwrap_or(i64::MAX);
            self.search.limit -= n;
            self.search.before = rows.last().map(|last| last.order.order_id);
            if n < limit || limit == 0 {
                // The other list is read from its own beginning.
                let goes_on = list == List::Accepted && self.search.status.is_none();
                (self.list, self.search.before) = (goes_on.then_some(List::Orders), None);
            }
            if !rows.is_empty() {
                return Ok(rows);
            }
        }
        Ok(Vec::new())
    }
}

/// Where a page begins.
enum Place {
    Start,
    /// Behind the purchase row of this id.
    Purchase(i64),
    Order(DateTime<Utc>, Uuid),
}

impl Place {
    /// The place behind an order, or the start without one; `None` if the list has never had the order.
    async fn find(tx: &mut PgConnection, list: List, before: Option<OrderId>) -> Result<Option<Self>, LedgerError> {
        let Some(before) = before else { return Ok(Some(Self::Start)) };
        match list {
            List::Accepted => {
                let row = sqlx::query_scalar!(
                    "SELECT id FROM outbox WHERE kind = 'order_placed' AND order_id = $1",
                    before.0
                );
                Ok(row.fetch_optional(tx).await?.map(Self::Purchase))
            }
            List::Orders => {
                let row = sqlx::query!("SELECT created_at, id FROM orders WHERE id = $1", before.0);
                Ok(row.fetch_optional(tx).await?.map(|row| Self::Order(row.created_at, row.id)))
            }
        }
    }
}

/// The next orders of one list; `None` if there is no order `before`.
async fn read(tx: &mut PgConnection, list: List, search: &OrderSearch) -> Result<Option<Vec<OwnedOrder>>, LedgerError> {
    let Some(place) = Place::find(tx, list, search.before).await? else { return Ok(None) };
    let at = match place {
        Place::Start => None,
        Place::Purchase(id) => return Ok(Some(owned(accepted(tx, search, Some(id)).await?)?)),
        Place::Order(at, id) => Some((at, id)),
    };
    let rows = match (list, &search.user, search.sale) {
        (List::Accepted, ..) => accepted(tx, search, None).await?,
        (List::Orders, Some(user), _) => of_user(tx, search, user, at).await?,
        (List::Orders, None, Some(sale)) => of_sale(tx, search, sale, at).await?,
        (List::Orders, None, None) => of_all(tx, search, at).await?,
    };
    Ok(Some(owned(rows)?))
}

/// The purchases without an order that stand before the orders; `None` if they cannot be read in a second. They are sorted, and there
/// may be a million of them while the orders behind them are found at once.
async fn accepted_in_time(tx: &mut PgConnection, search: &OrderSearch) -> Result<Option<Vec<OwnedOrder>>, LedgerError> {
    // A savepoint: the transaction outlives a statement that was cancelled, and has its own time-out again.
    let mut part = tx.begin().await?;
    (&mut *part).execute("SET LOCAL statement_timeout = '1s'").await?;
    let read = read(&mut part, List::Accepted, search).await;
    part.rollback().await?;
    match read {
        Ok(found) => Ok(Some(found.unwrap_or_default())),
        Err(error) if error.is_outage() => {
            tracing::debug!(%error, "purchases without an order not read");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn owned(rows: Vec<OrderRow>) -> Result<Vec<OwnedOrder>, LedgerError> {
    rows.into_iter().map(OwnedOrder::try_from).collect()
}

/// Purchases without an order, from the partial indexes `outbox_purchases_of_user` and `outbox_purchases_of_sale`. `id + 0` keeps
/// PostgreSQL from walking along the primary key instead, past all purchases that are done.
async fn accepted(
    tx: &mut PgConnection,
    search: &OrderSearch,
    behind: Option<i64>,
) -> Result<Vec<OrderRow>, LedgerError> {
    let rows = sqlx::query_as!(
        OrderRow,
        r#"SELECT p.order_id AS "id!", p.sale_id AS "sale_id!", p.user_id AS "user_id!", p.quantity AS "quantity!",
                  s.price_cents * p.quantity AS "amount_cents!", 'accepted' AS "status!", NULL::text AS "reason?",
                  p.created_at + s.pay_within_ms * interval '1 ms' AS "expires_at!", p.created_at AS "created_at!"
           FROM (SELECT id, order_id, sale_id, user_id, quantity, created_at FROM outbox
                 WHERE kind = 'order_placed' AND status <> 'processed' AND ($1::bigint IS NULL OR sale_id = $1)
                   AND ($2::text IS NULL OR user_id = $2) AND ($3::bigint IS NULL OR id + 0 < $3)
                 ORDER BY id + 0 DESC LIMIT $4) AS p
           JOIN sales s ON s.id = p.sale_id ORDER BY p.id DESC"#,
        search.sale.map(SaleId::get),
        search.user.as_ref().map(UserId::as_str),
        behind,
        search.limit
    );
    Ok(rows.fetch_all(tx).await?)
}

/// One buyer's orders, from the index `orders_of_user`.
async fn of_user(
    tx: &mut PgConnection,
    search: &OrderSearch,
    user: &UserId,
    at: Option<(DateTime<Utc>, Uuid)>,
) -> Result<Vec<OrderRow>, LedgerError> {
    let rows = sqlx::query_as!(
        OrderRow,
        "SELECT id, sale_id, user_id, quantity, amount_cents, status, reason, expires_at, created_at FROM orders
         WHERE user_id = $1 AND ($2::bigint IS NULL OR sale_id = $2) AND ($3::text IS NULL OR status = $3)
           AND (created_at, id) < (coalesce($4::timestamptz, 'infinity'), $5)
         ORDER BY created_at DESC, id DESC LIMIT $6",
        user.as_str(),
        search.sale.map(SaleId::get),
        search.status.map(OrderStatus::as_str),
        at.map(|(at, _)| at),
        at.map_or(Uuid::nil(), |(_, id)| id),
        search.limit
    );
    Ok(rows.fetch_all(tx).await?)
}

/// One sale's orders, from the index `orders_of_sale`; those of a status that is rare, from `orders_by_status`.
async fn of_sale(
    tx: &mut PgConnection,
    search: &OrderSearch,
    sale: SaleId,
    at: Option<(DateTime<Utc>, Uuid)>,
) -> Result<Vec<OrderRow>, LedgerError> {
    let rows = sqlx::query_as!(
        OrderRow,
        "SELECT id, sale_id, user_id, quantity, amount_cents, status, reason, expires_at, created_at FROM orders
         WHERE sale_id = $1 AND ($2::text IS NULL OR status = $2)
           AND (created_at, id) < (coalesce($3::timestamptz, 'infinity'), $4)
         ORDER BY created_at DESC, id DESC LIMIT $5",
        sale.get(),
        search.status.map(OrderStatus::as_str),
        at.map(|(at, _)| at),
        at.map_or(Uuid::nil(), |(_, id)| id),
        search.limit
    );
    Ok(rows.fetch_all(tx).await?)
}

/// The orders of all sales, from the index `orders_by_status`: the newest of one status, or of each.
async fn of_all(
    tx: &mut PgConnection,
    search: &OrderSearch,
    at: Option<(DateTime<Utc>, Uuid)>,
) -> Result<Vec<OrderRow>, LedgerError> {
    let statuses: Vec<String> = match search.status {
        Some(status) => vec![status.to_string()],
        None => OrderStatus::stored().map(|status| status.to_string()).collect(),
    };
    let rows = sqlx::query_as!(
        OrderRow,
        r#"SELECT o.id AS "id!", o.sale_id AS "sale_id!", o.user_id AS "user_id!", o.quantity AS "quantity!",
                  o.amount_cents AS "amount_cents!", o.status AS "status!", o.reason AS "reason?",
                  o.expires_at AS "expires_at!", o.created_at AS "created_at!"
           FROM unnest($1::text[]) AS wanted (status)
           CROSS JOIN LATERAL (
             SELECT id, sale_id, user_id, quantity, amount_cents, status, reason, expires_at, created_at FROM orders
             WHERE orders.status = wanted.status
               AND (created_at, id) < (coalesce($2::timestamptz, 'infinity'), $3)
             ORDER BY created_at DESC, id DESC LIMIT $4) AS o
           ORDER BY o.created_at DESC, o.id DESC LIMIT $4"#,
        &statuses,
        at.map(|(at, _)| at),
        at.map_or(Uuid::nil(), |(_, id)| id),
        search.limit
    );
    Ok(rows.fetch_all(tx).await?)
}
