//! Whether a sale is sold out, and the orders of a buyer.

use std::time::{Duration, Instant};

use super::SaleError;
use super::cancellations::Cancellation;
use super::thread_state::ThreadState;
use seckill_domain::ids::{OrderId, SaleId, UserId};
use seckill_domain::order::{Order, OrderStatus};
use seckill_domain::sale::Sale;
use seckill_postgres::orders::read::{OrderSearch, OwnedOrder};

/// The most orders on one page.
const PAGE: usize = 100;
/// How long a thread shows the units that it has read, and for how many sales.
const SHOWN_FOR: Duration = Duration::from_millis(200);
const SHOWN_MAX: usize = 1024;

#[derive(Debug, Clone, Copy)]
pub struct ShownUnits {
    pub(crate) is_sold_out: bool,
    /// `None`: without a limit, or not known.
    pub(crate) available: Option<i64>,
}

#[derive(Debug)]
pub(crate) struct OrderPage {
    pub(crate) orders: Vec<Order>,
    /// Whether there are more after them.
    pub(crate) more: bool,
}

impl ThreadState {
    /// Whether no unit is for sale now. `false` also when Redis does not answer: a purchase will give the answer.
    pub(crate) async fn is_sold_out(&self, sale: &Sale) -> bool {
        self.shown_units(sale).await.is_sold_out
    }

    /// The units for sale now. Many pages cause few calls to Redis.
    pub(crate) async fn shown_units(&self, sale: &Sale) -> ShownUnits {
        let before = self.shown_units.borrow().get(&sale.id).copied();
        match before {
            Some((read_at, units)) if read_at.elapsed() < SHOWN_FOR => return units,
            _ => {}
        }
        let view = self.gate.sale_view(sale.sharding()).await.ok().flatten();
        let units = match view.filter(|view| view.serving) {
            Some(view) => ShownUnits { is_sold_out: view.available == Some(0), available: view.available },
            // While the sale is refilled, pages show what they showed before.
            None => ShownUnits { is_sold_out: false, available: before.and_then(|(_, units)| units.available) },
        };
        let mut shown = self.shown_units.borrow_mut();
        if shown.len() >= SHOWN_MAX {
            shown.clear();
        }
        shown.insert(sale.id, (Instant::now(), units));
        units
    }

    /// An order of this buyer; `None` also when it belongs to another.
    pub async fn order_of(&self, user: &UserId, order: OrderId) -> Result<Option<Order>, SaleError> {
        Ok(own(user, self.order_reader.read(order, user).await?))
    }

    /// The same, without the line of readers.
    pub(super) async fn order_of_now(&self, user: &UserId, order: OrderId) -> Result<Option<Order>, SaleError> {
        Ok(own(user, self.ledger.orders.order_of(order, user.as_str()).await?))
    }

    /// A page of this buyer's orders, newest first: those after the order `after` in this list, or the first ones.
    pub(crate) async fn orders_of(
        &self,
        user: &UserId,
        sale: Option<SaleId>,
        after: Option<OrderId>,
    ) -> Result<OrderPage, SaleError> {
        let limit = i64::try_from(PAGE + 1).unwrap_or(i64::MAX);
        let sales = sale.map(|sale| vec![sale]);
        let search = OrderSearch { sales, user: Some(user.clone()), before: after, limit, ..OrderSearch::default() };
        let mut orders: Vec<Order> =
            self.ledger.orders.orders(&search).await?.into_iter().map(|owned| owned.order).collect();
        let more = orders.len() > PAGE;
        orders.truncate(PAGE);
        Ok(OrderPage { orders, more })
    }

    /// Cancels an unpaid order for its buyer, and waits for it if it is locked.
    pub(crate) async fn cancel(&self, user: &UserId, order: OrderId) -> Result<Cancellation, SaleError> {
        match self.order_of_now(user, order).await? {
            None => return Ok(Cancellation::Unknown),
            Some(found) if found.status == OrderStatus::Accepted => return Ok(Cancellation::NotReady),
            Some(_) => {}
        }
        if !self.ledger.orders.cancel_by_buyer(order, user.as_str()).await? {
            return Ok(Cancellation::TooLate);
        }
        self.committer.orders_changed();
        Ok(self.order_of_now(user, order).await?.map_or(Cancellation::Unknown, Cancellation::Cancelled))
    }
}

fn own(user: &UserId, found: Option<OwnedOrder>) -> Option<Order> {
    found.filter(|found| found.user_id == user.as_str()).map(|found| found.order)
}
