//! Orders: searching, exporting and refunding them. All accounts see orders. Only operators see buyers, move money, and export.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use utoipa::IntoParams;

use super::paging::{cut, given, limit, uuid};
use super::sale_form::TIME_MAX;
use super::sales::SaleSearch;
use super::{AdminError, Office, operators_only};
use seckill_domain::account::Account;
use seckill_domain::ids::{Invalid, OrderId, SaleId, UserId};
use seckill_domain::order::OrderStatus;
use seckill_domain::payment::{RefundId, RefundReason, RefundStatus};
use seckill_domain::text;
use seckill_money::{PaymentService, RefundOutcome};
pub use seckill_postgres::orders::details::OrderDetails;
pub use seckill_postgres::orders::listed::ListedOrder;
use seckill_postgres::orders::read::OrderSearch;
pub use seckill_postgres::orders::search::FoundOrders;
use seckill_postgres::orders::search::OrderExport;
use seckill_postgres::sales::erasure::ErasureReport;

/// Sales whose orders are searched through together.
const SALES_MAX: i64 = 100;
/// How long a file may take to be read: its snapshot keeps PostgreSQL from tidying up.
const EXPORT_TIME_MAX: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OrderQuery {
    /// Only orders of this sale.
    #[param(value_type = Option<SaleId>, nullable = false)]
    pub(crate) sale: Option<String>,
    /// Only orders of this status. `accepted` is a purchase whose order is not made yet.
    #[param(value_type = Option<OrderStatus>, nullable = false)]
    pub(crate) status: Option<String>,
    /// Only this buyer's orders: 1 to 128 bytes of UTF-8, with the spaces that they begin and end with.
    #[param(value_type = Option<String>, nullable = false, pattern = "^[^\\u0000-\\u001F\\u007F-\\u009F]{1,128}$")]
    pub(crate) user: Option<String>,
    /// Only orders of sales of products with this in their name, in capitals or not. At most 100 sales may fit.
    #[param(nullable = false, max_length = 200)]
    pub(crate) product: Option<String>,
    /// Only orders with this number: what buyers see of an order's id, its last 8 characters. Needs a sale, a product, a buyer or a time, too.
    #[param(nullable = false, pattern = "^#?[0-9A-Fa-f]{8}$")]
    pub(crate) number: Option<String>,
    /// Only orders that were made at this moment or later, in ms since 1970.
    #[param(value_type = Option<i64>, nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub(crate) from_ms: Option<String>,
    /// Only orders that were made before this moment.
    #[param(value_type = Option<i64>, nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub(crate) to_ms: Option<String>,
    /// Only this order.
    #[param(value_type = Option<OrderId>, nullable = false)]
    pub(crate) order: Option<String>,
    /// The next page: `next_before` of the page before.
    #[param(value_type = Option<OrderId>, nullable = false)]
    pub(crate) before: Option<String>,
    /// The most orders to return; 100 by default. An export takes all.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<String>,
}

impl OrderQuery {
    pub(crate) fn search(&self) -> Result<OrderSearch, Invalid> {
        let status = |text: &str| text.parse().map_err(|_| Invalid::new("status", "is not a status of orders"));
        Ok(OrderSearch {
            sales: given(&self.sale).map(SaleId::parse).transpose()?.map(|sale| vec![sale]),
            number: given(&self.number).map(OrderId::parse_number).transpose()?,
            from_ms: moment(&self.from_ms, "from_ms")?,
            until_ms: moment(&self.to_ms, "to_ms")?,
            status: given(&self.status).map(status).transpose()?,
            // Not trimmed: a buyer's id may begin or end with a space.
            user: self.user.as_deref().filter(|user| !user.is_empty()).map(UserId::parse).transpose()?,
            before: given(&self.before).map(|text| uuid(text, "before")).transpose()?.map(OrderId),
            limit: limit(&self.limit)?,
        })
    }

    fn order(&self) -> Result<Option<OrderId>, Invalid> {
        given(&self.order).map(|text| uuid(text, "order").map(OrderId)).transpose()
    }
}

fn moment(text: &Option<String>, field: &'static str) -> Result<Option<i64>, Invalid> {
    let wrong = || Invalid::new(field, "must be 0 to 9007199254740991");
    given(text).map(|text| text.parse().ok().filter(|ms| (0..=TIME_MAX).contains(ms)).ok_or_else(wrong)).transpose()
}

pub(crate) struct Export {
    orders: OrderExport,
    until: Instant,
    /// Another export begins when this one is dropped.
    _place: OwnedSemaphorePermit,
}

impl Export {
    pub(crate) async fn next_piece(&mut self) -> Result<Vec<ListedOrder>, AdminError> {
        if Instant::now() >= self.until {
            return Err(AdminError::Busy("exports"));
        }
        Ok(self.orders.next_piece().await?)
    }
}

impl Office {
    /// A page of orders, newest first. An account that may not see buyers can search for a known buyer.
    pub(crate) async fn orders(&self, account: &Account, query: &OrderQuery) -> Result<FoundOrders, AdminError> {
        let search = self.search(query).await?;
        let mut found = match query.order()? {
            None => {
                self.record_pages(account, "orders", search.before.is_some(), search.limit).await?;
                self.ledger
                    .orders
                    .search_orders(&search)
                    .await?
                    .ok_or(Invalid::new("before", "is no order of this list"))?
            }
            Some(order) => {
                let found = self.ledger.orders.listed_order(order).await?;
                let orders = found.into_iter().filter(|found| fits(&search, found)).collect();
                FoundOrders { orders, next: None, lacks_accepted: false }
            }
        };
        hide(account, &mut found.orders);
        Ok(found)
    }

