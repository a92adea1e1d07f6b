//! RabbitMQ: publishing and consuming messages. The only room that names lapin.

mod consumer;
mod publisher;
mod topology;

use std::time::Duration;

use lapin::types::LongString;
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};

use crate::config::{self, Config};

pub use consumer::{Consumer, Received};
pub use publisher::{Outgoing, Publisher, Receipt};
use topology::Topology;
pub use topology::{Destination, Source};

/// Why the broker did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    #[error("rabbitmq: {0}")]
    Broker(#[from] lapin::Error),
    #[error("rabbitmq: {0}")]
    Address(String),
    #[error("rabbitmq did not answer in time")]
    TimedOut,
    #[error("rabbitmq closed the consumer")]
    Closed,
}

/// The state of the dead-letter queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadLetters {
    pub messages: u32,
    pub max: u32,
}

/// The type of a message that is a mark: its body is the time at which it was published, in milliseconds.
const MARK: &str = "mark";

/// The broker's address, and the names of its queues.
#[derive(Clone)]
pub struct Broker {
    config: config::Amqp,
    topology: Topology,
}

impl Broker {
    pub fn new(config: &Config) -> Self {
        let offered = config.channels.iter().filter(|(_, channel)| channel.is_offered());
        let channels = offered.map(|(name, _)| name.clone()).collect();
        let topology = Topology::new(&config.amqp.prefix, config.amqp.queue_max_length, channels);
        Self { config: config.amqp.clone(), topology }
    }

    /// Opens a connection and a channel, and declares all queues. lapin does not reconnect: after a lost link, the caller
    /// pauses and opens another.
    async fn link(&self, name: &'static str) -> Result<Link, QueueError> {
        let connect = async {
            let name =
                ConnectionProperties::default().with_connection_name(LongString::from(format!("seckill {name}")));
            let mut uri: AMQPUri = self.config.url.parse().map_err(QueueError::Address)?;
            uri.query.heartbeat = uri.query.heartbeat.or(Some(self.config.heartbeat_s));
            let connection = Connection::connect_uri(uri, name).await?;
            self.topology.declare(&connection).await?;
            let channel = connection.create_channel().await?;
            Ok(Link { channel, connection })
        };
        let timeout = Duration::from_millis(self.config.connect_timeout_ms);
        tokio::time::timeout(timeout, connect).await.map_err(|_| QueueError::TimedOut)?
    }

    /// Deletes every queue under this prefix: for tests, each of which has a prefix of its own.
    pub async fn demolish(&self) -> Result<(), QueueError> {
        let link = self.link("demolish").await?;
        self.topology.delete(&link.channel).await
    }
}

/// A channel and its connection.
struct Link {
    channel: lapin::Channel,
    connection: Connection,
}
