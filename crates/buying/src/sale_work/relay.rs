//! Publishes the outbox's messages to the broker (protocol, rule 6).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::sale::{SaleError, Step};
use crate::sale_work::relay_messages::messages_for;
use seckill_postgres::Ledger;
use seckill_postgres::outbox::{BrokerMessage, MESSAGES, OutboxRow, PublishOutcome, RetryPolicy};
use seckill_rabbitmq::{DeadLetters, Destination, Outgoing, Publisher, QueueError, Receipt, Source};
use seckill_runtime::die_at;
use seckill_telemetry::spans::{Span, SpanKind};

/// How long the rows of a batch stay locked while the broker has it. Much shorter than consumers wait for a lock.
const LOCKED_MAX: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub struct Relay {
    pub ledger: Ledger,
    pub publisher: Arc<Publisher>,
    pub batch_max: i64,
    pub retry: RetryPolicy,
}

impl Relay {
    /// Publishes one batch and marks the confirmed messages. If the broker is away, rows stay unchanged, and no attempt is counted.
    #[tracing::instrument(level = "debug", name = "relay", skip_all)]
    pub async fn step(&self) -> Result<Step, SaleError> {
        self.publisher.connect().await?;
        if !self.ledger.outbox.has_due(&MESSAGES).await? {
            return Ok(Step::Idle);
        }
        let mut claim = self.ledger.outbox.claim_messages(self.batch_max).await?;
        if claim.rows.is_empty() {
            return Ok(Step::Idle);
        }
        die_at!("relay.claimed");
        let (mut messages, carried) = messages_for(&claim.rows);
        let spans = publish_spans(&claim.rows, &carried, &mut messages);
        let mut publishing = pin!(async {
            die_at!("relay.sending");
            self.publisher.publish(&messages).await
        });
        let published = match timeout(LOCKED_MAX, &mut publishing).await {
            Ok(published) => published,
            Err(_) => {
                claim.lease().await?;
                die_at!("relay.leased");
                publishing.await
            }
        };
        end_spans(spans, &published);
        let receipts = match published {
            Ok(receipts) => receipts,
            Err(error) => {
                claim.give_back().await?;
                return Err(error.into());
            }
        };
        die_at!("relay.published");
        let (rows, done) = (&claim.rows, claim.rows.len());
        let outcome = outcome_of(rows, &carried, receipts);
        if !outcome.postponed.is_empty() {
            tracing::warn!(rows = outcome.postponed.len(), "the broker has no room; messages wait in the outbox");
        }
        if !outcome.without_channel.is_empty() {
            let rows = outcome.without_channel.len();
            tracing::error!(rows, "payments of a channel that is not configured wait in the outbox until it is");
        }
        metrics::histogram!("seckill_relay_batch_size").record(done as f64);
        for places in &carried {
            if let Some(first) = places.first() {
                let kind = rows[*first].task.key().0.as_str();
                metrics::histogram!("seckill_message_batch_size", "kind" => kind).record(places.len() as f64);
            }
        }
        let results = [
            ("confirmed", outcome.sent.len()),
            ("no-room", outcome.postponed.len()),
            ("unanswered", outcome.unanswered.len()),
            ("unroutable", outcome.failed.len()),
            ("no-channel", outcome.without_channel.len()),
        ];
        for (result, rows) in results {
            metrics::counter!("seckill_relayed_total", "result" => result).increment(rows as u64);
        }
        claim.settle_sent(&outcome, self.retry).await?;
        die_at!("relay.settled");
        Ok(Step::after(done, usize::try_from(self.batch_max).unwrap_or(usize::MAX)))
    }

    /// Reports a dead-letter queue that is full or missing: then messages that cannot be processed stay in their queues.
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

    /// Makes lost messages pending again: sent, not processed, and in no queue. Each queue with messages older than `after_ms` gets a mark.
    /// A message sent before the mark, and not processed `after_ms` after the mark came out, is lost.
    pub async fn resend(&self, after_ms: u64) -> Result<Step, SaleError> {
        let now_ms = self.ledger.now_ms().await?;
        let overdue = self.ledger.outbox.queues_with_overdue(after_ms).await?;
        let mut sources = self.publisher.sources();
        sources.retain(|source| overdue.iter().any(|queue| queue == source.as_str()));
        let mark = |source: &Source| {
            let (id, body) = (uuid::Uuid::now_v7(), now_ms.to_string().into_bytes());
            Outgoing { to: Destination::Mark(source.clone()), id, body, trace: None }
        };
        let marks: Vec<Outgoing> = sources.iter().map(mark).collect();
        if !marks.is_empty() {
            self.publisher.publish(&marks).await?;
        }
        for source in &sources {
            metrics::counter!("seckill_queue_marks_total", "queue" => source.key()).increment(1);
        }
        let rows = self.ledger.outbox.resend_unsettled(after_ms, self.batch_max).await?;
        if rows > 0 {
            tracing::warn!(rows, "messages were sent and not processed; sending them again");
        }
        Ok(if rows >= self.batch_max.unsigned_abs() { Step::More } else { Step::Idle })
    }
}

fn outcome_of(rows: &[OutboxRow<BrokerMessage>], carried: &[Vec<usize>], receipts: Vec<Receipt>) -> PublishOutcome {
    let mut outcome = PublishOutcome::default();
    for (places, receipt) in carried.iter().zip(receipts) {
        let ids = places.iter().map(|place| rows[*place].id);
        match receipt {
            Receipt::Confirmed => outcome.sent.extend(ids),
            Receipt::NoRoom => outcome.postponed.extend(ids),
            Receipt::Unanswered => outcome.unanswered.extend(ids),
            Receipt::Unroutable => outcome.failed.extend(ids.map(|id| (id, "no queue accepts it".to_owned()))),
            Receipt::NoSuchChannel => outcome.without_channel.extend(ids),
        }
    }
    outcome
}

/// Begins a span for each traced row, and gives it to the row's message. Returns the spans with their places.
fn publish_spans(
    rows: &[OutboxRow<BrokerMessage>],
    carried: &[Vec<usize>],
    messages: &mut [Outgoing],
) -> Vec<(usize, Span)> {
    let mut spans = Vec::new();
    for (index, (places, message)) in carried.iter().zip(messages).enumerate() {
        for row in places.iter().map(|place| &rows[*place]) {
            let (kind, about) = row.task.key();
            let trace_id = row.trace.as_ref().map(|trace| trace.trace_id());
            tracing::debug!(order = %about, kind = kind.as_str(), trace_id, "to be published");
            let Some(trace) = &row.trace else { continue };
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
