//! What all parts of a process share, and how a process repeats its background steps.

use std::fmt::Display;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::ledger::notices::{Listener, Notifier, Topic};
use crate::sale::{Step, Stores};
use crate::worker;

/// The connections, notices and tasks of a process.
pub(super) struct Parts {
    pub config: Config,
    pub stores: Stores,
    pub notifier: Notifier,
    pub listener: Listener,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
}

impl Parts {
    /// Starts sending and receiving notices.
    pub fn assemble(config: Config) -> anyhow::Result<Self> {
        let parts = Self {
            stores: super::stores(&config)?,
            config,
            notifier: Notifier::default(),
            listener: Listener::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let (ledger, stop) = (&parts.stores.ledger, &parts.stop);
        parts.tasks.spawn(ledger.clone().watch(stop.clone()));
        parts.tasks.spawn(parts.notifier.clone().run(ledger.clone(), stop.clone()));
        parts.tasks.spawn(parts.listener.clone().listen(ledger.clone(), stop.clone()));
        Ok(parts)
    }

    /// Repeats a step until the process stops: at once while there is more to do, else after `every`, or earlier when
    /// `topic` is notified. Each step gets its own clone of `of`.
    pub fn repeat<T, F, E>(
        &self,
        name: &'static str,
        every: Duration,
        topic: Option<Topic>,
        of: T,
        step: impl Fn(T) -> F + Send + 'static,
    ) where
        T: Clone + Send + 'static,
        F: Future<Output = Result<Step, E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let wake = topic.map(|topic| self.listener.subscribe(topic));
        let given_up = self.stores.ledger.outages();
        self.tasks.spawn(worker::repeat(name, every, wake, given_up, self.stop.clone(), move || step(of.clone())));
    }

    /// Stops the background tasks, and waits until each has finished its step.
    pub async fn shut(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.stores.ledger.close().await;
    }
}
