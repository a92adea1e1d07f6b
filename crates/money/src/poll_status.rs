//! Polling: if a channel has not reported the outcome of a payment or refund, it is asked by the key of the request.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};

use super::{PayError, PaymentService};
use seckill_channel::{Channel, StatusReply};
use seckill_domain::delivery::Standing;
use seckill_domain::payment::ReportOutcome;
use seckill_domain::step::Step;
use seckill_postgres::money::payment_status::StatusQuery;
use seckill_runtime::die_at;

/// Questions in one step, and how many run at once: neither a slow channel nor the ledger is overloaded.
const BATCH_MAX: i64 = 50;
const AT_ONCE: usize = 8;
/// Time to write the outcome of a probe.
const PROBE_SPARE: Duration = Duration::from_secs(3);
/// The ledger rests this many times the duration of a search for refunds.
const REST_FACTOR: u32 = 20;

impl PaymentService {
    /// Asks a channel about overdue payments and refunds, and queues refunds whose outflow was full before. A failed question is asked
    /// again when it is next due, and affects no other question.
    pub async fn poll(&self, channel: &Channel) -> Result<Step, PayError> {
        self.open().await?;
        let (ledger, again) = (&self.ledger, self.ask_after());
        if !ledger.payments.is_anything_open(&channel.name).await? {
            return Ok(Step::Idle);
        }
        let standing = ledger.receivers.standing(&channel.receiver()).await?;
        let most = match standing {
            Standing::Pauses(_) => return Ok(Step::Idle),
            Standing::ProbeDue => 1,
            Standing::Well => BATCH_MAX,
        };
        ledger.payments.queue_refunds(&channel.name, &channel.outflow(), BATCH_MAX).await?;
        let mut queries = ledger.payments.payments_to_ask(&channel.name, most, again).await?;
        queries.extend(self.refunds_to_ask(channel, most, again * 4).await?);
        if standing == Standing::ProbeDue {
            queries.truncate(1);
            let lease = channel.patience + PROBE_SPARE;
            if queries.is_empty() || !ledger.receivers.begin_probe(&channel.receiver(), lease).await? {
                return Ok(Step::Idle);
            }
        }
        let asked = queries.len();
        let asking = stream::iter(queries).map(|query| async move {
            if let Err(error) = self.ask(channel, query).await {
                tracing::warn!(key = %query.about().key(), %error, "question failed; it is asked again later");
            }
        });
        asking.buffer_unordered(AT_ONCE).collect::<()>().await;
        Ok(Step::after(asked, BATCH_MAX as usize))
    }

    /// Refunds to ask a channel about. The search reads all refunds in flight, so the ledger rests after it.
    async fn refunds_to_ask(
        &self,
        channel: &Channel,
        most: i64,
        after: Duration,
    ) -> Result<Vec<StatusQuery>, PayError> {
        let began = Instant::now();
        if self.refunds_rest.lock().get(&channel.name).is_some_and(|until| *until > began) {
            return Ok(Vec::new());
        }
        let queries = self.ledger.payments.refunds_to_ask(&channel.name, most, after).await?;
        let rest = began.elapsed() * REST_FACTOR;
        self.refunds_rest.lock().insert(channel.name.clone(), began + rest);
        Ok(queries)
    }

    async fn ask(&self, channel: &Channel, query: StatusQuery) -> Result<(), PayError> {
        let (about, ledger) = (query.about(), &self.ledger);
        let key = about.key();
        let sent = Instant::now();
        let (reply, outcome) = channel.ask(about).await;
        ledger.receivers.note(&channel.receiver(), sent, &outcome).await;
        die_at!("status.answered");
        match (reply, query) {
            (Ok(StatusReply::ChannelReport(report)), _) => match (self.take_in(channel, &report).await?, query) {
                (ReportOutcome::Pending, StatusQuery::Payment { payment, claim, .. }) => {
                    ledger.payments.payments_taken(&[(payment, claim)], self.ask_after()).await?;
                }
                (ReportOutcome::Misfit(problem), _) => {
                    tracing::error!(%key, problem, "MONEY DOES NOT FIT: the channel's answer was set aside");
                    let (message, body) = (format!("asked-{key}"), format!("{report:?}"));
                    ledger.payments.set_aside(&channel.name, &message, problem, &body).await?;
                }
                _ => {}
            },
            (Ok(StatusReply::Unknown), StatusQuery::Payment { payment, claim, .. }) => {
                let on_its_way = Duration::from_millis(self.settings.on_its_way_ms);
                ledger.payments.take_back(payment, claim, Some(on_its_way), Duration::ZERO).await?;
                self.notifier.outbox_changed();
            }
            (Ok(StatusReply::Unknown), StatusQuery::Refund { key, .. }) => {
                let again = ledger.payments.refund_again(key).await?;
                tracing::warn!(%key, again, "the channel never received this refund");
            }
            (Ok(StatusReply::Unclear(answer)), _) => tracing::info!(%key, answer, "the channel's answer does not say"),
            (Err(error), _) => tracing::info!(%key, %error, "the channel could not be asked"),
        }
        Ok(())
    }

    /// Shows payments and refunds in flight as metrics.
    pub async fn watch(&self) -> Result<Step, PayError> {
        let figures = self.ledger.payments.money_figures().await?;
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
