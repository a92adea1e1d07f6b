//! Replaces queues that have confirmed nothing for long while others do. RabbitMQ may lose the leader of a quorum queue: a node killed just
//! after a declaration restarts the queue without an election. Then messages to it wait until the next restart (rabbitmq/rabbitmq-server,
//! issue 10070). Or a queue refuses every message, because the broker still names a dead leader. Such a queue is deleted, and the next link
//! declares it again. The outbox has its messages. A queue that refuses because it is full stays.

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

const PROBE_MAX: Duration = Duration::from_secs(3);
/// A queue is stuck if it refuses this many probes and holds nothing; and the pause between the probes.
const REFUSALS: u32 = 5;
const REFUSED_AGAIN: Duration = Duration::from_secs(1);
/// How long the broker may take to delete a queue. If the queue has no leader, the broker first waits five seconds for one.
const DELETE_MAX: Duration = Duration::from_secs(30);
/// A mark without a time. Its consumer drops it.
const PROBE: &[u8] = b"probe";

pub(super) struct StuckQueues {
    stuck_after: Duration,
    /// Since when each queue has confirmed no message. Its declarations may still succeed: they need no leader.
    unconfirmed_since: HashMap<ShortString, Instant>,
    replacing: Option<(ShortString, JoinHandle<Result<bool, QueueError>>)>,
}

impl StuckQueues {
    pub(crate) fn new(stuck_after: Duration) -> Self {
        Self { stuck_after, unconfirmed_since: HashMap::new(), replacing: None }
    }

    pub(crate) fn confirmed(&mut self, queue: &ShortString) {
        self.unconfirmed_since.remove(queue);
    }

    /// The queue did not answer, or refused a message.
    pub(crate) fn unconfirmed(&mut self, queue: &ShortString) {
        self.unconfirmed_since.entry(queue.clone()).or_insert_with(Instant::now);
    }

    /// Begins to replace the queue that was stuck longest. Returns whether one was replaced since the last call: declare it again.
    pub(crate) fn replace(&mut self, broker: &Broker) -> bool {
        let mut was_replaced = false;
        if let Some((queue, mut replacing)) = self.replacing.take() {
            match (&mut replacing).now_or_never() {
                None => self.replacing = Some((queue, replacing)),
                Some(done) => {
                    self.unconfirmed_since.remove(&queue);
                    match done {
                        Ok(Ok(replaced)) => was_replaced = replaced,
                        failed => tracing::error!(%queue, ?failed, "the queue that confirms nothing stays"),
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
    /// Deletes a queue that confirms nothing and is not full, if another queue confirms. Returns whether it was deleted.
    async fn replace_stuck(self, queue: ShortString) -> Result<bool, QueueError> {
        let connection = self.connect("stuck queue").await?;
        let sources = self.topology.sources().into_iter().map(|source| self.topology.queue_of(&source));
        let others: Vec<_> = sources.filter(|other| *other != queue).collect();
        let answers: FuturesUnordered<_> = others.iter().map(|other| self.probe(&connection, other)).collect();
        if !answers.any(async |answer| matches!(answer, Some(Confirmation::Ack(_)))).await {
            tracing::error!(%queue, "the queue confirms nothing, and neither does any other; it stays as it is");
            return Ok(false);
        }
        // Checked after the others: a broker that has just come back confirms to all.
        if !self.is_stuck(&connection, &queue).await {
            return Ok(false);
        }
        let channel = connection.create_channel().await?;
        let options = QueueDeleteOptions {
            if_unused: false, // its consumers wait as its publishers do
            if_empty: false,  // the outbox has its messages
            nowait: false,
        };
        timeout(DELETE_MAX, channel.queue_delete(queue.clone(), options)).await.map_err(|_| QueueError::TimedOut)??;
        tracing::error!(%queue, "the queue has confirmed nothing for long, and others have; it was deleted and is declared anew");
        metrics::counter!("seckill_queues_replaced_total", "queue" => queue.to_string()).increment(1);
        Ok(true)
    }

    /// Whether the queue does not answer, or always refuses and reports no messages. A full one may report none if its leader is busy.
    async fn is_stuck(&self, connection: &Connection, queue: &ShortString) -> bool {
        for _ in 0..REFUSALS {
            match self.probe(connection, queue).await {
                Some(Confirmation::Nack(_)) if !self.holds_messages(connection, queue).await => {
                    tokio::time::sleep(REFUSED_AGAIN).await;
                }
                Some(_) => return false,
                None => return true,
            }
        }
        true
    }

    /// Sends a message to the queue; `None` if it does not answer within seconds. Each queue has its own channel. A missing queue returns the
    /// message: it is not stuck, and the next link declares it.
    async fn probe(&self, connection: &Connection, queue: &ShortString) -> Option<Confirmation> {
        let probing = async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions { nowait: false }).await?;
            let options = BasicPublishOptions { mandatory: true, immediate: false };
            let properties = BasicProperties::default().with_delivery_mode(2).with_type(MARK.into());
            let exchange = self.topology.exchange();
            channel.basic_publish(exchange, queue.clone(), options, PROBE, properties).await?.await
        };
        timeout(PROBE_MAX, probing).await.ok()?.ok()
    }

    async fn holds_messages(&self, connection: &Connection, queue: &ShortString) -> bool {
        let asking = async {
            let channel = connection.create_channel().await.ok()?;
            self.topology.ready(&channel, queue.clone()).await
        };
        timeout(PROBE_MAX, asking).await.ok().flatten().is_some_and(|messages| messages > 0)
    }
}
