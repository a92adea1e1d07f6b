//! Telling other processes that there is something to do, by LISTEN and NOTIFY. A lost notice costs time, never work:
//! whoever listens also looks every now and then.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{Ledger, LedgerError};

/// What a notice is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// Rows were put in the outbox.
    Outbox,
    /// A sale was created or changed, or its Redis is to be filled.
    Catalog,
    /// A policy or an application was changed. PostgreSQL says it by itself (0007).
    Policies,
    /// Something was put into an outflow, or one was made, resumed or changed. PostgreSQL says it by itself (0008).
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
    /// Tells everyone who listens.
    pub async fn notify(&self, topic: Topic) -> Result<(), LedgerError> {
        sqlx::query!("SELECT pg_notify($1, '')", topic.channel()).execute(&self.pool).await?;
        Ok(())
    }
}

/// Rings the bells of the outbox and of orders from its own task, so that nobody waits for it; many rings while one is
/// under way are one ring.
#[derive(Clone, Default)]
pub struct Notifier {
    outbox: Arc<Notify>,
    orders: Arc<Notify>,
}

impl Notifier {
    /// Rows were put in the outbox.
    pub fn outbox_changed(&self) {
        self.outbox.notify_one();
    }

    /// Orders have changed their status. To be called after the commit: buyers who follow them, and the shop, hear of
    /// it at once, and not by the next poll.
    pub fn orders_changed(&self) {
        self.orders.notify_one();
    }

    /// Carries rings to PostgreSQL until cancelled.
    pub async fn carry(self, ledger: Ledger, stop: CancellationToken) {
        let pressed = || async {
            tokio::select! {
                () = self.outbox.notified() => Topic::Outbox,
                () = self.orders.notified() => Topic::Orders,
            }
        };
        while let Some(topic) = stop.run_until_cancelled(pressed()).await {
            if let Err(error) = ledger.notify(topic).await {
                tracing::debug!(%error, "doorbell not heard; the poll will do");
            }
        }
    }
}

/// Wakes those of this process who wait for a topic. A receiver that was busy at the notice finds it afterwards.
#[derive(Clone, Default)]
pub struct Listener {
    outbox: watch::Sender<()>,
    catalog: watch::Sender<()>,
    policies: watch::Sender<()>,
    outflow: watch::Sender<()>,
    orders: watch::Sender<()>,
}

impl Listener {
    fn of(&self, topic: Topic) -> &watch::Sender<()> {
        match topic {
            Topic::Outbox => &self.outbox,
            Topic::Catalog => &self.catalog,
            Topic::Policies => &self.policies,
            Topic::Outflow => &self.outflow,
            Topic::Orders => &self.orders,
        }
    }

    /// Wakes them without a notice.
    pub fn wake(&self, topic: Topic) {
        self.of(topic).send_replace(());
    }

    pub fn subscribe(&self, topic: Topic) -> watch::Receiver<()> {
        self.of(topic).subscribe()
    }

    /// Listens until cancelled; connects again by itself.
    pub async fn listen(self, ledger: Ledger, stop: CancellationToken) {
        let listen = async {
            loop {
                if let Err(error) = self.listen_once(&ledger).await {
                    tracing::warn!(%error, "not listening for notices; polls will do until then");
                }
                tokio::time::sleep(Duration::from_millis(rand::random_range(500..1500))).await;
            }
        };
        stop.run_until_cancelled(listen).await;
    }

    async fn listen_once(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        let mut listener = PgListener::connect_with(&ledger.pool).await?;
        // The pool belongs to others: a closing pool must not wait for a listener that never returns.
        listener.ignore_pool_close_event(true);
        listener.listen_all(Topic::ALL.map(Topic::channel)).await?;
        // Whatever was said while nobody listened: look once now.
        Topic::ALL.into_iter().for_each(|topic| self.wake(topic));
        loop {
            let notice = listener.recv().await?;
            if let Some(topic) = Topic::ALL.into_iter().find(|t| t.channel() == notice.channel()) {
                self.wake(topic);
            }
        }
    }
}
