//! Queues that have not answered for long while others do. RabbitMQ may lose the leader of a quorum queue: a node that is killed just after it
//! has declared one starts the queue again without an election, and what is sent to it waits until the next restart
//! (rabbitmq/rabbitmq-server, issue 10070). Such a queue is deleted, and the next link declares it anew. The outbox has its messages.

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

/// What a publisher knows of the queues that do not answer it.
pub(super) struct StuckQueues {
    stuck_after: Duration,
    /// Since when a queue has not confirmed anything that was sent to it. It may be declared nevertheless, which needs no leader.
    unanswered_since: HashMap<ShortString, Instant>,
    replacing: Option<(ShortString, JoinHandle<Result<bool, QueueError>>)>,
}

impl StuckQueues {
    /// A queue is stuck when it has not answered for `stuck_after`.
    pub fn new(stuck_after: Duration) -> Self {
        Self { stuck_after, unanswered_since: HashMap::new(), replacing: None }
    }

    pub fn answered(&mut self, queue: &ShortString) {
        self.unanswered_since.remove(queue);
    }

    pub fn unanswered(&mut self, queue: &ShortString) {
        self.unanswered_since.entry(queue.clone()).or_insert_with(Instant::now);
    }

    /// Begins to replace a queue that is stuck, in the background and one at a time. Returns whether one was replaced since the last call: it
    /// is to be declared anew.
    pub fn replace(&mut self, broker: &Broker) -> bool {
        let mut was_replaced = false;
        if let Some((queue, mut replacing)) = self.replacing.take() {
            match (&mut replacing).now_or_never() {
                None => self.replacing = Some((queue, replacing)),
                Some(done) => {
                    self.unanswered_since.remove(&queue);
                    match done {
                        Ok(Ok(replaced)) => was_replaced = replaced,
                        Ok(Err(error)) => tracing::error!(%queue, %error, "the queue that does not answer stays"),
                        Err(error) => tracing::error!(%queue, %error, "the queue that does not answer stays"),
                    }
                }
            }
        }
        if self.replacing.is_none()
            && let Some((queue, _)) = self.unanswered_since.iter().find(|(_, since)| since.elapsed() > self.stuck_after)
        {
            let replacing = tokio::spawn(broker.clone().replace_stuck(queue.clone()));
            self.replacing = Some((queue.clone(), replacing));
        }
        was_replaced
    }
}

impl Broker {
    /// Deletes a queue, if it confirms nothing while another one does. Returns whether it was deleted.
    async fn replace_stuck(self, queue: ShortString) -> Result<bool, QueueError> {
        let connection = self.connect("stuck queue").await?;
        if self.confirms(&connection, &queue).await {
            return Ok(false);
        }
        let sources = self.topology.sources().into_iter().map(|source| self.topology.queue_of(&source));
        let others: Vec<_> = sources.filter(|other| *other != queue).collect();
        let confirmed = join_all(others.iter().map(|other| self.confirms(&connection, other))).await;
        if !confirmed.contains(&true) {
            tracing::error!(%queue, "the queue does not answer, and neither does any other; it stays as it is");
            return Ok(false);
        }
        let channel = connection.create_channel().await?;
        let options = QueueDeleteOptions {
            if_unused: false, // its consumers wait as its publishers do
            if_empty: false,  // the outbox has what was in it
            nowait: false,
        };
        timeout(DELETE_MAX, channel.queue_delete(queue.clone(), options)).await.map_err(|_| QueueError::TimedOut)??;
        tracing::error!(%queue, "the queue has not answered for long, and others have; it was deleted and is declared anew");
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
        matches!(timeout(PROBE_MAX, probing).await, Ok(Ok(Confirmation::Ack(_) | Confirmation::Nack(_))))
    }
}
