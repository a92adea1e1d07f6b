//! Orders run out of time (protocol, rule 8): by delayed messages, with a slow sweeper as the net under them.

use std::sync::Arc;

use super::{SaleError, Step};
use crate::domain::ids::OrderId;
use crate::domain::message::{OrderExpireV1, OutboxKind, Version};
use crate::ledger::Ledger;
use crate::ledger::notices::Notifier;
use crate::ledger::orders::cancel::ExpiryOutcome;
use crate::ledger::outbox::RetryTerms;
use crate::queue::{Destination, Outgoing, Publisher, QueueError, Receipt};

/// Cancels what was not paid in time.
#[derive(Clone)]
pub struct OrderExpiry {
    pub ledger: Ledger,
    pub publisher: Arc<Publisher>,
    pub notifier: Notifier,
    pub retry: RetryTerms,
}

impl OrderExpiry {
    /// Settles a batch of messages; those that are early are sent round again. Returns the places of unreadable ones.
    #[tracing::instrument(level = "debug", name = "expire", skip_all, fields(messages = bodies.len()))]
    pub async fn settle(&self, bodies: &[Vec<u8>]) -> Result<Vec<usize>, SaleError> {
        let (mut orders, mut poison) = (Vec::with_capacity(bodies.len()), Vec::new());
        for (place, body) in bodies.iter().enumerate() {
            match serde_json::from_slice::<OrderExpireV1>(body) {
                Ok(message) => orders.push(message),
                Err(error) => {
                    tracing::error!(%error, bytes = body.len(), "unreadable message goes to the dead-letter queue");
                    poison.push(place);
                }
            }
        }
        let ids: Vec<OrderId> = orders.iter().map(|message| message.order_id).collect();
        let again: Vec<Outgoing> = self
            .expire(&ids)
            .await?
            .into_iter()
            .zip(orders)
            .filter_map(|((order, expiry), message)| match expiry {
                ExpiryOutcome::Settled => None,
                ExpiryOutcome::Early { remaining_ms } => Some(Outgoing {
                    to: Destination::OrderExpire { remaining_ms },
                    id: OutboxKind::OrderExpire.message_id(order),
                    body: serde_json::to_vec(&OrderExpireV1 { version: Version, ..message }).unwrap_or_default(),
                }),
            })
            .collect();
        self.notifier.outbox_changed();
        self.notifier.orders_changed();
        let receipts = self.publisher.publish(&again).await?;
        // The old message is acknowledged only after the new one is safe.
        if receipts.iter().all(|receipt| *receipt == Receipt::Confirmed) {
            Ok(poison)
        } else {
            Err(QueueError::Closed.into())
        }
    }

    /// Expires a group. Where the ledger refuses it, each order alone: one that cannot be cancelled has its message sent
    /// again later, up to the cap, and holds up nobody.
    async fn expire(&self, orders: &[OrderId]) -> Result<Vec<(OrderId, ExpiryOutcome)>, SaleError> {
        match self.ledger.expire(orders).await {
            Ok(done) => return Ok(done),
            Err(error) if error.is_outage() => return Err(error.into()),
            Err(error) => tracing::warn!(%error, orders = orders.len(), "expiry failed, trying one by one"),
        }
        let mut done = Vec::with_capacity(orders.len());
        for order in orders {
            match self.ledger.expire(&[*order]).await {
                Ok(one) => done.extend(one),
                Err(error) if error.is_outage() => return Err(error.into()),
                Err(error) => {
                    let parked = self
                        .ledger
                        .fail_message(OutboxKind::OrderExpire, *order, &error.to_string(), self.retry)
                        .await?;
                    tracing::error!(%order, %error, parked, "order not cancelled");
                    done.push((*order, ExpiryOutcome::Settled)); // this message is; its row brings another
                }
            }
        }
        Ok(done)
    }

    /// Cancels orders that are overdue although their message should have come by now.
    pub async fn sweep(&self, grace_ms: u64, batch_max: usize) -> Result<Step, SaleError> {
        let limit = i64::try_from(batch_max).unwrap_or(i64::MAX);
        let overdue = self.ledger.overdue(grace_ms, limit).await?;
        if !overdue.is_empty() {
            tracing::warn!(orders = overdue.len(), "overdue orders found by the sweeper");
            self.expire(&overdue).await?;
            self.notifier.outbox_changed();
            self.notifier.orders_changed();
        }
        Ok(Step::after(overdue.len(), batch_max))
    }
}
