//! Publishes the outbox's messages to the broker (protocol, rule 6).

use std::sync::Arc;

use crate::die_at;
use crate::domain::message::{OrderExpireV1, OrderPlacedV1, PaymentRequestedV1, Version};
use crate::ledger::Ledger;
use crate::ledger::outbox::{BrokerMessage, OutboxRow, PublishOutcome, RetryTerms};
use crate::queue::{DeadLetters, Destination, Outgoing, Publisher, QueueError, Receipt};
use crate::sale::{SaleError, Step};
use crate::telemetry::spans::{Span, SpanKind};

/// Publishes outbox rows to the broker.
#[derive(Clone)]
pub struct Relay {
    pub ledger: Ledger,
    pub publisher: Arc<Publisher>,
    pub batch_max: i64,
    pub retry: RetryTerms,
}

impl Relay {
    /// Publishes one batch and marks what the broker has confirmed. When the broker cannot be reached no attempt is
    /// counted: the rows are unlocked as they were.
    #[tracing::instrument(level = "debug", name = "relay", skip_all)]
    pub async fn step(&self) -> Result<Step, SaleError> {
        self.publisher.connect().await?;
        let claim = self.ledger.claim_messages(self.batch_max).await?;
        if claim.rows.is_empty() {
            return Ok(Step::Idle);
        }
        die_at!("relay.claimed");
        let mut messages: Vec<Outgoing> = claim.rows.iter().map(outgoing).collect();
        let spans = publish_spans(&claim.rows, &mut messages);
        let published = self.publisher.publish(&messages).await;
        end_spans(spans, &published);
        let receipts = published?;
        die_at!("relay.published");
        let mut outcome = PublishOutcome::default();
        for (row, receipt) in claim.rows.iter().zip(receipts) {
            match receipt {
                Receipt::Confirmed => outcome.sent.push(row.id),
                Receipt::NoRoom => outcome.postponed.push(row.id),
                Receipt::Unroutable => outcome.failed.push((row.id, "no queue accepts it".to_owned())),
                Receipt::NoSuchChannel => outcome.without_channel.push(row.id),
            }
        }
        if !outcome.postponed.is_empty() {
            tracing::warn!(rows = outcome.postponed.len(), "the broker has no room; messages wait in the outbox");
        }
        if !outcome.without_channel.is_empty() {
            let rows = outcome.without_channel.len();
            tracing::error!(rows, "payments of a channel that is not configured wait in the outbox until it is");
        }
        let done = claim.rows.len();
        metrics::histogram!("seckill_relay_batch_size").record(done as f64);
        let results = [
            ("confirmed", outcome.sent.len()),
            ("no-room", outcome.postponed.len()),
            ("unroutable", outcome.failed.len()),
            ("no-channel", outcome.without_channel.len()),
        ];
        for (result, messages) in results {
            metrics::counter!("seckill_relayed_total", "result" => result).increment(messages as u64);
        }
        claim.settle_sent(&outcome, self.retry).await?;
        die_at!("relay.settled");
        Ok(Step::after(done, usize::try_from(self.batch_max).unwrap_or(usize::MAX)))
    }

