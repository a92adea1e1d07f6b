//! RabbitMQ: publishing and consuming messages. The only crate that names lapin.

mod consumer;
mod depths;
pub mod inspect;
pub mod policies;
mod publisher;
mod stuck_queues;
mod topology;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{AsyncRead, AsyncWrite};
use lapin::tcp::{AsyncTcpStream, RustlsConnector, RustlsConnectorConfig};
use lapin::types::{LongString, ShortString};
use lapin::uri::{AMQPAuthority, AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties, ErrorKind, runtime};

use seckill_config::servers::each_server;
use seckill_config::{self as config, Config, tls};
use seckill_webhook::connect_to_any;

pub use consumer::{Consumer, MessageBatch};
pub use depths::QueueDepths;
pub use publisher::{Outgoing, Publisher, Receipt};
use topology::Topology;
pub use topology::{Destination, Source};

#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    #[error("rabbitmq: {0}")]
    Broker(#[from] lapin::Error),
    #[error("rabbitmq: {0}")]
    Address(String),
    #[error("rabbitmq did not answer in time")]
    TimedOut,
    #[error("rabbitmq closed the channel")]
    Closed,
    #[error("rabbitmq did not confirm every message")]
    Unconfirmed,
    #[error("rabbitmq's management interface: {0}")]
    Management(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadLetters {
    pub messages: u32,
    pub max: u32,
}

/// The type of a mark. Its body is its publishing time in milliseconds.
const MARK: &str = "mark";
/// The largest frame, in bytes, unless the address sets `frame_max`. A connection buffers 64 frames: 1 MiB, or 8 MiB with the server's
/// default of 128 KiB. A larger message takes several frames.
const FRAME_MAX: u32 = 16 * 1024;

/// The broker's address, with the names of its queues.
#[derive(Clone)]
pub struct Broker {
    config: config::Amqp,
    topology: Topology,
    /// The node to try first, for all links: the last one that answered.
    node: Arc<AtomicUsize>,
}

impl Broker {
    pub fn new(config: &Config) -> Self {
        let offered = config.channels.iter().filter(|(_, channel)| channel.is_offered());
        let channels = offered.map(|(name, _)| name.clone()).collect();
        let topology = Topology::new(&config.amqp.prefix, config.amqp.queue_max_length, channels);
        Self { config: config.amqp.clone(), topology, node: Arc::default() }
    }

    /// Opens a connection and a channel, and declares all queues. lapin does not reconnect: the caller opens another link.
    async fn link(&self, name: &'static str) -> Result<Link, QueueError> {
        let patience = Duration::from_millis(self.config.connect_timeout_ms) / 2;
        let has_others = self.nodes()?.len() > 1;
        self.at_a_node(|broker, node| async move {
            let connection = broker.connect_to(node, name).await?;
            let silent = broker.topology.declare(&connection, patience).await?;
            if !silent.is_empty() {
                tracing::error!(queues = ?silent, "queues do not answer");
            }
            // The node itself is sick. Another one may reach the queues.
            if has_others && silent.len() == broker.topology.queues().len() {
                return Err(QueueError::TimedOut);
            }
            let channel = connection.create_channel().await?;
            Ok(Link { channel, connection, silent })
        })
        .await
    }

    async fn connect(&self, name: &'static str) -> Result<Connection, QueueError> {
        self.at_a_node(|broker, node| async move { broker.connect_to(node, name).await }).await
    }

    /// Runs a step at the node that answered last. If that fails or takes too long, tries each other node once.
    async fn at_a_node<T, F>(&self, step: impl Fn(Self, AMQPUri) -> F) -> Result<T, QueueError>
    where
        F: Future<Output = Result<T, QueueError>>,
    {
        let (nodes, first) = (self.nodes()?, self.node.load(Ordering::Relaxed));
        let timeout = Duration::from_millis(self.config.connect_timeout_ms);
        let mut failed = QueueError::TimedOut;
        for place in (first..first + nodes.len()).map(|place| place % nodes.len()) {
            let done = tokio::time::timeout(timeout, step(self.clone(), nodes[place].clone())).await;
            match done.unwrap_or(Err(QueueError::TimedOut)) {
                Ok(done) => {
                    self.node.store(place, Ordering::Relaxed);
                    return Ok(done);
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    async fn connect_to(&self, mut node: AMQPUri, name: &'static str) -> Result<Connection, QueueError> {
        let name = ConnectionProperties::default().with_connection_name(LongString::from(format!("seckill {name}")));
        node.query.heartbeat = node.query.heartbeat.or(Some(self.config.heartbeat_s));
        node.query.frame_max = node.query.frame_max.or(Some(FRAME_MAX));
        let tls = self.tls_to(&node).map_err(lapin::Error::from)?;
        let connected = Connection::connector(
            node,
            runtime::default_runtime()?,
            async move |node: AMQPUri, runtime| {
                Ok(open(&node, tls.as_ref(), |address| AsyncTcpStream::connect(&runtime, address)).await?)
            },
            name,
        );
        Ok(connected.await?)
    }

    fn tls_to(&self, node: &AMQPUri) -> io::Result<Option<RustlsConnector>> {
        match node.scheme {
            AMQPScheme::AMQP => Ok(None),
            AMQPScheme::AMQPS => tls_connector(self.config.ca_file.as_ref()).map(Some),
        }
    }

    /// The parts of the address before and after the nodes are the same for all nodes.
    fn first_node(&self) -> Result<AMQPUri, QueueError> {
        Ok(self.nodes()?.swap_remove(0))
    }

    fn nodes(&self) -> Result<Vec<AMQPUri>, QueueError> {
        each_server(&self.config.url).into_iter().map(|node| node.parse().map_err(QueueError::Address)).collect()
    }

    /// If the address asks for TLS: checks that the broker speaks it, with a trusted certificate. Skips a broker that is unreachable now.
    pub async fn check_tls(&self) -> Result<(), tls::TlsRefused> {
        let nodes = self.nodes().unwrap_or_default();
        let checks =
            nodes.into_iter().filter(|node| node.scheme == AMQPScheme::AMQPS).map(|node| self.tls_problem(node));
        let problem = join_all(checks).await.into_iter().flatten().next();
        let (address, setting) = ("amqp.url", "amqp.ca_file");
        problem.map_or(Ok(()), |problem| Err(tls::TlsRefused { server: "RabbitMQ", problem, address, setting }))
    }

    async fn tls_problem(&self, node: AMQPUri) -> Option<String> {
        let timeout = Duration::from_millis(self.config.connect_timeout_ms);
        match tokio::time::timeout(timeout, self.connect_to(node, "check")).await {
            Ok(Err(QueueError::Broker(error))) => match error.kind() {
                ErrorKind::IOError(error) => tls::handshake_problem(error),
                _ => None,
            },
            _ => None,
        }
    }

    /// Deletes every queue with this prefix. For tests, which have their own prefixes.
    pub async fn demolish(&self) -> Result<(), QueueError> {
        let link = self.link("demolish").await?;
        self.topology.delete(&link.channel).await
    }
}

struct Link {
    channel: lapin::Channel,
    connection: Connection,
    /// The queues that did not answer their declaration.
    silent: Vec<ShortString>,
}

/// Opens a stream to the first of the node's addresses that answers.
async fn open<S, F>(
    node: &AMQPUri,
    tls: Option<&RustlsConnector>,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<AsyncTcpStream<S>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    F: Future<Output = io::Result<AsyncTcpStream<S>>>,
{
    let AMQPAuthority { host, port, .. } = &node.authority;
    // An IPv6 address stands in brackets.
    let addresses = tokio::net::lookup_host((host.trim_matches(['[', ']']), *port)).await?;
    let stream = connect_to_any(addresses.collect(), connect).await?;
    match tls {
        Some(tls) => stream.into_rustls(tls, host).await,
        None => Ok(stream),
    }
}

/// Trusts a certificate from these authorities, or from the machine's trusted ones.
fn tls_connector(authorities: Option<&tls::CaFile>) -> io::Result<RustlsConnector> {
    let trusted = match authorities {
        // lapin's own setting for authorities fails on a machine without trusted ones.
        Some(authorities) => RustlsConnectorConfig::default().with_parsable_certificates(authorities.certificates()),
        None => RustlsConnectorConfig::new_with_native_certs()?,
    };
    trusted.connector_with_no_client_auth()
}
