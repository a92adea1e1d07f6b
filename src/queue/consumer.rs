//! Consuming in batches: acknowledged together once their transaction has committed.

use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::FieldTable;

use super::{Broker, Link, QueueError, Source};

/// An open consumer. When anything goes wrong with it, drop it and open another: the broker delivers again what was
/// not acknowledged.
pub struct Intake {
    link: Link,
    consumer: lapin::Consumer,
}

/// Messages that were delivered together.
pub struct Batch {
    deliveries: Vec<Delivery>,
}

impl Batch {
    /// The messages' bodies, in order: a hundred bytes each.
    pub fn bodies(&self) -> Vec<Vec<u8>> {
        self.deliveries.iter().map(|delivery| delivery.data.clone()).collect()
    }

    pub fn count(&self) -> usize {
        self.deliveries.len()
    }

    /// How many of them were delivered before.
    pub fn redelivered(&self) -> usize {
        self.deliveries.iter().filter(|delivery| delivery.redelivered).count()
    }
}

impl Broker {
    /// Starts to consume.
    pub async fn consume(&self, source: &Source) -> Result<Intake, QueueError> {
        let link = self.link("consumer").await?;
        // Not global: quorum queues know no other.
        link.channel.basic_qos(self.config.prefetch, BasicQosOptions { global: false }).await?;
        let options = BasicConsumeOptions {
            no_ack: false,    // a message is gone only when we say so
            exclusive: false, // other instances consume too
            no_local: false,  // RabbitMQ knows no such thing
            nowait: false,
        };
        let queue = self.topology.queue_of(source);
        let consumer = link.channel.basic_consume(queue, "".into(), options, FieldTable::default()).await?;
        Ok(Intake { link, consumer })
    }
}

impl Intake {
    /// Waits for a message, then takes whatever else has already come, up to `max`.
    pub async fn next(&mut self, max: usize) -> Result<Batch, QueueError> {
        let mut deliveries = vec![self.consumer.next().await.ok_or(QueueError::Closed)??];
        while deliveries.len() < max {
            match self.consumer.next().now_or_never() {
                Some(Some(delivery)) => deliveries.push(delivery?),
                Some(None) => return Err(QueueError::Closed),
                None => break,
            }
        }
        Ok(Batch { deliveries })
    }

    /// Rejects the messages at these places, which go to the dead-letter queue, and acknowledges all others.
    pub async fn settle(&self, batch: Batch, poison: &[usize]) -> Result<(), QueueError> {
        for place in poison {
            if let Some(delivery) = batch.deliveries.get(*place) {
                // Never requeued: it would come straight back.
                delivery.acker.reject(BasicRejectOptions { requeue: false }).await?;
            }
        }
        // One acknowledgement for all up to the last good one: only this task takes from the channel, so that all of
        // them are its own. A tag that was rejected must not be named again.
        let last_good = (0..batch.deliveries.len()).rev().find(|place| !poison.contains(place));
        if let Some(delivery) = last_good.and_then(|place| batch.deliveries.get(place)) {
            let options = BasicAckOptions { multiple: true };
            self.link.channel.basic_ack(delivery.delivery_tag, options).await?;
        }
        Ok(())
    }
}