    /// Reports a dead-letter queue that is full or missing: messages that cannot be processed then stay in their queues.
    pub async fn watch_dead_letters(&self) -> Result<(), SaleError> {
        let queue = self.publisher.dead_letters().await?;
        metrics::gauge!("seckill_dead_letters").set(queue.map_or(f64::NAN, |queue| f64::from(queue.messages)));
        match queue {
            None => tracing::error!("DEAD LETTERS: no queue; messages that cannot be processed stay in theirs"),
            Some(DeadLetters { messages, max }) if messages >= max => {
                tracing::error!(messages, "DEAD LETTERS: queue full; messages that cannot be processed stay in theirs");
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Makes messages pending again that were sent and not processed, and that lie in no queue any more. To find out, it
    /// sends a mark through each queue that holds up messages for longer than `after_ms`: what was sent before a mark, and is
    /// not processed `after_ms` after the mark came out, is lost.
    pub async fn resend(&self, after_ms: u64) -> Result<Step, SaleError> {
        let now_ms = self.ledger.now_ms().await?;
        let overdue = self.ledger.queues_with_overdue(after_ms).await?;
        let sources = self.publisher.sources().into_iter().filter(|source| overdue.contains(&source.key()));
        let (queues, marks): (Vec<String>, Vec<Outgoing>) = sources
            .map(|source| {
                let queue = source.key();
                let to = Destination::Mark(source);
                (queue, Outgoing { to, id: uuid::Uuid::now_v7(), body: now_ms.to_string().into_bytes(), trace: None })
            })
            .unzip();
        if !marks.is_empty() {
            self.publisher.publish(&marks).await?;
            for queue in queues {
                metrics::counter!("seckill_queue_marks_total", "queue" => queue).increment(1);
            }
        }
        let rows = self.ledger.resend_unsettled(after_ms, self.batch_max).await?;
        if rows > 0 {
            tracing::warn!(rows, "messages were sent and not processed; sending them again");
        }
        Ok(Step::after(
            usize::try_from(rows).unwrap_or(usize::MAX),
            usize::try_from(self.batch_max).unwrap_or(usize::MAX),
        ))
    }
}

fn outgoing(row: &OutboxRow<BrokerMessage>) -> Outgoing {
    let (kind, about) = row.task.key();
    let (to, body) = match &row.task {
        BrokerMessage::OrderPlaced { order } => (
            Destination::OrderPlaced,
            serde_json::to_vec(&OrderPlacedV1 { version: Version, order_id: *order, sale_id: row.sale }),
        ),
        BrokerMessage::OrderExpire { order, due_at_ms, remaining_ms } => (
            Destination::OrderExpire { remaining_ms: *remaining_ms },
            serde_json::to_vec(&OrderExpireV1 { version: Version, order_id: *order, due_at_ms: *due_at_ms }),
        ),
        BrokerMessage::PaymentRequested { payment, channel } => (
            Destination::PaymentRequested { channel: channel.clone() },
            serde_json::to_vec(&PaymentRequestedV1 { version: Version, payment_id: *payment }),
        ),
    };
    // Numbers and UUIDs always serialise; an empty body would be dead-lettered, not lost.
    Outgoing { to, id: kind.message_id(about), body: body.unwrap_or_default(), trace: None }
}

/// Begins a span for each message that is traced, and gives it to the message to carry on. Returns the spans with the places of
/// their messages.
fn publish_spans(rows: &[OutboxRow<BrokerMessage>], messages: &mut [Outgoing]) -> Vec<(usize, Span)> {
    let mut spans = Vec::new();
    for (index, (row, message)) in rows.iter().zip(messages).enumerate() {
        let (kind, about) = row.task.key();
        let trace_id = row.trace.as_ref().map(|trace| trace.trace_id());
        tracing::debug!(order = %about, kind = kind.as_str(), trace_id, "to be published");
        if let Some(trace) = &row.trace {
            let mut span = Span::below(trace, SpanKind::Producer, "publish");
            span.set("message.kind", kind.as_str());
            span.set("message.group.size", i64::try_from(rows.len()).unwrap_or(i64::MAX));
            message.trace = Some(Box::new(span.context().clone()));
            spans.push((index, span));
        }
    }
    spans
}

fn end_spans(spans: Vec<(usize, Span)>, published: &Result<Vec<Receipt>, QueueError>) {
    for (index, mut span) in spans {
        match published.as_ref().map(|receipts| receipts.get(index)) {
            Ok(Some(Receipt::Confirmed)) => {}
            Ok(receipt) => span.fail(format!("{receipt:?}")),
            Err(error) => span.fail(error.to_string()),
        }
    }
}
