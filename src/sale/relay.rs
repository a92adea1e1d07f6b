//! The outbox on its way to the broker (protocol, rule 6).

use std::sync::Arc;

use super::{SaleError, Step};
use crate::die_at;
use crate::domain::message::{OrderExpireV1, OrderPlacedV1, OutboxKind, PaymentRequestedV1, Version};
use crate::domain::payment::PaymentId;
use crate::ledger::Ledger;
use crate::ledger::outbox::{OutboxRow, PublishOutcome, RetryTerms};
use crate::queue::{Destination, Outgoing, Publisher, Receipt};

/// Carries outbox rows to the broker.
#[derive(Clone)]
pub struct Relay {
    pub ledger: Ledger,
    pub publisher: Arc<Publisher>,
    pub batch_max: i64,
    pub retry: RetryTerms,
}

impl Relay {
    /// Publishes one batch and marks what the broker confirmed. A broker that cannot be reached counts as no attempt:
    /// the rows are let go as they were.
    #[tracing::instrument(level = "debug", name = "relay", skip_all)]
    pub async fn step(&self) -> Result<Step, SaleError> {
        self.publisher.connect().await?;
        let claim = self.ledger.claim_messages(self.batch_max).await?;
        if claim.rows.is_empty() {
            return Ok(Step::Idle);
        }
        die_at!("relay.claimed");
        let messages: Vec<Outgoing> = claim.rows.iter().map(message).collect();
        claim
            .rows
            .iter()
            .for_each(|row| tracing::debug!(order = %row.order, kind = row.kind.as_str(), "to be published"));
        let receipts = self.publisher.publish(&messages).await?;
        die_at!("relay.published");
        let mut outcome = PublishOutcome::default();
        for (row, receipt) in claim.rows.iter().zip(receipts) {
            match receipt {
                Receipt::Confirmed => outcome.sent.push(row.id),
                Receipt::NoRoom => outcome.postponed.push(row.id),
                Receipt::Unroutable => outcome.failed.push((row.id, "no queue takes it".to_owned())),
                Receipt::NoSuchChannel => outcome.without_channel.push(row.id),
            }
        }
        if !outcome.postponed.is_empty() {
            tracing::warn!(rows = outcome.postponed.len(), "the broker has no room; they wait in the outbox");
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

    /// Raises an alarm when what cannot be processed has nowhere to go: it then stays in its own queue.
    pub async fn watch_dead_letters(&self) -> Result<(), SaleError> {
        let state = self.publisher.dead_letters().await?;
        metrics::gauge!("seckill_dead_letters").set(state.map_or(f64::NAN, |(messages, _)| f64::from(messages)));
        match state {
            None => tracing::error!("DEAD LETTERS: their queue is gone; what cannot be processed stays where it is"),
            Some((messages, max)) if messages >= max => {
                tracing::error!(
                    messages,
                    "DEAD LETTERS: their queue is full; what cannot be processed stays where it is"
                );
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// What was sent and not settled for too long is to be sent again.
    pub async fn resend(&self, after_ms: u64) -> Result<Step, SaleError> {
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

fn message(row: &OutboxRow) -> Outgoing {
    let (to, body) = match row.kind {
        OutboxKind::OrderExpire => (
            Destination::OrderExpire { remaining_ms: row.remaining_ms },
            serde_json::to_vec(&OrderExpireV1 { version: Version, order_id: row.order, due_at_ms: row.due_at_ms }),
        ),
        OutboxKind::PaymentRequested => (
            Destination::PaymentRequested { channel: row.channel.clone().unwrap_or_default() },
            serde_json::to_vec(&PaymentRequestedV1 { version: Version, payment_id: PaymentId(row.order.0) }),
        ),
        OutboxKind::OrderPlaced | OutboxKind::HoldRelease | OutboxKind::WaveRelease => (
            Destination::OrderPlaced,
            serde_json::to_vec(&OrderPlacedV1 { version: Version, order_id: row.order, sale_id: row.sale }),
        ),
    };
    // Numbers and UUIDs always serialise; an empty body would be refused as poison, not lost.
    Outgoing { to, id: row.kind.message_id(row.order), body: body.unwrap_or_default() }
}
