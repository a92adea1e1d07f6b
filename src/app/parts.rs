//! The shared parts of a process, and the loop for its background steps.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use seckill_buying::sale::{Step, Stores};
use seckill_config::Config;
use seckill_domain::pressure::Pressure;
use seckill_postgres::notices::{Listener, Notifier, Topic};
use seckill_rabbitmq::Broker;
use seckill_runtime::worker;

#[derive(Clone, Copy)]
pub(super) struct Rhythm {
    name: &'static str,
    every: Duration,
    topic: Option<Topic>,
    gives_way: bool,
    rests: bool,
}

impl Rhythm {
    /// After this pause if there is nothing to do.
    pub(crate) fn every(every: Duration, name: &'static str) -> Self {
        Self { name, every, topic: None, gives_way: false, rests: false }
    }

    /// Earlier, if this topic is notified.
    pub(crate) fn or_when(self, topic: Topic) -> Self {
        Self { topic: Some(topic), ..self }
    }

    /// Rests before each step while purchases wait, but never stops.
    pub(crate) fn giving_way(self) -> Self {
        Self { gives_way: true, ..self }
    }

    /// Uses at most 5 % of its time: for steps that scan a backlog.
    pub(crate) fn in_proportion(self) -> Self {
        Self { rests: true, ..self }
    }
}

pub(super) struct Parts {
    pub(crate) config: Config,
    pub(crate) stores: Stores,
    pub(crate) notifier: Notifier,
    pub(crate) listener: Listener,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) pressure: Arc<Pressure>,
}

impl Parts {
    pub(crate) async fn assemble(config: Config, with_broker: bool) -> anyhow::Result<Self> {
        config.check_for_service()?;
        let pressure = Arc::new(Pressure::new(Instant::now(), Duration::from_millis(config.purchase.wait_target_ms)));
        let parts = Self {
            stores: super::stores(&config)?,
            config,
            notifier: Notifier::default(),
            listener: Listener::new(Arc::clone(&pressure)),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            pressure,
        };
        parts.stores.ledger.found().await;
        // Before any task is spawned: a task that is connecting when the process gives up would complain on stderr.
        parts.check_servers(with_broker).await?;
        let (ledger, stop) = (&parts.stores.ledger, &parts.stop);
        let (watched, until) = (ledger.clone(), stop.clone());
        parts.tasks.spawn(async move { watched.watch(until).await });
        parts.tasks.spawn(parts.notifier.clone().run(ledger.clone(), stop.clone()));
        parts.tasks.spawn(parts.listener.clone().listen(ledger.clone(), stop.clone()));
        Ok(parts)
    }

    /// Fails if a Redis server could lose its memory, or a server refuses TLS although it should be used. A server that is unreachable now
    /// is checked later.
    async fn check_servers(&self, with_broker: bool) -> anyhow::Result<()> {
        self.stores.gate.check_tls().await?;
        self.stores.ledger.check_tls().await?;
        self.stores.ledger.check_session().await?;
        if with_broker {
            Broker::new(&self.config).check_tls().await?;
        }
        match self.stores.gate.connect_to_runs().await {
            Ok(servers) => Ok(servers.can_sell()?),
            Err(_) => Ok(()),
        }
    }

    /// Repeats a step until the process stops. Continues at once while there is more to do, else as `rhythm` says. Each step gets its own
    /// clone of `of`.
    pub(crate) fn repeat<T, F, E>(&self, rhythm: Rhythm, of: T, step: impl Fn(T) -> F + Send + 'static)
    where
        T: Clone + Send + 'static,
        F: Future<Output = Result<Step, E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let Rhythm { name, every, topic, gives_way, rests } = rhythm;
        let terms = worker::LoopSettings {
            name,
            every,
            wake: topic.map(|topic| self.listener.subscribe(topic)),
            given_up: self.stores.ledger.outages(),
            gives_way: gives_way.then(|| Arc::clone(&self.pressure)),
            rests,
        };
        let step = move || -> worker::StepFuture {
            let step = step(of.clone());
            Box::pin(async move { step.await.map_err(|error| error.to_string()) })
        };
        self.tasks.spawn(worker::repeat(terms, self.stop.clone(), Box::new(step)));
    }

    /// Stops the background tasks. Waits until each has finished its step.
    pub(crate) async fn shut(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.stores.ledger.close().await;
    }
}
