//! The state of our objects in RabbitMQ, as AMQP shows it, for `seckill doctor`. Changes nothing. Existing objects are declared exactly as
//! workers declare them, which is refused or has no effect. The one published message has no queue.

use std::future::ready;
use std::io;
use std::pin::pin;

use futures_util::future::join_all;
use futures_util::{AsyncReadExt, AsyncWriteExt, StreamExt};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::tcp::AsyncTcpStream;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{BasicProperties, Confirmation, Connection, ErrorKind, Event, ExchangeKind, runtime};
use uuid::Uuid;

use super::topology::{QUEUE, Topology};
use super::{Broker, QueueError, open};
use seckill_config::tls::{Protection, Route};

/// The queue argument that a setting changes. A queue with another bound is used as it is.
pub const BOUND: &str = "x-max-length";
/// The most that is read of a node's greeting, in bytes: the smallest frame that every client must take.
const GREETING_MAX: u32 = 8192;
/// AMQP's codes: no permission; not found; exists with other properties.
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;

/// Two own connections, because the broker stops reading from a publishing connection while it is short of a resource.
pub struct BrokerInspection {
    looking: Connection,
    publishing: Connection,
    topology: Topology,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueCheck {
    AsConfigured,
    Missing,
    /// Exists with other properties or arguments. The text is the broker's.
    Otherwise(String),
    Refused(String),
}

/// The fate of a message without a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    Returned,
    /// An alternate exchange accepted it.
    Taken,
    /// The broker accepts no messages now. The text is the reason.
    Blocked(String),
    Refused(String),
}

impl Broker {
    pub async fn inspect(&self) -> Result<BrokerInspection, QueueError> {
        let (looking, publishing) = tokio::try_join!(self.connect("doctor"), self.connect("doctor publisher"))?;
        Ok(BrokerInspection { looking, publishing, topology: self.topology.clone() })
    }

    /// The version that the first node that answers says in its greeting. lapin does not show it.
    pub async fn version(&self) -> Result<String, QueueError> {
        self.at_a_node(|broker, node| async move {
            let greeting = broker.greeting(&node).await.map_err(lapin::Error::from)?;
            version_in(&greeting).ok_or(QueueError::Closed)
        })
        .await
    }

    /// The first frame that a node sends: the method `connection.start`.
    async fn greeting(&self, node: &AMQPUri) -> io::Result<Vec<u8>> {
        let (tls, runtime) = (self.tls_to(node)?, runtime::default_runtime().map_err(io::Error::other)?);
        let mut stream = open(node, tls.as_ref(), |address| AsyncTcpStream::connect(&runtime, address)).await?;
        stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
        let mut head = [0; 7];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]).min(GREETING_MAX);
        let mut frame = vec![0; length as usize];
        stream.read_exact(&mut frame).await?;
        Ok(frame)
    }

    pub fn routes(&self) -> Result<Vec<Route>, QueueError> {
        let route = |node: AMQPUri| {
            let protection = match node.scheme {
                AMQPScheme::AMQP => Protection::Nothing,
                AMQPScheme::AMQPS => Protection::CheckedCertificate,
            };
            Route { host: Some(node.authority.host), protection }
        };
        Ok(self.nodes()?.into_iter().map(route).collect())
    }
}

/// The value of the server property `version`: in AMQP's table a short string, `S`, and a long string.
fn version_in(greeting: &[u8]) -> Option<String> {
    const NAME: &[u8] = b"\x07versionS";
    let at = greeting.windows(NAME.len()).position(|part| part == NAME)? + NAME.len();
    let length = u32::from_be_bytes(greeting.get(at..at + 4)?.try_into().ok()?) as usize;
    String::from_utf8(greeting.get(at + 4..(at + 4).checked_add(length)?)?.to_owned()).ok()
}

impl BrokerInspection {
    /// The agreed heartbeat interval; 0: none.
    pub fn heartbeat_s(&self) -> u16 {
        self.looking.configuration().heartbeat()
    }

    pub async fn exchange(&self) -> Result<QueueCheck, QueueError> {
        let declare = async |passive: bool| {
            let options = ExchangeDeclareOptions { durable: true, passive, ..ExchangeDeclareOptions::default() };
            let channel = self.looking.create_channel().await?;
            let exchange = self.topology.exchange();
            channel.exchange_declare(exchange, ExchangeKind::Direct, options, FieldTable::default()).await
        };
        match judge(declare(true).await)? {
            QueueCheck::AsConfigured => judge(declare(false).await),
            other => Ok(other),
        }
    }

    /// The queues that every worker declares, by name, without the delay ladder. Delay queues are declared on demand.
    pub async fn queues(&self) -> Result<Vec<(String, QueueCheck)>, QueueError> {
        let queues = self.topology.queues().into_iter().map(|(name, arguments)| async move {
            let declared = self.queue(&name, arguments).await?;
            Ok::<_, QueueError>((name.to_string(), declared))
        });
        join_all(queues).await.into_iter().collect()
    }

