//! Queues that have confirmed nothing for long while others do. RabbitMQ may lose the leader of a quorum queue: a node that is killed just
//! after it has declared one starts the queue again without an election, and what is sent to it waits until the next restart
//! (rabbitmq/rabbitmq-server, issue 10070). Or a queue refuses whatever is sent to it, as it does while the broker names a dead leader. Such a
//! queue is deleted, and the next link declares it anew. The outbox has its messages. A queue that refuses because it is full stays.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeleteOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Confirmation, Connection};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::{Broker, MARK, QueueError};

/// How long a queue may take to confirm a probe.
const PROBE_MAX: Duration = Duration::from_secs(3);
/// A queue that refuses as many probes, and holds nothing, is stuck; and how long after one the next is sent.
const REFUSALS: u32 = 5;
const REFUSED_AGAIN: Duration = Duration::from_secs(1);
/// How long the broker may take to delete a queue: it waits five seconds for a leader before it deletes one that has none.
const DELETE_MAX: Duration = Duration::from_secs(30);
/// A mark that names no time, so that its consumer drops it.
const PROBE: &[u8] = b"probe";

/// What a queue says to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Confirmed,
    Refused,
}

/// What a publisher knows of the queues that confirm nothing to it.
pub(super) struct StuckQueues {
    stuck_after: Duration,
    /// Since when a queue has not confirmed anything that was sent to it. It may be declared nevertheless, which needs no leader.
    unconfirmed_since: HashMap<ShortString, Instant>,
    replacing: Option<(ShortString, JoinHandle<Result<bool, QueueError>>)>,
}

impl StuckQueues {
    /// A queue is stuck when it has confirmed nothing for `stuck_after`.
    pub fn new(stuck_after: Duration) -> Self {
        Self { stuck_after, unconfirmed_since: HashMap::new(), replacing: None }
    }

    pub fn confirmed(&mut self, queue: &ShortString) {
        self.unconfirmed_since.remove(queue);
    }

    /// The queue has not answered, or has refused what was sent to it.
    pub fn unconfirmed(&mut self, queue: &ShortString) {
        self.unconfirmed_since.entry(queue.clone()).or_insert_with(Instant::now);
    }

    /// Begins to replace the queue that has been stuck for the longest time, in the background and one at a time. Returns whether one was
    /// replaced since the last call: it is to be declared anew.
    pub fn replace(&mut self, broker: &Broker) -> bool {
        let mut was_replaced = false;
        if let Some((queue, mut replacing)) = self.replacing.take() {
            match (&mut replacing).now_or_never() {
                None => self.replacing = Some((queue, replacing)),
                Some(done) => {
                    self.unconfirmed_since.remove(&queue);
                    match done {
                        Ok(Ok(replaced)) => was_replaced = replaced,
                        Ok(Err(error)) => tracing::error!(%queue, %error, "the queue that confirms nothing stays"),
                        Err(error) => tracing::error!(%queue, %error, "the queue that confirms nothing stays"),
                    }
                }
            }
        }
        let longest = self.unconfirmed_since.iter().min_by_key(|(_, since)| **since);
        if self.replacing.is_none()
            && let Some((queue, since)) = longest
            && since.elapsed() > self.stuck_after
        {
            let replacing = tokio::spawn(broker.clone().replace_stuck(queue.clone()));
            self.replacing = Some((queue.clone(), replacing));
        }
        was_replaced
    }
}

impl Broker {
    /// Deletes a queue, if it confirms nothing and is not full, while another one confirms. Returns whether it was deleted.
    async fn replace_stuck(self, queue: ShortString) -> Result<bool, QueueError> {
        let connection = self.connect("stuck queue").await?;
        let sources = self.topology.sources().into_iter().map(|source| self.topology.queue_of(&source));
        let others: Vec<_> = sources.filter(|other| *other != queue).collect();
        let answers: FuturesUnordered<_> = others.iter().map(|other| self.probe(&connection, other)).collect();
        if !answers.any(async |answer| answer == Some(Answer::Confirmed)).await {
            tracing::error!(%queue, "the queue confirms nothing, and neither does any other; it stays as it is");
            return Ok(false);
        }
        // Judged after the others: a broker that has just come back confirms to all of them.
        if !self.is_stuck(&connection, &queue).await {
            return Ok(false);
        }
        let channel = connection.create_channel().await?;
        let options = QueueDeleteOptions {
            if_unused: false, // its consumers wait as its publishers do
            if_empty: false,  // the outbox has what was in it
            nowait: false,
        };
        timeout(DELETE_MAX, channel.queue_delete(queue.clone(), options)).await.map_err(|_| QueueError::TimedOut)??;
        tracing::error!(%queue, "the queue has confirmed nothing for long, and others have; it was deleted and is declared anew");
        metrics::counter!("seckill_queues_replaced_total", "queue" => queue.to_string()).increment(1);
        Ok(true)
    }

    /// Whether the queue does not answer, or refuses and holds nothing whenever it is asked. One that is full says that it holds messages, if
    /// not each time: a busy leader may take too long, and then the broker says that there are none.
    async fn is_stuck(&self, connection: &Connection, queue: &ShortString) -> bool {
        for _ in 0..REFUSALS {
            match self.probe(connection, queue).await {
                Some(Answer::Confirmed) => return false,
                Some(Answer::Refused) if self.holds_messages(connection, queue).await => return false,
                Some(Answer::Refused) => tokio::time::sleep(REFUSED_AGAIN).await,
                None => return true,
            }
        }
        true
    }

    /// Sends a message to the queue; `None` when it does not answer within a few seconds. Each queue is asked on a channel of its own.
    async fn probe(&self, connection: &Connection, queue: &ShortString) -> Option<Answer> {
        let probing = async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions { nowait: false }).await?;
            let options = BasicPublishOptions { mandatory: true, immediate: false };
            let properties = BasicProperties::default().with_delivery_mode(2).with_type(MARK.into());
            let exchange = self.topology.exchange();
            channel.basic_publish(exchange, queue.clone(), options, PROBE, properties).await?.await
        };
        match timeout(PROBE_MAX, probing).await {
            // A queue that does not exist returns the message: it is not stuck, and is declared by the next link.
            Ok(Ok(Confirmation::Ack(_))) => Some(Answer::Confirmed),
            Ok(Ok(Confirmation::Nack(_))) => Some(Answer::Refused),
            _ => None,
        }
    }

    /// Whether the queue says within a few seconds that it holds messages.
    async fn holds_messages(&self, connection: &Connection, queue: &ShortString) -> bool {
        let asking = async {
            let channel = connection.create_channel().await.ok()?;
            self.topology.ready(&channel, queue.clone()).await
        };
        timeout(PROBE_MAX, asking).await.ok().flatten().is_some_and(|messages| messages > 0)
    }
}
