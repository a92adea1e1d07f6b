//! Consumes in batches. A batch is decoded, settled, and acknowledged together after it took effect.

use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::{AMQPValue, FieldTable};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::{Broker, Link, MARK, QueueError, Source};
use seckill_domain::step::Step;
use seckill_domain::trace_context::{TRACEPARENT, TRACESTATE, TraceContext};

const WAIT_MAX: Duration = Duration::from_secs(10);

/// A step that has waited this long had nothing to do. In a backlog, the broker delivers the next messages faster.
const IDLE_FROM: Duration = Duration::from_millis(20);

/// Consumes one queue. Subscribes on the first step, and after a lost subscription: then the broker redelivers.
pub struct Consumer<M> {
    broker: Broker,
    source: Source,
    batch_max: usize,
    subscription: Option<Subscription>,
    /// A batch that could not be settled. The next step tries it again.
    unsettled: Option<Batch<M>>,
}

#[derive(Debug, Clone)]
pub struct MessageBatch<M> {
    pub messages: Vec<M>,
    /// The traces of traced messages, with their places in `messages`.
    pub traces: Vec<(usize, TraceContext)>,
    /// All messages published to this queue before this time were delivered. In milliseconds, by PostgreSQL's clock.
    pub mark_ms: Option<i64>,
}