    async fn queue(&self, name: &ShortString, arguments: FieldTable) -> Result<QueueCheck, QueueError> {
        // The second declaration would create a missing queue, so it is only sent for an existing one.
        let existing = QueueDeclareOptions { passive: true, ..QUEUE };
        let found = self.declare(name, existing, FieldTable::default()).await?;
        if found != QueueCheck::AsConfigured {
            return Ok(found);
        }
        let declared = self.declare(name, QUEUE, arguments.clone()).await?;
        let QueueCheck::Otherwise(why) = &declared else { return Ok(declared) };
        let Some(bound) = other_bound(why) else { return Ok(declared) };
        // The broker reports only the first difference. With the queue's own bound, it reports another one, if any.
        let mut arguments = arguments.inner().clone();
        match bound {
            Some(bound) => arguments.insert(BOUND.into(), AMQPValue::LongLongInt(bound)),
            None => arguments.remove(&ShortString::from(BOUND)),
        };
        let other = self.declare(name, QUEUE, arguments.into()).await?;
        Ok(if other == QueueCheck::AsConfigured { declared } else { other })
    }

    /// On a separate channel, because the broker closes a channel after a refused declaration.
    async fn declare(
        &self,
        name: &ShortString,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) -> Result<QueueCheck, QueueError> {
        let channel = self.looking.create_channel().await?;
        judge(channel.queue_declare(name.clone(), options, arguments).await)
    }

    /// Publishes a message without a queue: to our exchange, or to the default one if ours does not exist yet.
    pub async fn publish(&self, to_ours: bool) -> Result<Fate, QueueError> {
        let mut blocked =
            pin!(self.publishing.events_listener().filter_map(|event| {
                ready(if let Event::ConnectionBlocked(why) = event { Some(why) } else { None })
            }));
        tokio::select! {
            published = self.publish_to_nobody(to_ours) => match published {
                Ok(Confirmation::Ack(Some(_))) => Ok(Fate::Returned),
                Ok(_) => Ok(Fate::Taken),
                Err(error) => match judge::<()>(Err(error))? {
                    QueueCheck::Refused(why) => Ok(Fate::Refused(why)),
                    _ => Err(QueueError::Closed),
                },
            },
            Some(why) = blocked.next() => Ok(Fate::Blocked(why)),
        }
    }

    async fn publish_to_nobody(&self, to_ours: bool) -> Result<Confirmation, lapin::Error> {
        let channel = self.publishing.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions { nowait: false }).await?;
        let options = BasicPublishOptions {
            mandatory: true, // it comes back
            immediate: false,
        };
        let exchange = if to_ours { self.topology.exchange() } else { ShortString::default() };
        let nobody = format!("seckill-doctor-{}", Uuid::new_v4());
        // If a queue accepts it, it expires within a second.
        let properties = BasicProperties::default().with_delivery_mode(1).with_expiration("1000".into());
        channel.basic_publish(exchange, nobody.into(), options, b"", properties).await?.await
    }

    /// Closes the connections. The broker ends a blocked one only when it reads again, so the caller limits the time.
    pub async fn close(&self) {
        let _ = tokio::join!(self.looking.close(200, "looked".into()), self.publishing.close(200, "looked".into()));
    }
}

fn judge<T>(answer: Result<T, lapin::Error>) -> Result<QueueCheck, QueueError> {
    let Err(error) = answer else { return Ok(QueueCheck::AsConfigured) };
    let ErrorKind::ProtocolError(refusal) = error.kind() else { return Err(error.into()) };
    let why = refusal.get_message().to_string();
    match refusal.get_id() {
        ACCESS_REFUSED => Ok(QueueCheck::Refused(why)),
        NOT_FOUND => Ok(QueueCheck::Missing),
        PRECONDITION_FAILED => Ok(QueueCheck::Otherwise(why)),
        _ => Err(error.into()),
    }
}

/// The queue's own bound, if the broker reports another bound than ours: `inequivalent arg 'x-max-length' for queue …: received the value
/// '1000000' of type 'signedint' but current is the value '500' of type 'long'`, or `… but current is none`.
fn other_bound(why: &str) -> Option<Option<i64>> {
    let (_, differs) = why.split_once(&format!("inequivalent arg '{BOUND}'"))?;
    let (_, current) = differs.rsplit_once("but current is ")?;
    if current.starts_with("none") {
        return Some(None);
    }
    let (_, value) = current.split_once('\'')?;
    value.split('\'').next()?.parse().ok().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_an_existing_queue_is_read_from_the_refusal() {
        let refusal = |arg: &str, current: &str| {
            format!(
                "PRECONDITION_FAILED - inequivalent arg '{arg}' for queue 'sk.dead' in vhost '/': received the value \
                 '1000000' of type 'long' but current is {current}"
            )
        };
        assert_eq!(other_bound(&refusal(BOUND, "the value '500' of type 'long'")), Some(Some(500)));
        assert_eq!(other_bound(&refusal(BOUND, "none")), Some(None));
        assert_eq!(other_bound(&refusal("x-queue-type", "none")), None);
        assert_eq!(other_bound("PRECONDITION_FAILED - something else"), None);
    }
}
