//! Notices of work between processes, by LISTEN and NOTIFY. A lost notice costs time, never work, because every listener also polls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::postgres::PgListener;
use strum::{EnumString, IntoStaticStr, VariantArray};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{Database, Ledger, LedgerError};
use seckill_domain::pressure::{Pressure, Report};
use seckill_runtime::failure_log::FailureLog;

/// The topic of a notice. Its text is the channel's name in PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
pub enum Topic {
    #[strum(serialize = "seckill_outbox")]
    Outbox,
    /// A sale was created or changed, or needs a refill.
    #[strum(serialize = "seckill_catalog")]
    Catalog,
    /// A policy or an application was changed. A trigger notifies.
    #[strum(serialize = "seckill_policies")]
    Policies,
    /// An item was added to an outflow, or an outflow was created, resumed or changed. A trigger notifies.
    #[strum(serialize = "seckill_outflow")]
    Outflow,
    #[strum(serialize = "seckill_orders")]
    Orders,
    /// Purchases wait in a process, or a rush begins there. The notice's text says which.
    #[strum(serialize = "seckill_pressure")]
    Pressure,
}

impl Database {
    pub async fn notify(&self, topic: Topic) -> Result<(), LedgerError> {
        self.send_notice(topic, "").await
    }

    pub async fn report_pressure(&self, report: Report) -> Result<(), LedgerError> {
        self.send_notice(Topic::Pressure, &report.text()).await
    }

    async fn send_notice(&self, topic: Topic, text: &str) -> Result<(), LedgerError> {
        sqlx::query!("SELECT pg_notify($1, $2)", <&str>::from(topic), text).execute(&self.reserved).await?;
        Ok(())
    }
}

/// The pause after a notice. A rush commits hundreds of groups per second, and each notice wakes every process.
const PAUSE: Duration = Duration::from_millis(25);

/// Sends notices from its own task. The first is sent at once. Changes during a send or a pause share the next notice.
#[derive(Clone, Default)]
pub struct Notifier {
    outbox: Arc<Notify>,
    orders: Arc<Notify>,
}

impl Notifier {
    pub fn outbox_changed(&self) {
        self.outbox.notify_one();
    }

    /// To call after the commit. Then buyers who follow these orders, and the webhook, learn the change at once, not by the next poll.
    pub fn orders_changed(&self) {
        self.orders.notify_one();
    }

    pub async fn run(self, ledger: Ledger, stop: CancellationToken) {
        let changed = || async {
            tokio::select! {
                () = self.outbox.notified() => Topic::Outbox,
                () = self.orders.notified() => Topic::Orders,
            }
        };
        let mut failures = FailureLog::default();
        while let Some(topic) = stop.run_until_cancelled(changed()).await {
            failures.note(ledger.in_time(ledger.notify(topic)).await, "changes are found by polling, not by notices");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Wakes subscribed workers of this process, and records the pressure that other processes report.
#[derive(Clone)]
pub struct Listener {
    pressure: Arc<Pressure>,
    /// One per topic, in the order of `Topic`.
    topics: Arc<[watch::Sender<()>]>,
}

impl Listener {
    pub fn new(pressure: Arc<Pressure>) -> Self {
        Self { pressure, topics: Topic::VARIANTS.iter().map(|_| watch::Sender::default()).collect() }
    }

    /// Wakes the topic's subscribers without a notice.
    pub fn wake(&self, topic: Topic) {
        self.topics[topic as usize].send_replace(());
    }

    pub fn subscribe(&self, topic: Topic) -> watch::Receiver<()> {
        self.topics[topic as usize].subscribe()
    }

    /// Listens until cancelled. Reconnects after a failure.
    pub async fn listen(self, ledger: Ledger, stop: CancellationToken) {
        let listen = async {
            loop {
                if let Err(error) = self.listen_once(&ledger).await {
                    tracing::warn!(%error, "not listening for notices; workers poll meanwhile");
                }
                tokio::time::sleep(Duration::from_millis(rand::random_range(500..1500))).await;
            }
        };
        stop.run_until_cancelled(listen).await;
    }

    async fn listen_once(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        let mut outages = ledger.outages();
        let mut listener = PgListener::connect_with(&ledger.pool_of_listener()).await?;
        let gone = || LedgerError::Unreachable(sqlx::Error::PoolTimedOut);
        tokio::select! {
            listens = listener.listen_all(Topic::VARIANTS.iter().map(<&str>::from)) => listens?,
            _ = outages.changed() => return Err(gone()),
        }
        // Notices sent without a listening connection are lost, so every subscriber polls once now.
        Topic::VARIANTS.iter().for_each(|topic| self.wake(*topic));
        loop {
            let notice = tokio::select! {
                notice = listener.recv() => notice?,
                _ = outages.changed() => return Err(gone()),
            };
            match notice.channel().parse() {
                Ok(Topic::Pressure) => {
                    if let Some(report) = Report::parse(notice.payload()) {
                        self.pressure.record_elsewhere(report, Instant::now());
                    }
                }
                Ok(topic) => self.wake(topic),
                Err(_) => {}
            }
        }
    }
}
