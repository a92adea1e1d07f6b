//! The exchange, the queues and their bindings. Declarations are idempotent: every link declares all of them, except the delay queues.
//! There may be 95 of these queues. A publisher declares the ones it uses.

use std::time::Duration;

use futures_util::future::join_all;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Connection, ExchangeKind};
use tokio::time::timeout;

use super::{DeadLetters, QueueError};
use seckill_domain::delay::{ladder_ms, rung_for};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    GroupsPlaced,
    /// To the expiry of orders, after about this delay.
    GroupsExpire {
        remaining_ms: i64,
    },
    /// To the workers for this payment channel.
    PaymentRequested {
        channel: String,
    },
    /// To a queue itself: a mark. When it arrives, everything before it was delivered.
    Mark(Source),
}

impl Destination {
    /// The next step of the delay ladder, in milliseconds.
    pub(super) fn rung_ms(&self) -> Option<i64> {
        match self {
            Self::GroupsExpire { remaining_ms } => Some(rung_for(*remaining_ms)),
            Self::GroupsPlaced | Self::PaymentRequested { .. } | Self::Mark(_) => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    GroupsPlaced,
    GroupsExpire,
    /// Payments of one channel. Each channel has its own queue.
    PaymentRequested {
        channel: String,
    },
}

impl Source {
    /// The queue's name in the ledger.
    pub fn key(&self) -> String {
        match self {
            Self::GroupsPlaced | Self::GroupsExpire => self.as_str().to_owned(),
            Self::PaymentRequested { channel } => format!("{}.{channel}", self.as_str()),
        }
    }

    /// The queue's name, without prefix and channel.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::GroupsPlaced => "groups-placed",
            Self::GroupsExpire => "groups-expire",
            Self::PaymentRequested { .. } => "payment-requested",
        }
    }

    /// The highest prefetch of a consumer, whatever the settings say.
    pub(super) const fn prefetch_max(&self) -> u16 {
        match self {
            Self::GroupsPlaced | Self::GroupsExpire => PREFETCH_OF_GROUPS_MAX,
            Self::PaymentRequested { .. } => u16::MAX,
        }
    }
}

/// For messages about groups: about 16,000 orders. A worker that needs longer than `outbox.resend_after_ms` for them may get them twice:
/// after a mark has reached another worker, they count as lost (protocol, rule 6).
const PREFETCH_OF_GROUPS_MAX: u16 = 64;

const DEAD: &str = "dead";

pub(super) const QUEUE: QueueDeclareOptions = QueueDeclareOptions {
    durable: true,      // quorum queues are
    exclusive: false,   // all instances share it
    auto_delete: false, // it stays when it has no consumer
    passive: false,
    nowait: false,
};

/// All names, under a prefix, so that several systems can share a broker.
#[derive(Debug, Clone)]
pub(crate) struct Topology {
    prefix: String,
    max_length: u32,
    /// The payment channels with a queue.
    channels: Vec<String>,
}

impl Topology {
    pub(crate) fn new(prefix: &str, max_length: u32, channels: Vec<String>) -> Self {
        Self { prefix: prefix.to_owned(), max_length, channels }
    }

    pub(crate) fn sources(&self) -> Vec<Source> {
        let payments = self.channels.iter().map(|channel| Source::PaymentRequested { channel: channel.clone() });
        [Source::GroupsPlaced, Source::GroupsExpire].into_iter().chain(payments).collect()
    }

    /// One direct exchange, with queue names as routing keys.
    pub(crate) fn exchange(&self) -> ShortString {
        format!("{}seckill", self.prefix).into()
    }

    pub(crate) fn queue_of(&self, source: &Source) -> ShortString {
        self.name(&source.key())
    }

    /// The queue for a message; `None` for a payment of a channel that is not configured.
    pub(crate) fn route_to(&self, destination: &Destination) -> Option<ShortString> {
        match destination {
            Destination::GroupsPlaced => Some(self.queue_of(&Source::GroupsPlaced)),
            Destination::GroupsExpire { .. } => destination.rung_ms().map(|rung_ms| self.delay_queue(rung_ms)),
            Destination::PaymentRequested { channel } => self
                .channels
                .contains(channel)
                .then(|| self.queue_of(&Source::PaymentRequested { channel: channel.clone() })),
            Destination::Mark(source) => self.sources().contains(source).then(|| self.queue_of(source)),
        }
    }

    pub(super) fn name(&self, name: &str) -> ShortString {
        format!("{}{name}", self.prefix).into()
    }

    fn delay_queue(&self, rung_ms: i64) -> ShortString {
        self.name(&format!("delay-groups-{rung_ms}"))
    }

