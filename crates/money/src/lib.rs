//! Use cases of money: an order is paid through a channel; money that pays no order is refunded.

pub mod api;
pub mod batchers;
pub mod compare_books;
pub mod payment_sender;
pub mod poll_status;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use seckill_channel::{BadCallback, Channel, Channels};
pub use seckill_channel::{CALLBACK_MAX_BYTES, SignatureHeaders};
use seckill_config as config;
use seckill_domain::ids::{OrderId, UserId};
use seckill_domain::payment::{ChannelReport, PaymentStatus, Progress, RefundReason, ReportOutcome};
pub use seckill_postgres::money::payments::{PaymentRequest, PaymentStart};
pub use seckill_postgres::money::refunds::RefundOutcome;
use seckill_postgres::notices::Notifier;
use seckill_postgres::{Ledger, LedgerError};
use seckill_rabbitmq::QueueError;
use seckill_runtime::worker::batcher::BatchError;
use seckill_webhook::SendError;

#[derive(Debug, thiserror::Error)]
pub enum PayError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error("the books of channel {channel} cannot be read: {error}")]
    Books { channel: String, error: SendError },
}

#[derive(Clone)]
pub struct PaymentService {
    pub ledger: Ledger,
    pub channels: Channels,
    pub(crate) notifier: Notifier,
    pub(crate) settings: config::Payments,
    /// Whether the outflows of refunds have been created.
    opened: Arc<OnceCell<()>>,
    /// By channel: until when the refunds in flight are not searched.
    refunds_rest: Arc<Mutex<HashMap<String, Instant>>>,
}

/// A callback with a matching signature.
pub(crate) struct Callback {
    channel: Arc<Channel>,
    message: String,
    /// `None` if it cannot be read.
    report: Option<ChannelReport>,
    body: Bytes,
}

#[derive(Debug)]
pub(crate) enum CallbackRefusal {
    NoSuchChannel,
    TooLong,
    /// The signature does not match, or the message is too old.
    Callback(BadCallback),
}

impl PaymentService {
    pub fn new(ledger: Ledger, channels: Channels, notifier: Notifier, settings: config::Payments) -> Self {
        Self { ledger, channels, notifier, settings, opened: Arc::default(), refunds_rest: Arc::default() }
    }

    fn ask_after(&self) -> Duration {
        Duration::from_millis(self.settings.ask_after_ms)
    }

    /// Creates, once, the outflows of all channels' refunds, and reports money whose channel is not configured.
    async fn open(&self) -> Result<(), PayError> {
        let open = async || {
            for channel in self.channels.iter() {
                let (outflow, pace) = (channel.outflow(), channel.refund_pace);
                let gap_us = self
                    .ledger
                    .outflows
                    .ensure_refund_outflow(&outflow, &channel.name, pace, &channel.refund_url())
                    .await?;
                if gap_us != pace.gap_us() {
                    tracing::warn!(outflow, "its rate is not the configured one; `seckill outflow rate` changes it");
                }
            }
            for (channel, rows) in self.ledger.payments.money_without_channel(&self.channels.names()).await? {
                tracing::error!(channel, rows, "CHANNEL NOT CONFIGURED: its payments and refunds wait until it is");
            }
            Ok(())
        };
        self.opened.get_or_try_init(open).await.copied()
    }

    /// Begins to pay an order that was locked before. Waits until it is free.
    pub(crate) async fn pay_alone(&self, request: PaymentRequest) -> Result<PaymentStart, PayError> {
        let begins = self.ledger.payments.begin_payment(&request, self.settings.wait_ms);
        let begun = self.ledger.in_time(begins).await?;
        self.notify_begun(std::slice::from_ref(&begun));
        Ok(begun)
    }

    pub(crate) fn notify_begun(&self, begun: &[PaymentStart]) {
        self.notifier.outbox_changed();
        // Free orders are paid at once.
        if begun.iter().any(|begun| matches!(begun, PaymentStart::Payment(_, PaymentStatus::Succeeded))) {
            self.notifier.orders_changed();
        }
    }

