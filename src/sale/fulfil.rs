//! Messages about purchases become orders (protocol, rule 7). One bad message never holds up the others.

use super::SaleError;
use crate::domain::ids::OrderId;
use crate::domain::message::{OrderPlacedV1, OutboxKind};
use crate::ledger::Ledger;
use crate::ledger::notices::Notifier;
use crate::ledger::outbox::RetryTerms;

/// Turns purchases into orders.
#[derive(Clone)]
pub struct Fulfilment {
    pub ledger: Ledger,
    pub notifier: Notifier,
    pub retry: RetryTerms,
}

impl Fulfilment {
    /// Turns a batch of purchases into orders. Returns the indexes of messages that have failed for the last time.
    ///
    /// # Errors
    /// When PostgreSQL cannot be reached: the whole batch is to be tried again.
    #[tracing::instrument(level = "debug", name = "fulfil", skip_all, fields(messages = messages.len()))]
    pub async fn settle(&self, messages: Vec<OrderPlacedV1>) -> Result<Vec<usize>, SaleError> {
        let orders: Vec<OrderId> = messages.iter().map(|message| message.order_id).collect();
        orders.iter().for_each(|order| tracing::debug!(%order, "to be fulfilled"));
        let mut failed = Vec::new();
        match self.ledger.fulfil(&orders).await {
            Ok(done) => {
                metrics::counter!("seckill_orders_total", "outcome" => "accepted").increment(done.accepted as u64);
                metrics::counter!("seckill_orders_total", "outcome" => "rejected").increment(done.rejected as u64);
            }
            Err(error) if error.is_outage() => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, messages = orders.len(), "batch failed, trying one by one");
                for (index, order) in orders.into_iter().enumerate() {
                    if self.settle_one(order).await? {
                        failed.push(index);
                    }
                }
            }
        }
        self.notifier.outbox_changed();
        self.notifier.orders_changed();
        Ok(failed)
    }

    /// Fulfils one purchase alone; `true` when it has failed for the last time. Before that its outbox row causes the
    /// message to be sent again.
    async fn settle_one(&self, order: OrderId) -> Result<bool, SaleError> {
        let Err(error) = self.ledger.fulfil(&[order]).await else { return Ok(false) };
        if error.is_outage() {
            return Err(error.into());
        }
        let parked = self.ledger.fail_message(OutboxKind::OrderPlaced, order, &error.to_string(), self.retry).await?;
        tracing::error!(%order, %error, parked, "purchase not fulfilled");
        Ok(parked)
    }
}
