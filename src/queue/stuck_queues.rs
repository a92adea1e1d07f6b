//! Queues that have confirmed nothing for long while others do. RabbitMQ may lose the leader of a quorum queue: a node that is killed just
//! after it has declared one starts the queue again without an election, and what is sent to it waits until the next restart
//! (rabbitmq/rabbitmq-server, issue 10070). Or its nodes go on naming the leader that died, and refuse whatever is sent to the queue. Such a
//! queue is deleted, and the next link declares it anew. The outbox has its messages. A queue that refuses because it is full stays.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeleteOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Confirmation, Connection};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::{Broker, MARK, QueueError};

/// How long a queue may take to confirm a probe.
const PROBE_MAX: Duration = Duration::from_secs(3);
/// How long the broker may take to delete a queue: it waits five seconds for a leader before it deletes one that has none.
const DELETE_MAX: Duration = Duration::from_secs(30);
/// A mark that names no time, so that its consumer drops it.
const PROBE: &[u8] = b"probe";

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
    /// Deletes a queue, if it confirms nothing although it has room, while another one confirms. Returns whether it was deleted.
    async fn replace_stuck(self, queue: ShortString) -> Result<bool, QueueError> {
        let connection = self.connect("stuck queue").await?;
        if self.confirms(&connection, &queue).await || self.is_full(&connection, &queue).await {
            return Ok(false);
        }
        let sources = self.topology.sources().into_iter().map(|source| self.topology.queue_of(&source));
        let others: Vec<_> = sources.filter(|other| *other != queue).collect();
        let confirmed = join_all(others.iter().map(|other| self.confirms(&connection, other))).await;
        if !confirmed.contains(&true) {
            tracing::error!(%queue, "the queue confirms nothing, and neither does any other; it stays as it is");
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

    /// Whether the queue confirms a message within a few seconds. Each queue is asked on a channel of its own.
    async fn confirms(&self, connection: &Connection, queue: &ShortString) -> bool {
        let probing = async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions { nowait: false }).await?;
            let options = BasicPublishOptions { mandatory: true, immediate: false };
            let properties = BasicProperties::default().with_delivery_mode(2).with_type(MARK.into());
            let exchange = self.topology.exchange();
            channel.basic_publish(exchange, queue.clone(), options, PROBE, properties).await?.await
        };
        // A queue that does not exist returns the message: it is not stuck, and is declared by the next link.
        matches!(timeout(PROBE_MAX, probing).await, Ok(Ok(Confirmation::Ack(_))))
    }

    /// Whether the queue is known to hold half of the messages that it may, or more: `false` where it does not say so within a few seconds.
    async fn is_full(&self, connection: &Connection, queue: &ShortString) -> bool {
        let asking = async {
            let channel = connection.create_channel().await.ok()?;
            self.topology.ready(&channel, queue.clone()).await
        };
        let messages = timeout(PROBE_MAX, asking).await.ok().flatten();
        messages.is_some_and(|messages| messages >= self.config.queue_max_length.div_ceil(2))
    }
}