    /// Requests the refund of a paid order for its buyer, or for an operator (`user` is `None`).
    pub async fn refund(
        &self,
        user: Option<&UserId>,
        asked_by: &str,
        order: OrderId,
        reason: &RefundReason,
    ) -> Result<RefundOutcome, PayError> {
        self.open().await?;
        let outflow = |name: &str| self.channels.get(name).map(|channel| channel.outflow());
        let asked = self
            .ledger
            .payments
            .ask_refund(order, user.map(UserId::as_str), asked_by, reason.as_str(), outflow)
            .await?;
        self.notifier.outbox_changed();
        self.notifier.orders_changed();
        Ok(asked)
    }

    /// Checks a callback's signature and reads it, without PostgreSQL. `now_s` is the database's time in seconds.
    pub(crate) fn read_callback(
        &self,
        channel: &str,
        signed: SignatureHeaders<'_>,
        body: Bytes,
        now_s: i64,
    ) -> Result<Option<Callback>, CallbackRefusal> {
        let channel = self.channels.get(channel).ok_or(CallbackRefusal::NoSuchChannel)?;
        if body.len() > CALLBACK_MAX_BYTES {
            return Err(CallbackRefusal::TooLong);
        }
        let report = match channel.read_callback(signed, &body, now_s) {
            Ok(Some(report)) => Some(report),
            Ok(None) => {
                count_callback("ignored");
                return Ok(None);
            }
            Err(BadCallback::Unreadable(_)) => None,
            Err(error) => {
                count_callback("not-believed");
                return Err(CallbackRefusal::Callback(error));
            }
        };
        Ok(Some(Callback { channel: channel.clone(), message: signed.id.to_owned(), report, body }))
    }

    /// Applies an accepted callback. Returns the problem if it contradicts our books: then it is quarantined for an operator.
    pub(crate) async fn take_callback(&self, callback: Callback) -> Result<Option<&'static str>, PayError> {
        let Callback { channel, message, report, body } = callback;
        let taken = match report {
            Some(report) => self.take_in(&channel, &report).await?,
            None => ReportOutcome::Misfit("it cannot be read"),
        };
        let ReportOutcome::Misfit(problem) = taken else {
            count_callback(if taken == ReportOutcome::Known { "known" } else { "applied" });
            return Ok(None);
        };
        count_callback("set-aside");
        tracing::error!(channel = channel.name, message, problem, "CALLBACK SET ASIDE: it does not fit");
        let text = String::from_utf8_lossy(&body);
        self.ledger.payments.set_aside(&channel.name, &message, problem, &text.replace('\0', "")).await?;
        Ok(Some(problem))
    }

    async fn take_in(&self, channel: &Channel, report: &ChannelReport) -> Result<ReportOutcome, PayError> {
        self.open().await?;
        let taken =
            self.ledger.in_time(self.ledger.payments.take_in(&channel.name, report, &channel.outflow())).await?;
        self.note_taken(report, &taken);
        Ok(taken)
    }

    /// Counts a report that has changed something, and notifies the waiters for that change.
    fn note_taken(&self, report: &ChannelReport, taken: &ReportOutcome) {
        let about = if report.about.is_refund() { "refund" } else { "payment" };
        let outcome = match taken {
            ReportOutcome::Applied if report.progress == Progress::Failed => "failed",
            ReportOutcome::Applied => "succeeded",
            ReportOutcome::Refunding => "unwanted",
            ReportOutcome::Known | ReportOutcome::Pending | ReportOutcome::Misfit(_) => return,
        };
        metrics::counter!("seckill_money_total", "about" => about, "outcome" => outcome).increment(1);
        tracing::debug!(key = %report.about.key(), about, outcome, "money");
        self.notifier.outbox_changed();
        self.notifier.orders_changed();
    }
}

fn count_callback(result: &'static str) {
    metrics::counter!("seckill_callbacks_total", "result" => result).increment(1);
}
