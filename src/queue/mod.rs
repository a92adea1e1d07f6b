//! RabbitMQ: the conveyor. The only room that names lapin.

mod consumer;
mod publisher;
mod topology;

use std::time::Duration;

use lapin::types::LongString;
use lapin::{Connection, ConnectionProperties};

use crate::config::{self, Config};

pub use consumer::Consumer;
pub use publisher::{Outgoing, Publisher, Receipt};
use topology::Topology;
pub use topology::{Destination, Source};

/// What can go wrong with the broker.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    #[error("rabbitmq: {0}")]
    Broker(#[from] lapin::Error),
    #[error("rabbitmq did not answer in time")]
    TimedOut,
    #[error("rabbitmq closed the consumer")]
    Closed,
}

/// How to reach the broker, and what stands there.
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

    /// A new connection with a channel on it, on which everything we need is declared. lapin does not reconnect: who
    /// loses a link asks for another, with a pause between.
    async fn link(&self, name: &'static str) -> Result<Link, QueueError> {
        let connect = async {
            let name =
                ConnectionProperties::default().with_connection_name(LongString::from(format!("seckill {name}")));
            let connection = Connection::connect(&self.config.url, name).await?;
            self.topology.declare(&connection).await?;
            let channel = connection.create_channel().await?;
            Ok(Link { channel, connection })
        };
        let patience = Duration::from_millis(self.config.connect_timeout_ms);
        tokio::time::timeout(patience, connect).await.map_err(|_| QueueError::TimedOut)?
    }

    /// Throws away everything that stands under this prefix: for tests, which each have their own.
    pub async fn demolish(&self) -> Result<(), QueueError> {
        let link = self.link("demolish").await?;
        self.topology.delete(&link.channel).await
    }
}

/// A channel, and the connection that it lives on.
struct Link {
    channel: lapin::Channel,
    connection: Connection,
}
