//! RabbitMQ: publishing and consuming messages. The only room that names lapin.

mod consumer;
mod depths;
pub mod inspect;
pub mod policies;
mod publisher;
mod tls_connection;
mod topology;

use std::time::Duration;

use lapin::types::{LongString, ShortString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties, ErrorKind};

use crate::config::{self, Config, tls};

pub use consumer::{Consumer, Received};
pub use depths::QueueDepths;
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
    #[error("rabbitmq's management interface: {0}")]
    Management(String),
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
        let timeout = Duration::from_millis(self.config.connect_timeout_ms);
        let connect = async {
            let connection = self.connect(name).await?;
            let silent = self.topology.declare(&connection, timeout / 2).await?;
            if !silent.is_empty() {
                tracing::error!(queues = ?silent, "queues do not answer");
            }
            let channel = connection.create_channel().await?;
            Ok(Link { channel, connection, silent })
        };
        tokio::time::timeout(timeout, connect).await.map_err(|_| QueueError::TimedOut)?
    }

    async fn connect(&self, name: &'static str) -> Result<Connection, QueueError> {
        let name = ConnectionProperties::default().with_connection_name(LongString::from(format!("seckill {name}")));
        let mut uri = self.uri()?;
        uri.query.heartbeat = uri.query.heartbeat.or(Some(self.config.heartbeat_s));
        Ok(match uri.scheme {
            AMQPScheme::AMQP => Connection::connect_uri(uri, name).await?,
            AMQPScheme::AMQPS => tls_connection::connect(uri, name, self.config.ca_file.as_ref()).await?,
        })
    }

    fn uri(&self) -> Result<AMQPUri, QueueError> {
        self.config.url.parse().map_err(QueueError::Address)
    }

    /// Checks that the broker does not refuse TLS, where the address asks for it. A broker that cannot be reached now is not
    /// checked.
    ///
    /// # Errors
    /// The broker's certificate is not trusted, or the broker does not speak TLS.
    pub async fn check_tls(&self) -> Result<(), tls::TlsRefused> {
        if self.uri().is_ok_and(|uri| uri.scheme == AMQPScheme::AMQP) {
            return Ok(());
        }
        let timeout = Duration::from_millis(self.config.connect_timeout_ms);
        let problem = match tokio::time::timeout(timeout, self.connect("check")).await {
            Ok(Err(QueueError::Broker(error))) => match error.kind() {
                ErrorKind::IOError(error) => tls::handshake_problem(error),
                _ => None,
            },
            _ => None,
        };
        let (address, setting, variable) = ("amqp.url", "amqp.ca_file", "SECKILL_AMQP__CA_FILE");
        problem
            .map_or(Ok(()), |problem| Err(tls::TlsRefused { server: "RabbitMQ", problem, address, setting, variable }))
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
    /// The queues that did not answer when they were declared.
    silent: Vec<ShortString>,
}