    /// The search that is asked for, with the sales whose product fits.
    async fn search(&self, query: &OrderQuery) -> Result<OrderSearch, AdminError> {
        let mut search = query.search()?;
        if let Some(text) = given(&query.product) {
            let text = text::line(text, "product", 0..=200)?;
            let only = search.sales.as_deref().and_then(|sales| sales.first().copied());
            let fitting = SaleSearch { only, text: Some(text), limit: SALES_MAX + 1, ..SaleSearch::default() };
            let mut fitting = self.ledger.sales.sale_ids(&fitting).await?;
            if cut(&mut fitting, SALES_MAX).is_some() {
                return Err(
                    Invalid::new("product", "fits more than 100 sales: write more of its name, or the sale").into()
                );
            }
            search.sales = Some(fitting);
        }
        let is_narrow = search.sales.is_some() || search.user.is_some() || search.from_ms.is_some();
        if search.number.is_some() && !is_narrow {
            let problem = "is searched for in a sale, a product, of a buyer, or from a time on: name one of them, too";
            return Err(Invalid::new("number", problem).into());
        }
        Ok(search)
    }

    /// An order with its history. Payments, refunds and messages are for operators: other accounts get an order without them.
    pub(crate) async fn order(&self, account: &Account, order: OrderId) -> Result<OrderDetails, AdminError> {
        let mut details = self.ledger.orders.order_details(order).await?.ok_or(AdminError::Unknown("order"))?;
        if !account.may_operate() {
            details.payments.clear();
            details.refunds.clear();
            details.messages.clear();
        }
        hide(account, std::slice::from_mut(&mut details.order));
        Ok(details)
    }

    /// Begins an export of all orders that are asked for. An instance makes one at a time, because it holds a connection. The audit
    /// log has the export before its first order is read. `None` if only the headers are wanted.
    pub(crate) async fn export_orders(
        &self,
        account: &Account,
        query: &OrderQuery,
        only_headers: bool,
    ) -> Result<Option<Export>, AdminError> {
        operators_only(account)?;
        let mut search = self.search(query).await?;
        search.limit = i64::MAX;
        if query.order()?.is_some() {
            return Err(Invalid::new("order", "cannot be exported alone").into());
        }
        if only_headers {
            return Ok(None);
        }
        let place = Arc::clone(&self.exports).try_acquire_owned().map_err(|_| AdminError::Busy("exports"))?;
        let details = json!({
            "sale": given(&query.sale), "product": given(&query.product), "status": search.status, "user": search.user,
            "number": search.number, "from_ms": search.from_ms, "to_ms": search.until_ms, "before": search.before,
        });
        let orders = self
            .ledger
            .orders
            .export_orders(search)
            .await?
            .ok_or(Invalid::new("before", "is no order of this list"))?;
        self.ledger.accounts.record(account.name.as_str(), "export orders", "orders", details).await?;
        Ok(Some(Export { orders, until: Instant::now() + EXPORT_TIME_MAX, _place: place }))
    }

    pub(crate) async fn erase_buyer(&self, account: &Account, user: &UserId) -> Result<ErasureReport, AdminError> {
        operators_only(account)?;
        self.ledger.sales.erase_buyer(account.name.as_str(), user.as_str()).await?.map_err(|obstacles| {
            let obstacles: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
            AdminError::Conflict(format!("the buyer is not erased: {}", obstacles.join("; ")))
        })
    }

    /// Refunds a paid order, by the use case that buyers refund with. Repeated, it returns the refund that is under way.
    pub(crate) async fn refund_order(
        &self,
        account: &Account,
        payments: &PaymentService,
        order: OrderId,
        reason: &str,
    ) -> Result<(RefundId, RefundStatus), AdminError> {
        operators_only(account)?;
        let reason = RefundReason::parse(reason)?;
        if reason.as_str().is_empty() {
            return Err(Invalid::new("reason", "must say why the order is refunded").into());
        }
        match payments.refund(None, account.name.as_str(), order, &reason).await? {
            RefundOutcome::Refund(refund, status) => Ok((refund, status)),
            RefundOutcome::IllegalState => {
                Err(AdminError::IllegalState("the order is not paid, or was not paid through a payment channel"))
            }
            RefundOutcome::Unknown => match self.ledger.orders.order(order).await? {
                Some(_) => Err(AdminError::IllegalState("the order is still being made")),
                None => Err(AdminError::Unknown("order")),
            },
        }
    }
}

/// Takes out what the account may not see.
fn hide(account: &Account, orders: &mut [ListedOrder]) {
    if !account.sees_buyers() {
        orders.iter_mut().for_each(|listed| listed.of.user_id.clear());
    }
    if !account.may_operate() {
        orders.iter_mut().for_each(ListedOrder::hide_money);
    }
}

fn fits(search: &OrderSearch, found: &ListedOrder) -> bool {
    let order = &found.of.order;
    search.sales.as_ref().is_none_or(|sales| sales.contains(&order.sale_id))
        && search.status.is_none_or(|status| status == order.status)
        && search.user.as_ref().is_none_or(|user| user.as_str() == found.of.user_id)
        && search.number.as_ref().is_none_or(|number| *number == found.number)
        && search.from_ms.is_none_or(|from| order.created_at_ms >= from)
        && search.until_ms.is_none_or(|until| order.created_at_ms < until)
}
