//! The net under callbacks: whoever has not said what came of a payment or refund is asked, by the key that it was sent
//! under.

use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::{PayError, PaymentService, route_of};
use crate::channel::StatusReply;
use crate::die_at;
use crate::domain::payment::{About, PaymentId};
use crate::domain::step::Step;
use crate::ledger::money::channel_reports::ReportOutcome;
use crate::ledger::money::payment_dispatch::SendState;
use crate::ledger::money::payment_status::StatusQuery;

/// Questions of one step, and how many of them at once: a channel that is slow is not overrun, nor is the ledger.
const BATCH_MAX: i64 = 50;
const AT_ONCE: usize = 8;

impl PaymentService {
    /// Asks about what is overdue, and brings refunds again that had found no room. A question that fails is asked again
    /// when it is due again, and fails no other.
    pub async fn ask(&self) -> Result<Step, PayError> {
        self.open().await?;
        for channel in self.channels.iter() {
            self.ledger.queue_refunds(channel.name, &route_of(channel), BATCH_MAX).await?;
        }
        let again = self.terms.ask_after;
        let mut questions = self.ledger.payments_to_ask(BATCH_MAX, again).await?;
        questions.extend(self.ledger.refunds_to_ask(BATCH_MAX, again * 4).await?);
        let asked = questions.len();
        let asking = stream::iter(questions).map(|question| async move {
            if let Err(error) = self.inquire(&question).await {
                tracing::warn!(key = %question.about.key(), %error, "asked in vain; once more later");
            }
        });
        asking.buffer_unordered(AT_ONCE).collect::<()>().await;
        Ok(Step::after(asked, BATCH_MAX as usize))
    }

    async fn inquire(&self, question: &StatusQuery) -> Result<(), PayError> {
        let Some(channel) = self.channels.get(&question.channel) else {
            tracing::error!(channel = question.channel, "money is under way by a channel that is not configured");
            return Ok(());
        };
        let key = question.about.key();
        let asked = channel.ask(question.about).await;
        die_at!("status.answered");
        match asked {
            Ok(StatusReply::ChannelReport(told)) => match self.take_in(channel, &told).await? {
                ReportOutcome::Pending if !told.about.is_refund() => {
                    self.ledger.payment_taken(PaymentId(key), question.claim, self.terms.ask_after).await?;
                }
                ReportOutcome::Misfit(problem) => {
                    tracing::error!(%key, problem, "MONEY DOES NOT FIT: what the channel says was set aside");
                    let (message, body) = (format!("asked-{key}"), format!("{told:?}"));
                    self.ledger.set_aside(channel.name, &message, problem, &body).await?;
                }
                _ => {}
            },
            Ok(StatusReply::Unknown) => match question.about {
                About::Payment { .. } => {
                    let sent = SendState::Perhaps { on_its_way: self.terms.on_its_way };
                    self.ledger.take_back(PaymentId(key), question.claim, sent, Duration::ZERO).await?;
                    self.notifier.outbox_changed();
                }
                About::Refund { .. } => {
                    let again = self.ledger.refund_again(key).await?;
                    tracing::warn!(%key, again, "the channel knows nothing of this refund");
                }
            },
            Ok(StatusReply::Unclear(answer)) => tracing::info!(%key, answer, "the channel does not say"),
            Err(error) => tracing::info!(%key, %error, "the channel could not be asked"),
        }
        Ok(())
    }

    /// Shows how money stands.
    pub async fn watch(&self) -> Result<Step, PayError> {
        let figures = self.ledger.money_figures().await?;
        let gauge = |name: &'static str, value: i64| metrics::gauge!(name).set(value as f64);
        gauge("seckill_payments_waiting", figures.created);
        gauge("seckill_payments_oldest_seconds", figures.oldest_s);
        gauge("seckill_payments_under_way", figures.under_way);
        gauge("seckill_refunds_waiting", figures.refunds);
        gauge("seckill_refunds_failed", figures.refunds_failed);
        gauge("seckill_callbacks_set_aside", figures.set_aside);
        Ok(Step::Idle)
    }
}
