//! What buyers ask for beside a purchase: how a sale stands, and their own orders.

use super::SaleError;
use super::thread_state::ThreadState;
use crate::domain::ids::{OrderId, SaleId, UserId};
use crate::domain::order::{Order, OrderStatus};
use crate::ledger::orders::read::OrderFilter;

/// Orders that are listed at most.
const LIST_MAX: i64 = 100;

/// What came of a buyer's wish to cancel.
#[derive(Debug)]
pub enum Cancellation {
    Cancelled(Order),
    /// No such order, or another's.
    Unknown,
    /// It is not an order yet.
    NotReady,
    /// It has been paid, or has ended.
    TooLate,
}

impl ThreadState {
    /// Whether nothing is left at the moment. A sale whose figures cannot be had is not called sold out: the purchase
    /// itself will say.
    pub async fn is_sold_out(&self, sale: SaleId) -> bool {
        if let Some(sold_out) = self.sold_out.recall(sale) {
            return sold_out;
        }
        let view = self.gate.sale_view(sale).await.ok().flatten();
        let sold_out = view.is_some_and(|view| view.serving && view.available == Some(0));
        self.sold_out.note(sale, sold_out);
        sold_out
    }

    /// An order of this buyer's; another's is not told from none.
    pub async fn order_of(&self, user: &UserId, order: OrderId) -> Result<Option<Order>, SaleError> {
        let found = self.ledger.order(order).await?;
        Ok(found.filter(|found| found.user_id == user.as_str()).map(|found| found.order))
    }

    /// This buyer's orders, newest first.
    pub async fn orders_of(&self, user: &UserId, sale: Option<SaleId>) -> Result<Vec<Order>, SaleError> {
        let filter = OrderFilter { sale, user: Some(user.to_string()), limit: LIST_MAX, ..OrderFilter::default() };
        Ok(self.ledger.orders(&filter).await?.into_iter().map(|owned| owned.order).collect())
    }

    /// Cancels an unpaid order for its buyer.
    pub async fn cancel(&self, user: &UserId, order: OrderId) -> Result<Cancellation, SaleError> {
        match self.order_of(user, order).await? {
            None => return Ok(Cancellation::Unknown),
            Some(found) if found.status == OrderStatus::Accepted => return Ok(Cancellation::NotReady),
            Some(_) => {}
        }
        if !self.ledger.cancel_by_buyer(order, user.as_str()).await? {
            return Ok(Cancellation::TooLate);
        }
        self.committer.outbox_changed();
        self.committer.orders_changed();
        Ok(self.order_of(user, order).await?.map_or(Cancellation::Unknown, Cancellation::Cancelled))
    }
}