    /// Declares everything, on separate channels. Returns the queues that did not answer within `patience`. They do not delay the others.
    pub(crate) async fn declare(
        &self,
        connection: &Connection,
        patience: Duration,
    ) -> Result<Vec<ShortString>, QueueError> {
        let channel = connection.create_channel().await?;
        let exchange = ExchangeDeclareOptions {
            durable: true,      // a restart of the broker loses nothing
            auto_delete: false, // it stays when no client is connected
            internal: false,    // we publish to it ourselves
            passive: false,
            nowait: false, // so that an error is returned here
        };
        channel.exchange_declare(self.exchange(), ExchangeKind::Direct, exchange, FieldTable::default()).await?;
        let declaring = self.queues().into_iter().map(|(name, arguments)| async move {
            let declared = self.queue(connection, name.clone(), arguments);
            match timeout(patience, declared).await {
                Ok(declared) => declared.map(|()| None),
                Err(_) => Ok(Some(name)),
            }
        });
        let silent: Vec<_> = join_all(declaring).await.into_iter().collect::<Result<_, _>>()?;
        Ok(silent.into_iter().flatten().collect())
    }

    /// The queues that every link declares, with their arguments.
    pub(super) fn queues(&self) -> Vec<(ShortString, FieldTable)> {
        let sources = self.sources().into_iter();
        let sources = sources.map(|source| (self.queue_of(&source), self.dead_lettering_to(self.name(DEAD))));
        std::iter::once((self.name(DEAD), self.common())).chain(sources).collect()
    }

    pub(super) async fn declare_delay(&self, connection: &Connection, rung_ms: i64) -> Result<(), QueueError> {
        let mut arguments = self.dead_lettering_to(self.queue_of(&Source::GroupsExpire));
        arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(rung_ms));
        self.queue(connection, self.delay_queue(rung_ms), arguments).await
    }

    /// The arguments of every queue. A full queue refuses messages, which then stay in the outbox.
    fn common(&self) -> FieldTable {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(self.max_length.into()));
        arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
        // Without a limit in the arguments, RabbitMQ 4 drops a message after 20 deliveries. RabbitMQ 3 has no value for "no limit".
        arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(i32::MAX));
        arguments
    }

    /// At-least-once: a message leaves its queue only after the next queue has confirmed it (needs reject-publish).
    fn dead_lettering_to(&self, queue: ShortString) -> FieldTable {
        let mut arguments = self.common();
        let exchange = self.exchange().to_string();
        arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString(exchange.into()));
        arguments.insert("x-dead-letter-routing-key".into(), AMQPValue::LongString(queue.to_string().into()));
        arguments.insert("x-dead-letter-strategy".into(), AMQPValue::LongString("at-least-once".into()));
        arguments
    }

    /// Declares and binds a queue. One with other arguments is used as it is: the broker closes a channel that declares it differently.
    async fn queue(&self, connection: &Connection, name: ShortString, arguments: FieldTable) -> Result<(), QueueError> {
        let mut channel = connection.create_channel().await?;
        if let Err(error) = channel.queue_declare(name.clone(), QUEUE, arguments).await {
            channel = connection.create_channel().await?;
            let existing = QueueDeclareOptions { passive: true, ..QUEUE };
            channel.queue_declare(name.clone(), existing, FieldTable::default()).await.map_err(|_| error)?;
            tracing::warn!(queue = %name, "queue exists with other arguments than configured; used as it is");
        }
        let (exchange, key) = (self.exchange(), name.clone());
        channel.queue_bind(name, exchange, key, QueueBindOptions { nowait: false }, FieldTable::default()).await?;
        Ok(channel.close(200, "declared".into()).await?)
    }

    /// The state of the dead-letter queue; `None` if it does not exist.
    pub(crate) async fn dead_letters(&self, channel: &Channel) -> Option<DeadLetters> {
        let messages = self.ready(channel, self.name(DEAD)).await?;
        Some(DeadLetters { messages, max: self.max_length })
    }

    /// The number of a queue's ready messages; `None` if the queue does not exist. Then the broker has closed the channel.
    pub(super) async fn ready(&self, channel: &Channel, queue: ShortString) -> Option<u32> {
        let existing = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(queue, existing, FieldTable::default()).await.ok()?;
        Some(queue.message_count())
    }

    /// The names of the queues that every link declares, without the prefix.
    pub(crate) fn queue_names(&self) -> Vec<String> {
        self.sources().iter().map(Source::key).chain([DEAD.to_owned()]).collect()
    }

    pub(crate) async fn delete(&self, channel: &Channel) -> Result<(), QueueError> {
        let delays = ladder_ms().map(|rung_ms| self.delay_queue(rung_ms));
        for queue in delays.chain(self.queues().into_iter().map(|(name, _)| name)) {
            channel.queue_delete(queue, QueueDeleteOptions::default()).await?;
        }
        channel.exchange_delete(self.exchange(), lapin::options::ExchangeDeleteOptions::default()).await?;
        Ok(())
    }
}
