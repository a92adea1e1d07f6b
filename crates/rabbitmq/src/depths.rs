//! The number of messages in each queue, for people.

use std::time::Duration;

use lapin::Connection;

use super::{Broker, QueueError};

/// Reads the depths on its own connection, which opens on demand and again after a failure. Declares nothing.
pub struct QueueDepths {
    broker: Broker,
    connection: Option<Connection>,
}

impl QueueDepths {
    pub fn new(broker: Broker) -> Self {
        Self { broker, connection: None }
    }

    /// Each existing queue, with the number of its ready messages.
    pub async fn read(&mut self) -> Result<Vec<(String, u32)>, QueueError> {
        let limit = Duration::from_millis(self.broker.config.connect_timeout_ms);
        let read = tokio::time::timeout(limit, self.ask()).await.unwrap_or(Err(QueueError::TimedOut));
        if read.is_err() {
            self.connection = None;
        }
        read
    }

    async fn ask(&mut self) -> Result<Vec<(String, u32)>, QueueError> {
        let connection = match self.connection.take().filter(|open| open.status().connected()) {
            Some(open) => self.connection.insert(open),
            None => self.connection.insert(self.broker.connect("live page").await?),
        };
        let topology = &self.broker.topology;
        let mut depths = Vec::new();
        for name in topology.queue_names() {
            // One channel each: the broker closes a channel that asks for a missing queue.
            let channel = connection.create_channel().await?;
            if let Some(messages) = topology.ready(&channel, topology.name(&name)).await {
                depths.push((name, messages));
                channel.close(200, "read".into()).await?;
            }
        }
        Ok(depths)
    }

    pub async fn close(self) {
        if let Some(connection) = self.connection {
            // A lost connection needs no close.
            _ = connection.close(200, "nobody looks".into()).await;
        }
    }
}