impl<M: DeserializeOwned + Clone> Consumer<M> {
    pub fn new(broker: Broker, source: Source, batch_max: usize) -> Self {
        Self { broker, source, batch_max, subscription: None, unsettled: None }
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Takes one batch, passes its messages to `settle`, then acknowledges it. Messages that cannot be decoded go to the dead-letter queue.
    /// If the broker fails, it redelivers. If `settle` fails, or this future is dropped during `settle`, the next step settles the same
    /// batch, because a redelivery counts against the queue's delivery limit.
    pub async fn step<F, E>(
        &mut self,
        stop: &CancellationToken,
        settle: impl Fn(MessageBatch<M>) -> F,
    ) -> Result<Step, E>
    where
        F: Future<Output = Result<(), E>>,
        E: From<QueueError>,
    {
        let (queue, began) = (self.source.as_str(), Instant::now());
        if self.subscription.is_none() {
            (self.subscription, self.unsettled) = (Some(self.broker.subscribe(&self.source).await?), None);
        }
        if let (Some(subscription), None) = (&mut self.subscription, &self.unsettled) {
            let receive = stop.run_until_cancelled(subscription.receive(self.batch_max));
            match tokio::time::timeout(WAIT_MAX, receive).await {
                Ok(Some(Ok(deliveries))) => self.unsettled = Some(Batch::decode(queue, deliveries)),
                Ok(Some(Err(error))) => {
                    self.subscription = None;
                    return Err(error.into());
                }
                Ok(None) | Err(_) => return Ok(Step::Idle),
            }
        }
        let was_idle = began.elapsed() > IDLE_FROM;
        if let Some(received) = self.unsettled.as_ref().map(|batch| &batch.received)
            && (!received.messages.is_empty() || received.mark_ms.is_some())
        {
            settle(received.clone()).await?;
        }
        // Both are taken from here on: after a partial acknowledgement, the broker redelivers the rest.
        if let (Some(subscription), Some(batch)) = (self.subscription.take(), self.unsettled.take()) {
            subscription.acknowledge(queue, &batch).await?;
            self.subscription = Some(subscription);
        }
        Ok(if was_idle { Step::Idle } else { Step::More })
    }
}

struct Batch<M> {
    deliveries: Vec<Delivery>,
    received: MessageBatch<M>,
    /// The places in `deliveries` of messages that could not be decoded.
    unreadable: Vec<usize>,
    marks: usize,
}

impl<M: DeserializeOwned> Batch<M> {
    fn decode(queue: &'static str, deliveries: Vec<Delivery>) -> Self {
        let redelivered = deliveries.iter().filter(|delivery| delivery.redelivered).count();
        metrics::histogram!("seckill_intake_batch_size", "queue" => queue).record(deliveries.len() as f64);
        metrics::counter!("seckill_redelivered_total", "queue" => queue).increment(redelivered as u64);
        let (mut messages, mut unreadable) = (Vec::with_capacity(deliveries.len()), Vec::new());
        let (mut mark_ms, mut marks, mut traces) = (None, 0, Vec::new());
        for (position, delivery) in deliveries.iter().enumerate() {
            if delivery.properties.kind().as_ref().is_some_and(|kind| kind.as_str() == MARK) {
                mark_ms = mark_ms.max(std::str::from_utf8(&delivery.data).ok().and_then(|text| text.parse().ok()));
                marks += 1;
                continue;
            }
            match serde_json::from_slice(&delivery.data) {
                Ok(message) => {
                    traces.extend(trace_of(delivery).map(|trace| (messages.len(), trace)));
                    messages.push(message);
                }
                Err(error) => {
                    let bytes = delivery.data.len();
                    tracing::error!(queue, %error, bytes, "unreadable message goes to the dead-letter queue");
                    unreadable.push(position);
                }
            }
        }
        Self { deliveries, received: MessageBatch { messages, traces, mark_ms }, unreadable, marks }
    }
}

/// The trace in a message's headers, if sampled. Malformed headers are ignored.
fn trace_of(delivery: &Delivery) -> Option<TraceContext> {
    let headers = delivery.properties.headers().as_ref()?.inner();
    let text = |name: &str| match headers.get(name)? {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok(),
        _ => None,
    };
    let trace = TraceContext::parse(text(TRACEPARENT)?).filter(TraceContext::is_sampled)?;
    Some(trace.with_state(text(TRACESTATE).unwrap_or_default()))
}

struct Subscription {
    link: Link,
    deliveries: lapin::Consumer,
}

impl Broker {
    async fn subscribe(&self, source: &Source) -> Result<Subscription, QueueError> {
        let link = self.link("consumer").await?;
        // Not global: quorum queues support no other kind.
        let prefetch = self.config.prefetch.min(source.prefetch_max());
        link.channel.basic_qos(prefetch, BasicQosOptions { global: false }).await?;
        let options = BasicConsumeOptions {
            no_ack: false,    // a message is gone only when we say so
            exclusive: false, // other instances consume too
            no_local: false,  // RabbitMQ does not implement it
            nowait: false,
        };
        let queue = self.topology.queue_of(source);
        let deliveries = link.channel.basic_consume(queue, "".into(), options, FieldTable::default()).await?;
        Ok(Subscription { link, deliveries })
    }
}

impl Subscription {
    /// Waits for a message, then takes all others that have already arrived, up to `max` in total.
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, QueueError> {
        let mut received = vec![self.deliveries.next().await.ok_or(QueueError::Closed)??];
        while received.len() < max {
            match self.deliveries.next().now_or_never() {
                Some(Some(delivery)) => received.push(delivery?),
                Some(None) => return Err(QueueError::Closed),
                None => break,
            }
        }
        Ok(received)
    }

    /// Rejects messages that could not be decoded. Acknowledges all others.
    async fn acknowledge<M>(&self, queue: &'static str, batch: &Batch<M>) -> Result<(), QueueError> {
        let poison = batch.unreadable.len();
        let good = batch.deliveries.len() - poison - batch.marks;
        for (result, messages) in [("settled", good), ("poison", poison)] {
            metrics::counter!("seckill_consumed_total", "queue" => queue, "result" => result)
                .increment(messages as u64);
        }
        for position in &batch.unreadable {
            // Not requeued: it would come back at once.
            batch.deliveries[*position].acker.reject(BasicRejectOptions { requeue: false }).await?;
        }
        // Acknowledges up to the last good message. Only this task receives on this channel, so all of them belong to this batch. The tag
        // of a rejected message must not be used again.
        let good = |(position, _): &(usize, &Delivery)| !batch.unreadable.contains(position);
        if let Some((_, last_good)) = batch.deliveries.iter().enumerate().rfind(good) {
            let options = BasicAckOptions { multiple: true };
            self.link.channel.basic_ack(last_good.delivery_tag, options).await?;
        }
        Ok(())
    }
}
