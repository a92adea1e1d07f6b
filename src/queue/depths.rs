//! How many messages wait in the queues, for people who look.

use std::time::Duration;

use lapin::Connection;

use super::{Broker, QueueError};

/// Reads the depths over a connection of its own, which is opened when it is needed, and again after it has failed. It declares nothing.
pub struct QueueDepths {
    broker: Broker,
    connection: Option<Connection>,
}

impl QueueDepths {
    pub fn new(broker: Broker) -> Self {
        Self { broker, connection: None }
    }

    /// Each queue that exists, with its messages that are ready to be delivered.
    ///
    /// # Errors
    /// The broker cannot be reached, or does not answer in time.
    pub async fn read(&mut self) -> Result<Vec<(String, u32)>, QueueError> {
        let limit = Duration::from_millis(self.broker.config.connect_timeout_ms);
        let read = match tokio::time::timeout(limit, self.ask()).await {
            Ok(read) => read,
            Err(_) => Err(QueueError::TimedOut),
        };
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
            // A channel for each: the broker closes one that asks for a queue that does not exist.
            let channel = connection.create_channel().await?;
            if let Some(messages) = topology.messages(&channel, &name).await {
                depths.push((name, messages));
                channel.close(200, "read".into()).await?;
            }
        }
        Ok(depths)
    }

    /// Ends the connection.
    pub async fn close(self) {
        if let Some(connection) = self.connection {
            // One that is lost needs no end.
            _ = connection.close(200, "nobody looks".into()).await;
        }
    }
}
