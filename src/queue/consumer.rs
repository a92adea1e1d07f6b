//! Consuming in batches: a batch is decoded, settled, and acknowledged together once it has had its effect.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::FieldTable;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::{Broker, Link, QueueError, Source};
use crate::domain::step::Step;

/// How long one step waits for a message.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Consumes one queue, whose messages are of type `M`. It subscribes when a step needs it, and again after the
/// subscription was lost: the broker then delivers again what was not acknowledged.
pub struct Consumer<M> {
    broker: Broker,
    source: Source,
    batch_max: usize,
    subscription: Option<Subscription>,
    /// A batch whose settling has failed: the next step tries it again.
    unsettled: Option<Batch<M>>,
}

impl<M: DeserializeOwned + Clone> Consumer<M> {
    pub fn new(broker: Broker, source: Source, batch_max: usize) -> Self {
        Self { broker, source, batch_max, subscription: None, unsettled: None }
    }

    /// Takes one batch and passes its messages to `settle`, then acknowledges it. `settle` returns the indexes of the
    /// messages that can never be processed: these go to the dead-letter queue, as does what cannot be decoded.
    ///
    /// # Errors
    /// When the broker fails; what was delivered is delivered again. When `settle` fails; the batch is kept, and the
    /// next step settles it.
    pub async fn step<F, E>(&mut self, stop: &CancellationToken, settle: impl Fn(Vec<M>) -> F) -> Result<Step, E>
    where
        F: Future<Output = Result<Vec<usize>, E>>,
        E: From<QueueError>,
    {
        let mut subscription = match self.subscription.take() {
            Some(subscription) => subscription,
            None => self.broker.subscribe(&self.source).await?,
        };
        let queue = self.source.as_str();
        let batch = match self.unsettled.take() {
            Some(batch) => batch,
            None => {
                let receive = stop.run_until_cancelled(subscription.receive(self.batch_max));
                match tokio::time::timeout(WAIT_MAX, receive).await {
                    Ok(Some(deliveries)) => Batch::decode(queue, deliveries?),
                    Ok(None) | Err(_) => {
                        self.subscription = Some(subscription);
                        return Ok(Step::Idle);
                    }
                }
            }
        };
        let failed = match &batch.messages[..] {
            [] => Ok(Vec::new()),
            messages => settle(messages.to_vec()).await,
        };
        match failed {
            Ok(failed) => {
                subscription.acknowledge(queue, &batch, &failed).await?;
                self.subscription = Some(subscription);
                Ok(Step::More)
            }
            Err(error) => {
                (self.subscription, self.unsettled) = (Some(subscription), Some(batch));
                Err(error)
            }
        }
    }
}

/// Messages that were delivered together.
struct Batch<M> {
    deliveries: Vec<Delivery>,
    /// What could be decoded, and where in `deliveries` each message stands.
    messages: Vec<M>,
    positions: Vec<usize>,
}

impl<M: DeserializeOwned> Batch<M> {
    fn decode(queue: &'static str, deliveries: Vec<Delivery>) -> Self {
        let redelivered = deliveries.iter().filter(|delivery| delivery.redelivered).count();
        metrics::histogram!("seckill_intake_batch_size", "queue" => queue).record(deliveries.len() as f64);
        metrics::counter!("seckill_redelivered_total", "queue" => queue).increment(redelivered as u64);
        let (mut messages, mut positions) =
            (Vec::with_capacity(deliveries.len()), Vec::with_capacity(deliveries.len()));
        for (position, delivery) in deliveries.iter().enumerate() {
            match serde_json::from_slice(&delivery.data) {
                Ok(message) => {
                    messages.push(message);
                    positions.push(position);
                }
                Err(error) => {
                    let bytes = delivery.data.len();
                    tracing::error!(queue, %error, bytes, "unreadable message goes to the dead-letter queue");
                }
            }
        }
        Self { deliveries, messages, positions }
    }
}

/// A channel that receives one queue's messages.
struct Subscription {
    link: Link,
    deliveries: lapin::Consumer,
}

impl Broker {
    async fn subscribe(&self, source: &Source) -> Result<Subscription, QueueError> {
        let link = self.link("consumer").await?;
        // Not global: quorum queues have no other kind.
        link.channel.basic_qos(self.config.prefetch, BasicQosOptions { global: false }).await?;
        let options = BasicConsumeOptions {
            no_ack: false,    // a message is gone only when we say so
            exclusive: false, // other instances consume too
            no_local: false,  // RabbitMQ does not implement it
            nowait: false,
        };
        let queue = self.topology.queue_of(source);
        let deliveries = link.channel.basic_consume(queue, "".into(), options, FieldTable::default()).await?;
        Ok(Subscription { link, deliveries })
    }
}

impl Subscription {
    /// Waits for a message, then takes all others that have already arrived, up to `max` in total.
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, QueueError> {
        let mut received = vec![self.deliveries.next().await.ok_or(QueueError::Closed)??];
        while received.len() < max {
            match self.deliveries.next().now_or_never() {
                Some(Some(delivery)) => received.push(delivery?),
                Some(None) => return Err(QueueError::Closed),
                None => break,
            }
        }
        Ok(received)
    }

    /// Rejects what could not be decoded and the messages that have `failed`, and acknowledges all others.
    async fn acknowledge<M>(&self, queue: &'static str, batch: &Batch<M>, failed: &[usize]) -> Result<(), QueueError> {
        let mut settled = vec![false; batch.deliveries.len()];
        for (index, position) in batch.positions.iter().enumerate() {
            settled[*position] = !failed.contains(&index);
        }
        let good = settled.iter().filter(|settled| **settled).count();
        for (result, messages) in [("settled", good), ("poison", settled.len() - good)] {
            metrics::counter!("seckill_consumed_total", "queue" => queue, "result" => result)
                .increment(messages as u64);
        }
        for (delivery, _) in batch.deliveries.iter().zip(&settled).filter(|(_, settled)| !**settled) {
            // Never requeued: it would come straight back.
            delivery.acker.reject(BasicRejectOptions { requeue: false }).await?;
        }
        // One acknowledgement up to the last good message: no other task takes from this channel, so that all of them
        // belong to this batch. The tag of a rejected message must not be named again.
        if let Some((last_good, _)) = batch.deliveries.iter().zip(&settled).rfind(|(_, settled)| **settled) {
            let options = BasicAckOptions { multiple: true };
            self.link.channel.basic_ack(last_good.delivery_tag, options).await?;
        }
        Ok(())
    }
}
