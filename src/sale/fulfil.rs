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
    /// Settles a batch; returns the places of messages that can never be processed. An error means that PostgreSQL
    /// could not be asked: the batch is to be tried again as it is.
    #[tracing::instrument(level = "debug", name = "fulfil", skip_all, fields(messages = bodies.len()))]
    pub async fn settle(&self, bodies: &[Vec<u8>]) -> Result<Vec<usize>, SaleError> {
        let (mut orders, mut places, mut poison) = (Vec::with_capacity(bodies.len()), Vec::new(), Vec::new());
        for (place, body) in bodies.iter().enumerate() {
            match serde_json::from_slice::<OrderPlacedV1>(body) {
                Ok(message) => {
                    orders.push(message.order_id);
                    places.push(place);
                }
                Err(error) => {
                    tracing::error!(%error, bytes = body.len(), "unreadable message goes to the dead-letter queue");
                    poison.push(place);
                }
            }
        }
        if !orders.is_empty() {
            orders.iter().for_each(|order| tracing::debug!(%order, "to be fulfilled"));
            match self.ledger.fulfil(&orders).await {
                Ok(done) => {
                    metrics::counter!("seckill_orders_total", "outcome" => "accepted").increment(done.accepted as u64);
                    metrics::counter!("seckill_orders_total", "outcome" => "rejected").increment(done.rejected as u64);
                }
                Err(error) if error.is_outage() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, messages = orders.len(), "batch failed, trying one by one");
                    for (order, place) in orders.into_iter().zip(places) {
                        if self.settle_one(order).await? {
                            poison.push(place);
                        }
                    }
                }
            }
            self.notifier.outbox_changed();
            self.notifier.orders_changed();
        }
        Ok(poison)
    }

    /// One message alone; `true` when it has failed for the last time. Before that its outbox row brings it back.
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
