//! Publishes with confirms: many messages in flight, and a receipt for each. A queue that does not answer delays only its own messages.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, PublisherConfirm};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};
use uuid::Uuid;

use super::stuck_queues::StuckQueues;
use super::{Broker, DeadLetters, Destination, Link, MARK, QueueError, Source};
use seckill_domain::trace_context::TraceContext;

#[derive(Debug, Clone)]
pub struct Outgoing {
    pub to: Destination,
    /// Stays the same when the message is sent again.
    pub id: Uuid,
    pub body: Vec<u8>,
    /// The trace's step that sends it, if traced.
    pub trace: Option<Box<TraceContext>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receipt {
    /// A majority of the nodes has the message on disk.
    Confirmed,
    /// No queue accepts the message. The broker returns it, and still confirms it.
    Unroutable,
    /// The queue is full, or could not store it.
    NoRoom,
    /// The queue does not answer, but others do. It may have the message. Send it again.
    Unanswered,
    /// A payment of a channel that is not configured. It was not sent.
    NoSuchChannel,
}

/// How long a queue may take after others have answered.
const STRAGGLER_MAX: Duration = Duration::from_secs(3);
const SILENT_FOR: Duration = Duration::from_secs(10);
/// The pause for a queue that a new link could not declare. If its leader died, another node leads it in a moment.
const SILENT_AT_FIRST: Duration = Duration::from_secs(1);
/// How long a channel with refused messages is kept. After a change of a quorum queue's leader, an old channel may refuse all messages.
const REFUSING_MAX: Duration = Duration::from_secs(3);

/// Publishes over a link that opens on demand, and again after a failure.
pub struct Publisher {
    broker: Broker,
    link: Mutex<Option<Open>>,
    /// Locked only briefly, and never across an await.
    stuck: parking_lot::Mutex<StuckQueues>,
}

struct Open {
    link: Link,
    /// One channel per queue, with its opening time. The broker blocks a channel for a queue that does not answer.
    channels: HashMap<ShortString, (Channel, Instant)>,
    /// The delays with a queue declared on this link.
    delays: HashSet<i64>,
    /// Queues that did not answer, and until when they get no messages.
    silent: HashMap<ShortString, Instant>,
}

impl Publisher {
    pub fn new(broker: Broker) -> Self {
        let stuck_after = Duration::from_millis(broker.config.queue_stuck_after_ms);
        Self { broker, link: Mutex::default(), stuck: parking_lot::Mutex::new(StuckQueues::new(stuck_after)) }
    }

    pub async fn connect(&self) -> Result<(), QueueError> {
        let mut link = self.link.lock().await;
        if link.as_ref().is_none_or(|open| !open.link.channel.status().connected()) {
            *link = None;
            let opened = self.broker.link("publisher").await?;
            let until = Instant::now() + SILENT_AT_FIRST;
            let silent = opened.silent.iter().map(|queue| (queue.clone(), until)).collect();
            *link = Some(Open { link: opened, channels: HashMap::new(), delays: HashSet::new(), silent });
        }
        Ok(())
    }

    /// Sends all messages. Returns a receipt for each, in order. After an error, their outcome is unknown: send them again.
    pub async fn publish(&self, messages: &[Outgoing]) -> Result<Vec<Receipt>, QueueError> {
        if self.stuck.lock().replace(&self.broker) {
            *self.link.lock().await = None;
        }
        self.connect().await?;
        let mut link = self.link.lock().await;
        let receipts = match link.as_mut() {
            Some(open) => self.send(open, messages).await,
            None => Err(QueueError::Closed),
        };
        let routed = receipts.as_ref().is_ok_and(|receipts| !receipts.contains(&Receipt::Unroutable));
        if !routed {
            *link = None; // the next link declares the queues that may have been deleted
        }
        receipts
    }

    pub fn sources(&self) -> Vec<Source> {
        self.broker.topology.sources()
    }

    pub async fn dead_letters(&self) -> Result<Option<DeadLetters>, QueueError> {
        self.connect().await?;
        let link = self.link.lock().await;
        let Some(open) = link.as_ref() else { return Err(QueueError::Closed) };
        // On a separate channel: the broker closes a channel that asks for a missing queue.
        let asking = async {
            let channel = open.link.connection.create_channel().await?;
            Ok(self.broker.topology.dead_letters(&channel).await)
        };
        // Limited, because the relay waits for the link meanwhile.
        timeout(STRAGGLER_MAX, asking).await.unwrap_or(Err(QueueError::TimedOut))
    }

