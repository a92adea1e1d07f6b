//! Buyers who cancel at the same time are served together: all orders of a sale change its stock, and would wait for each other.

use tokio_util::task::TaskTracker;

use super::SaleError;
use crate::domain::ids::{OrderId, UserId};
use crate::domain::order::{Order, OrderStatus};
use crate::ledger::Ledger;
use crate::ledger::orders::committer::Committer;
use crate::worker::batcher::{Batcher, PAUSE};

/// The answer to a buyer who cancels an order.
#[derive(Debug)]
pub enum Cancellation {
    Cancelled(Order),
    /// The order does not exist, or belongs to another buyer.
    Unknown,
    /// The purchase has no order yet.
    NotReady,
    /// The order is paid, or has ended.
    TooLate,
}

/// What came of it together with others; none of an order that another transaction has locked, or whose sale.
type Reply = Option<Cancellation>;

/// Takes cancellations, from all threads.
#[derive(Clone)]
pub struct Cancellations {
    batcher: Batcher<(OrderId, UserId), Reply>,
}

impl Cancellations {
    pub fn start(ledger: &Ledger, committer: &Committer, tasks: &TaskTracker) -> Self {
        let state = (ledger.clone(), committer.clone());
        let batcher = Batcher::open(tasks, PAUSE, move |asked| {
            let (ledger, committer) = state.clone();
            cancel_together(ledger, committer, asked)
        });
        Self { batcher }
    }

    /// Cancels an unpaid order for its buyer; `None` when it is to be cancelled alone.
    ///
    /// # Errors
    /// `Overloaded`: too many wait, or it is not known what was written.
    pub async fn cancel(&self, order: OrderId, user: &UserId) -> Result<Reply, SaleError> {
        let reply = self.batcher.write((order, user.clone())).await;
        reply.map_err(|_| SaleError::Overloaded("cancellations"))
    }
}

async fn cancel_together(ledger: Ledger, committer: Committer, asked: Vec<(OrderId, UserId)>) -> Option<Vec<Reply>> {
    let named: Vec<(OrderId, &str)> = asked.iter().map(|(order, user)| (*order, user.as_str())).collect();
    let cancelled = match ledger.in_time(ledger.cancel_by_buyers(&named)).await {
        Ok(cancelled) => cancelled,
        // Each is tried alone: what was done together is done.
        Err(error) => {
            tracing::warn!(%error, orders = asked.len(), "orders not cancelled together, or not known to be");
            return Some(asked.iter().map(|_| None).collect());
        }
    };
    if !cancelled.is_empty() {
        committer.outbox_changed();
        committer.orders_changed();
    }
    let found = match ledger.in_time(ledger.orders_of_buyers(&named)).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, orders = asked.len(), "cancelled orders not read");
            return None;
        }
    };
    let reply = |(order, user): &(OrderId, UserId)| {
        let own = match found.get(order) {
            None => return Some(Cancellation::Unknown),
            // It cannot be read: the error is that of a buyer who asks alone.
            Some(None) => return None,
            Some(Some(found)) if found.user_id != user.as_str() => return Some(Cancellation::Unknown),
            Some(Some(own)) => &own.order,
        };
        match own.status {
            _ if cancelled.contains(order) => Some(Cancellation::Cancelled(own.clone())),
            OrderStatus::Accepted => Some(Cancellation::NotReady),
            OrderStatus::PendingPayment => None,
            _ => Some(Cancellation::TooLate),
        }
    };
    Some(asked.iter().map(reply).collect())
}
