//! The story of money: an order is paid through a channel, and money for which no order waits goes back.

pub mod compare_books;
pub mod payment_batcher;
pub mod payment_sender;
pub mod poll_status;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;

pub use crate::channel::Signed;
use crate::channel::{BadCallback, Channel, Channels};
use crate::domain::ids::{OrderId, UserId};
use crate::domain::payment::{ChannelReport, Progress, RefundReason};
use crate::ledger::money::channel_reports::ReportOutcome;
pub use crate::ledger::money::payments::PaymentStart;
pub use crate::ledger::money::refunds::RefundAsked;
use crate::ledger::money::refunds::RefundRoute;
use crate::ledger::notices::Notifier;
use crate::ledger::{Ledger, LedgerError};
use crate::queue::QueueError;
use seckill_webhook::SendError;

/// Why a step of it could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum PayError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("too many wishes to pay at once")]
    TooMany,
    #[error("whether the payment began is unknown")]
    Unknown,
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error("the channel's books cannot be had: {0}")]
    Books(#[source] SendError),
}

/// Takes orders' payments and refunds, and what channels say of them.
#[derive(Clone)]
pub struct PaymentService {
    pub ledger: Ledger,
    pub channels: Channels,
    pub notifier: Notifier,
    pub terms: PayTerms,
    /// Whether the ledger knows how the channels want to be treated.
    opened: Arc<OnceCell<()>>,
}

/// How payments are made.
#[derive(Debug, Clone)]
pub struct PayTerms {
    pub currency: String,
    /// How long beyond its deadline an order waits for a payment that began in time.
    pub wait_ms: u64,
    /// How long a channel has to say what came of a payment or refund, before it is asked.
    pub ask_after: Duration,
    /// How long a request may be on its way that nobody waits for any more.
    pub on_its_way: Duration,
}

/// What came of a callback.
#[derive(Debug)]
pub enum CallbackTaken {
    /// Applied, now or before.
    Known,
    /// Set aside for people: it does not fit.
    Misfit(&'static str),
    NoSuchChannel,
    /// Not signed by the channel, or not now.
    NotBelieved(BadCallback),
}

impl PaymentService {
    pub fn new(ledger: Ledger, channels: Channels, notifier: Notifier, terms: PayTerms) -> Self {
        Self { ledger, channels, notifier, terms, opened: Arc::default() }
    }

    /// Sees, once, to the outflows of all channels' refunds.
    async fn open(&self) -> Result<(), PayError> {
        let open = async || {
            for channel in self.channels.iter() {
                let (outflow, pace) = (channel.outflow(), channel.refund_pace);
                let stands = self.ledger.ensure_outflow(&outflow, pace, &channel.refunds_at()).await?;
                if stands != pace.gap_us() {
                    tracing::warn!(outflow, "its rate is not the configured one; `seckill outflow rate` changes it");
                }
            }
            Ok(())
        };
        self.opened.get_or_try_init(open).await.copied()
    }

    /// Asks for a paid order's money back: its buyer, or somebody of the shop (`user` is nobody then).
    pub async fn refund(
        &self,
        user: Option<&UserId>,
        asked_by: &str,
        order: OrderId,
        reason: &RefundReason,
    ) -> Result<RefundAsked, PayError> {
        self.open().await?;
        let route = |name: &str| self.channels.get(name).map(route_of);
        let asked = self.ledger.ask_refund(order, user.map(UserId::as_str), asked_by, reason.as_str(), route).await?;
        self.notifier.outbox_changed();
        self.notifier.orders_changed();
        Ok(asked)
    }

    /// Takes in a channel's callback. `now_s` is the database's time.
    pub async fn callback(
        &self,
        channel: &str,
        signed: Signed<'_>,
        body: &[u8],
        now_s: i64,
    ) -> Result<CallbackTaken, PayError> {
        let Some(channel) = self.channels.get(channel) else { return Ok(CallbackTaken::NoSuchChannel) };
        let taken = match channel.read_callback(signed, body, now_s) {
            Ok(told) => self.take_in(channel, &told).await?,
            Err(BadCallback::Unreadable(_)) => ReportOutcome::Misfit("it cannot be read"),
            Err(error) => {
                count_callback("not-believed");
                return Ok(CallbackTaken::NotBelieved(error));
            }
        };
        let ReportOutcome::Misfit(problem) = taken else {
            count_callback(if taken == ReportOutcome::Known { "known" } else { "applied" });
            return Ok(CallbackTaken::Known);
        };
        count_callback("set-aside");
        tracing::error!(channel = channel.name, message = signed.id, problem, "CALLBACK SET ASIDE: it does not fit");
        let text = String::from_utf8_lossy(body);
        self.ledger.set_aside(channel.name, signed.id, problem, &text.replace('\0', "")).await?;
        Ok(CallbackTaken::Misfit(problem))
    }

    /// Takes in what a channel says, by a callback or because it was asked.
    async fn take_in(&self, channel: &Channel, told: &ChannelReport) -> Result<ReportOutcome, PayError> {
        self.open().await?;
        let route = route_of(channel);
        let taken = self.ledger.in_time(self.ledger.take_in(channel.name, told, &route)).await?;
        let about = if told.about.is_refund() { "refund" } else { "payment" };
        let outcome = match &taken {
            ReportOutcome::Applied if told.progress == Progress::Failed => "failed",
            ReportOutcome::Applied => "succeeded",
            ReportOutcome::Refunding => "unwanted",
            ReportOutcome::Known | ReportOutcome::Pending | ReportOutcome::Misfit(_) => return Ok(taken),
        };
        metrics::counter!("seckill_money_total", "about" => about, "outcome" => outcome).increment(1);
        tracing::debug!(key = %told.about.key(), about, outcome, "money");
        self.notifier.outbox_changed();
        self.notifier.orders_changed();
        Ok(taken)
    }
}

fn route_of(channel: &Channel) -> RefundRoute {
    RefundRoute { outflow: channel.outflow() }
}

fn count_callback(result: &'static str) {
    metrics::counter!("seckill_callbacks_total", "result" => result).increment(1);
}