    async fn send(&self, open: &mut Open, messages: &[Outgoing]) -> Result<Vec<Receipt>, QueueError> {
        let deadline = Instant::now() + Duration::from_millis(self.broker.config.confirm_timeout_ms);
        let keys: Vec<_> = messages.iter().map(|message| self.broker.topology.route_to(&message.to)).collect();
        self.declare_delays(open, messages, &keys).await?;
        timeout_at(deadline, open.open_channels(&keys)).await.map_err(|_| QueueError::TimedOut)??;
        let mut receipts = vec![Receipt::Unanswered; messages.len()];
        let mut confirmations = FuturesUnordered::new();
        for (place, (message, key)) in messages.iter().zip(&keys).enumerate() {
            let Some(key) = key else {
                receipts[place] = Receipt::NoSuchChannel;
                continue;
            };
            if !open.silent.contains_key(key)
                && let Some((channel, _)) = open.channels.get(key)
            {
                let sending = self.send_one(channel, message, key.clone());
                let sent = timeout_at(deadline, sending).await.map_err(|_| QueueError::TimedOut)??;
                confirmations.push(async move { (place, sent.await) });
            }
        }
        let (mut heard, mut until) = (HashSet::new(), deadline);
        while let Ok(Some((place, confirmation))) = timeout_at(until, confirmations.next()).await {
            receipts[place] = receipt(confirmation?)?;
            heard.extend(&keys[place]);
            until = deadline.min(Instant::now() + STRAGGLER_MAX);
        }
        self.record_confirmations(&keys, &receipts);
        if heard.is_empty() && !confirmations.is_empty() {
            return Err(QueueError::TimedOut);
        }
        for (key, receipt) in keys.iter().zip(&receipts) {
            if let (Some(key), Receipt::Unanswered) = (key, receipt)
                && !heard.contains(key)
                && !open.silent.contains_key(key)
            {
                open.does_not_answer(key.clone());
            }
            if let (Some(key), Receipt::NoRoom) = (key, receipt) {
                open.refuses(key);
            }
        }
        Ok(receipts)
    }

    fn record_confirmations(&self, keys: &[Option<ShortString>], receipts: &[Receipt]) {
        let mut stuck = self.stuck.lock();
        let receipts = keys.iter().zip(receipts).filter_map(|(key, receipt)| Some((key.as_ref()?, receipt)));
        let (confirmed, others): (Vec<_>, Vec<_>) =
            receipts.partition(|(_, receipt)| matches!(receipt, Receipt::Confirmed | Receipt::Unroutable));
        others.into_iter().for_each(|(queue, _)| stuck.unconfirmed(queue));
        confirmed.into_iter().for_each(|(queue, _)| stuck.confirmed(queue));
    }

    /// Declares the delay queues of these messages, if this link has not.
    async fn declare_delays(
        &self,
        open: &mut Open,
        messages: &[Outgoing],
        keys: &[Option<ShortString>],
    ) -> Result<(), QueueError> {
        let now = Instant::now();
        open.silent.retain(|_, until| *until > now);
        let mut wanted = HashMap::new();
        for (message, key) in messages.iter().zip(keys) {
            if let (Some(delay), Some(key)) = (message.to.rung_ms(), key)
                && !open.delays.contains(&delay)
                && !open.silent.contains_key(key)
            {
                wanted.insert(delay, key.clone());
            }
        }
        let connection = &open.link.connection;
        let declaring = wanted.into_iter().map(|(rung_ms, key)| async move {
            let declared = self.broker.topology.declare_delay(connection, rung_ms);
            (rung_ms, key, timeout(STRAGGLER_MAX, declared).await)
        });
        for (delay, key, declared) in join_all(declaring).await {
            match declared {
                Ok(declared) => {
                    declared?;
                    open.delays.insert(delay);
                }
                Err(_) => open.does_not_answer(key),
            }
        }
        Ok(())
    }

    async fn send_one(
        &self,
        channel: &Channel,
        message: &Outgoing,
        key: ShortString,
    ) -> Result<PublisherConfirm, QueueError> {
        let options = BasicPublishOptions {
            mandatory: true,  // a message without a queue comes back
            immediate: false, // RabbitMQ has dropped it
        };
        let mut properties = BasicProperties::default()
            .with_delivery_mode(2) // persistent
            .with_content_type("application/json".into())
            .with_message_id(message.id.to_string().into());
        if matches!(message.to, Destination::Mark(_)) {
            properties = properties.with_type(MARK.into());
        }
        if let Some(trace) = &message.trace {
            // As in HTTP.
            let mut headers = FieldTable::default();
            for (name, value) in trace.headers() {
                headers.insert(name.into(), AMQPValue::LongString(value.into()));
            }
            properties = properties.with_headers(headers);
        }
        let exchange = self.broker.topology.exchange();
        Ok(channel.basic_publish(exchange, key, options, &message.body, properties).await?)
    }
}

impl Open {
    async fn open_channels(&mut self, keys: &[Option<ShortString>]) -> Result<(), QueueError> {
        for key in keys.iter().flatten() {
            if !self.channels.contains_key(key) {
                let channel = self.link.connection.create_channel().await?;
                channel.confirm_select(ConfirmSelectOptions { nowait: false }).await?;
                self.channels.insert(key.clone(), (channel, Instant::now()));
            }
        }
        Ok(())
    }

    /// Drops the queue's channel if it is old. The next messages use a new one.
    fn refuses(&mut self, queue: &ShortString) {
        if self.channels.get(queue).is_some_and(|(_, since)| since.elapsed() > REFUSING_MAX) {
            self.channels.remove(queue);
        }
    }

    fn does_not_answer(&mut self, queue: ShortString) {
        tracing::error!(%queue, "the queue does not answer; its messages wait in the outbox");
        self.silent.insert(queue, Instant::now() + SILENT_FOR);
    }
}

fn receipt(confirmation: Confirmation) -> Result<Receipt, QueueError> {
    match confirmation {
        Confirmation::Ack(None) => Ok(Receipt::Confirmed),
        Confirmation::Ack(Some(_returned)) => Ok(Receipt::Unroutable),
        Confirmation::Nack(_) => Ok(Receipt::NoRoom),
        // Happens only without confirms, which our channels always use.
        Confirmation::NotRequested => Err(QueueError::Closed),
    }
}
