//! Cancels the orders of concurrent requests in one transaction. Separate transactions would queue for the row of the sale.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use super::SaleError;
use seckill_domain::ids::{OrderId, UserId};
use seckill_domain::locked_sales::LockedSales;
use seckill_domain::order::{Order, OrderStatus};
use seckill_postgres::orders::committer::Committer;
use seckill_postgres::{LedgerError, Orders};
use seckill_runtime::worker::batcher::{Batcher, PAUSE};

#[derive(Debug)]
pub(crate) enum Cancellation {
    Cancelled(Order),
    /// The order does not exist, or belongs to another buyer.
    Unknown,
    /// The purchase has no order yet.
    NotReady,
    /// The order is paid, or has ended.
    TooLate,
}

/// How long orders of a sale are cancelled one by one after its row was found locked.
const LOCKED_FOR: Duration = Duration::from_secs(5);

/// `None`: the caller cancels the order alone, because it or its sale is locked by another transaction.
type Reply = Option<Cancellation>;

/// Takes cancellations, from all threads.
#[derive(Clone)]
pub struct Cancellations {
    batcher: Batcher<(OrderId, UserId), Reply>,
}

impl Cancellations {
    pub fn start(ledger: &Orders, committer: &Committer, tasks: &TaskTracker) -> Self {
        let state = (ledger.clone(), committer.clone(), Arc::new(LockedSales::new(LOCKED_FOR)));
        let batcher = Batcher::open(tasks, PAUSE, move |asked| {
            let (ledger, committer, locked) = state.clone();
            cancel_together(ledger, committer, locked, asked)
        });
        Self { batcher }
    }

    /// Cancels an unpaid order for its buyer.
    ///
    /// # Errors
    /// `Overloaded`: the queue is full, or the outcome is unknown.
    pub(crate) async fn cancel(&self, order: OrderId, user: &UserId) -> Result<Reply, SaleError> {
        let reply = self.batcher.write((order, user.clone())).await;
        reply.map_err(|_| SaleError::Overloaded("cancellations"))
    }
}

/// Cancels all orders together, or each sale's orders apart while a sale is locked. Returns the cancelled orders.
async fn cancel_unlocked(
    ledger: &Orders,
    locked: &LockedSales,
    named: &[(OrderId, &str)],
) -> Result<HashSet<OrderId>, LedgerError> {
    if !locked.is_any() {
        match ledger.in_time(ledger.cancel_by_buyers(named)).await {
            Err(LedgerError::Locked) => {}
            cancelled => return cancelled,
        }
    }
    let orders: Vec<OrderId> = named.iter().map(|(order, _)| *order).collect();
    let mut cancelled = HashSet::new();
    for (sale, orders) in ledger.in_time(ledger.orders_by_sale(&orders)).await? {
        if locked.contains(sale) {
            continue;
        }
        let of_sale: Vec<_> = named.iter().copied().filter(|(order, _)| orders.contains(order)).collect();
        // Cancelled orders of other sales stay cancelled.
        match ledger.in_time(ledger.cancel_by_buyers(&of_sale)).await {
            Ok(of_sale) => cancelled.extend(of_sale),
            Err(LedgerError::Locked) => {
                tracing::error!(%sale, "the sale is locked by another transaction; its orders are cancelled one by one");
                locked.insert(sale);
            }
            Err(error) => tracing::warn!(%sale, %error, "orders not cancelled together, or not known to be"),
        }
    }
    Ok(cancelled)
}

async fn cancel_together(
    ledger: Orders,
    committer: Committer,
    locked: Arc<LockedSales>,
    asked: Vec<(OrderId, UserId)>,
) -> Option<Vec<Reply>> {
    let named: Vec<(OrderId, &str)> = asked.iter().map(|(order, user)| (*order, user.as_str())).collect();
    let cancelled = match cancel_unlocked(&ledger, &locked, &named).await {
        Ok(cancelled) => cancelled,
        // Each order is then tried alone. Cancelled orders stay cancelled.
        Err(error) => {
            tracing::warn!(%error, orders = asked.len(), "orders not cancelled together, or not known to be");
            return Some(asked.iter().map(|_| None).collect());
        }
    };
    if !cancelled.is_empty() {
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
            // The order cannot be read. The buyer gets the error of a single request.
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
