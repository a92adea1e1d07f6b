//! Notices between processes that there is work to do, by LISTEN and NOTIFY. A lost notice costs time, never work: every
//! listener also polls.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{Ledger, LedgerError};

/// What a notice is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// Rows were added to the outbox.
    Outbox,
    /// A sale was created or changed, or is to be refilled.
    Catalog,
    /// A policy or an application was changed. A trigger notifies (migration 0007).
    Policies,
    /// An item was put into an outflow, or an outflow was created, resumed or changed. A trigger notifies (migration 0008).
    Outflow,
    /// Orders have changed their status.
    Orders,
}

impl Topic {
    const ALL: [Self; 5] = [Self::Outbox, Self::Catalog, Self::Policies, Self::Outflow, Self::Orders];

    const fn channel(self) -> &'static str {
        match self {
            Self::Outbox => "seckill_outbox",
            Self::Catalog => "seckill_catalog",
            Self::Policies => "seckill_policies",
            Self::Outflow => "seckill_outflow",
            Self::Orders => "seckill_orders",
        }
    }
}

impl Ledger {
    /// Notifies every listener.
    pub async fn notify(&self, topic: Topic) -> Result<(), LedgerError> {
        sqlx::query!("SELECT pg_notify($1, '')", topic.channel()).execute(&self.pool).await?;
        Ok(())
    }
}

/// Sends notices from a task of its own, so that no caller waits for PostgreSQL. Changes that come while a notice is
/// being sent share the next one.
#[derive(Clone, Default)]
pub struct Notifier {
    outbox: Arc<Notify>,
    orders: Arc<Notify>,
}

impl Notifier {
    /// Notifies that rows were added to the outbox.
    pub fn outbox_changed(&self) {
        self.outbox.notify_one();
    }

    /// Notifies that orders have changed their status. To be called after the commit: buyers who follow these orders, and
    /// the webhook's receiver, learn it at once and not by the next poll.
    pub fn orders_changed(&self) {
        self.orders.notify_one();
    }

    /// Sends notices to PostgreSQL until cancelled.
    pub async fn run(self, ledger: Ledger, stop: CancellationToken) {
        let changed = || async {
            tokio::select! {
                () = self.outbox.notified() => Topic::Outbox,
                () = self.orders.notified() => Topic::Orders,
            }
        };
        while let Some(topic) = stop.run_until_cancelled(changed()).await {
            if let Err(error) = ledger.notify(topic).await {
                tracing::debug!(%error, "notice not sent; listeners poll");
            }
        }
    }
}

/// Wakes the workers of this process that have subscribed to a topic. A worker that is busy at the notice finds it
/// afterwards.
#[derive(Clone, Default)]
pub struct Listener {
    outbox: watch::Sender<()>,
    catalog: watch::Sender<()>,
    policies: watch::Sender<()>,
    outflow: watch::Sender<()>,
    orders: watch::Sender<()>,
}

impl Listener {
    fn sender(&self, topic: Topic) -> &watch::Sender<()> {
        match topic {
            Topic::Outbox => &self.outbox,
            Topic::Catalog => &self.catalog,
            Topic::Policies => &self.policies,
            Topic::Outflow => &self.outflow,
            Topic::Orders => &self.orders,
        }
    }

    /// Wakes the topic's subscribers without a notice.
    pub fn wake(&self, topic: Topic) {
        self.sender(topic).send_replace(());
    }

    pub fn subscribe(&self, topic: Topic) -> watch::Receiver<()> {
        self.sender(topic).subscribe()
    }

    /// Listens until cancelled. Reconnects after a failure.
    pub async fn listen(self, ledger: Ledger, stop: CancellationToken) {
        let listen = async {
            loop {
                if let Err(error) = self.listen_once(&ledger).await {
                    tracing::warn!(%error, "not listening for notices; workers poll until then");
                }
                tokio::time::sleep(Duration::from_millis(rand::random_range(500..1500))).await;
            }
        };
        stop.run_until_cancelled(listen).await;
    }

    async fn listen_once(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        let mut listener = PgListener::connect_with(&ledger.pool).await?;
        // A closing pool waits for its connections, and this one is never returned.
        listener.ignore_pool_close_event(true);
        listener.listen_all(Topic::ALL.map(Topic::channel)).await?;
        // Notices that were sent while no connection listened are lost: every subscriber polls once now.
        Topic::ALL.into_iter().for_each(|topic| self.wake(topic));
        loop {
            let notice = listener.recv().await?;
            if let Some(topic) = Topic::ALL.into_iter().find(|t| t.channel() == notice.channel()) {
                self.wake(topic);
            }
        }
    }
}
