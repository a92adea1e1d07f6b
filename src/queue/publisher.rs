//! Publishing with confirms: many messages in flight, and a receipt for each.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation};
use tokio::sync::Mutex;
use uuid::Uuid;

use super::topology::Ladder;
use super::{Broker, DeadLetters, Destination, Link, MARK, QueueError, Source};
use crate::domain::trace_context::TraceContext;

/// A message to be published.
#[derive(Debug, Clone)]
pub struct Outgoing {
    pub to: Destination,
    /// The same each time that this message is sent.
    pub id: Uuid,
    pub body: Vec<u8>,
    /// The step that sends it, if it is traced.
    pub trace: Option<Box<TraceContext>>,
}

/// What became of a message at the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receipt {
    /// The message is on the disks of a majority of the nodes.
    Confirmed,
    /// No queue accepts the message. The broker returns it, and confirms it nevertheless.
    Unroutable,
    /// The queue is full, or could not store it.
    NoRoom,
    /// A payment whose channel is not configured: not sent.
    NoSuchChannel,
}

/// Publishes over a link that is opened when it is needed, and again after it has failed.
pub struct Publisher {
    broker: Broker,
    link: Mutex<Option<Open>>,
}

struct Open {
    link: Link,
    /// The delays whose queue this link has declared.
    delays: HashSet<(Ladder, i64)>,
}

impl Publisher {
    pub fn new(broker: Broker) -> Self {
        Self { broker, link: Mutex::default() }
    }

    /// Opens a link, unless one is open.
    pub async fn connect(&self) -> Result<(), QueueError> {
        let mut link = self.link.lock().await;
        if link.as_ref().is_none_or(|open| !open.link.channel.status().connected()) {
            *link = None;
            let opened = self.broker.link("publisher").await?;
            opened.channel.confirm_select(ConfirmSelectOptions { nowait: false }).await?;
            *link = Some(Open { link: opened, delays: HashSet::new() });
        }
        Ok(())
    }

    /// Sends all messages before it waits for any receipt. Returns a receipt for each, in order.
    ///
    /// # Errors
    /// When the outcome of the messages is unknown: they are to be sent again.
    pub async fn publish(&self, messages: &[Outgoing]) -> Result<Vec<Receipt>, QueueError> {
        self.connect().await?;
        let mut link = self.link.lock().await;
        let timeout = Duration::from_millis(self.broker.config.confirm_timeout_ms);
        let sending = async {
            match link.as_mut() {
                Some(open) => self.send(open, messages).await,
                None => Err(QueueError::Closed),
            }
        };
        let receipts = tokio::time::timeout(timeout, sending).await.unwrap_or(Err(QueueError::TimedOut));
        let routed = receipts.as_ref().is_ok_and(|receipts| !receipts.contains(&Receipt::Unroutable));
        if !routed {
            *link = None; // the next link declares the queues that may have been deleted
        }
        receipts
    }

    /// The queues that are consumed.
    pub fn sources(&self) -> Vec<Source> {
        self.broker.topology.sources()
    }

    /// The state of the dead-letter queue; `None` when it does not exist.
    pub async fn dead_letters(&self) -> Result<Option<DeadLetters>, QueueError> {
        self.connect().await?;
        let link = self.link.lock().await;
        let Some(open) = link.as_ref() else { return Err(QueueError::Closed) };
        // On a channel of its own: the broker closes a channel that asks for a queue that does not exist.
        let channel = open.link.connection.create_channel().await?;
        Ok(self.broker.topology.dead_letters(&channel).await)
    }

    async fn send(&self, open: &mut Open, messages: &[Outgoing]) -> Result<Vec<Receipt>, QueueError> {
        let Open { link, delays } = open;
        let mut confirmations = Vec::with_capacity(messages.len());
        for message in messages {
            let Some(key) = self.broker.topology.route_to(&message.to) else {
                confirmations.push(None);
                continue;
            };
            if let Some((ladder, rung_ms)) = message.to.delay()
                && delays.insert((ladder, rung_ms))
            {
                self.broker.topology.declare_delay(&link.connection, ladder, rung_ms).await?;
            }
            let options = BasicPublishOptions {
                mandatory: true,  // what no queue takes comes back
                immediate: false, // RabbitMQ has dropped it
            };
            let properties = BasicProperties::default()
                .with_delivery_mode(2) // persistent
                .with_content_type("application/json".into())
                .with_message_id(message.id.to_string().into());
            let properties = match message.to {
                Destination::Mark(_) => properties.with_type(MARK.into()),
                Destination::OrderPlaced
                | Destination::OrdersPlaced
                | Destination::GroupsPlaced
                | Destination::OrderExpire { .. }
                | Destination::OrdersExpire { .. }
                | Destination::GroupsExpire { .. }
                | Destination::PaymentRequested { .. } => properties,
            };
            let properties = match &message.trace {
                Some(trace) => properties.with_headers(headers(trace)),
                None => properties,
            };
            let exchange = self.broker.topology.exchange();
            confirmations
                .push(Some(link.channel.basic_publish(exchange, key, options, &message.body, properties).await?));
        }
        let receipt = |confirmation: Result<Confirmation, lapin::Error>| match confirmation? {
            Confirmation::Ack(None) => Ok(Receipt::Confirmed),
            Confirmation::Ack(Some(_returned)) => Ok(Receipt::Unroutable),
            Confirmation::Nack(_) => Ok(Receipt::NoRoom),
            // Only on a channel without confirms, which ours never is.
            Confirmation::NotRequested => Err(QueueError::Closed),
        };
        let receipts = confirmations.into_iter().map(|confirmation| async {
            match confirmation {
                Some(confirmation) => receipt(confirmation.await),
                None => Ok(Receipt::NoSuchChannel),
            }
        });
        join_all(receipts).await.into_iter().collect()
    }
}

/// The headers by which a message carries its trace, as HTTP does.
fn headers(trace: &TraceContext) -> FieldTable {
    let mut headers = FieldTable::default();
    for (name, value) in trace.headers() {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    headers
}
