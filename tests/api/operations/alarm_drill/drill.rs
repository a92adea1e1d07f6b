//! A system under drill: its Prometheus, and the alerts that have fired and cleared.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;

use seckill_harness::{eventually, until};

use super::programs::Programs;
use super::prometheus::Prometheus;
use super::short_rules;
use seckill_harness::repository::rules;

pub struct Drill {
    prometheus: Prometheus,
    fired: RefCell<BTreeSet<&'static str>>,
    cleared: RefCell<BTreeSet<&'static str>>,
}

impl Drill {
    /// Starts Prometheus for these instances and workers. They may start later: it looks for them every five seconds.
    pub fn start(programs: &Programs, serve: &[SocketAddr], work: &[SocketAddr]) -> Self {
        let prometheus = Prometheus::start(programs.folder.path(), &short_rules::text(), serve, work);
        Self { prometheus, fired: RefCell::default(), cleared: RefCell::default() }
    }

    /// Waits until all targets are watched and no alert fires: an idle service is no alarm.
    pub async fn begin(&self) {
        self.prometheus.is_ready(rules().len()).await;
        self.nothing_fires().await;
    }

    /// Checks that none of the alerts fires, applies the cause, and waits until each has fired.
    pub async fn fires_after<T>(&self, alerts: &[&'static str], cause: impl Future<Output = T>) -> T {
        self.none_fires(alerts).await;
        let caused = cause.await;
        self.each_fires(alerts).await;
        caused
    }

    /// As `fires_after`, with an endless cause. It ends when all have fired.
    pub async fn fires_while(&self, alerts: &[&'static str], cause: impl Future) {
        self.none_fires(alerts).await;
        while_it_goes_on(cause, self.each_fires(alerts)).await;
    }

    /// Takes the cause away, and waits until none of the alerts fires.
    pub async fn clears_after<T>(&self, alerts: &[&'static str], mend: impl Future<Output = T>) -> T {
        let mended = mend.await;
        self.none_fires(alerts).await;
        self.cleared.borrow_mut().extend(alerts.iter().copied());
        mended
    }

    /// The alerts fire after the cause, and clear when it is taken away.
    pub async fn fires_and_clears(&self, alerts: &[&'static str], cause: impl Future, mend: impl Future) {
        self.fires_after(alerts, cause).await;
        self.clears_after(alerts, mend).await;
    }

    /// Waits until no alert fires at all, and checks that each alert which fired has cleared.
    pub async fn finish(self) {
        self.nothing_fires().await;
        assert_eq!(self.fired, self.cleared);
    }

    async fn each_fires(&self, alerts: &[&'static str]) {
        // An alert may clear while others are awaited: some events are short.
        let missing = RefCell::new(alerts.iter().copied().collect::<BTreeSet<_>>());
        eventually(|| async {
            let firing = self.prometheus.firing().await?;
            missing.borrow_mut().retain(|alert| !firing.contains(*alert));
            let missing = missing.borrow();
            missing.is_empty().then_some(()).ok_or_else(|| format!("not firing: {missing:?}"))
        })
        .await;
        self.fired.borrow_mut().extend(alerts.iter().copied());
    }

    async fn none_fires(&self, alerts: &[&'static str]) {
        eventually(|| async {
            let firing = self.prometheus.firing().await?;
            let still: Vec<_> = alerts.iter().filter(|alert| firing.contains(**alert)).collect();
            still.is_empty().then_some(()).ok_or_else(|| format!("still firing: {still:?}"))
        })
        .await;
    }

    async fn nothing_fires(&self) {
        until(Ok(BTreeSet::new()), || self.prometheus.firing()).await;
    }
}

/// Does the work while an endless task runs.
pub async fn while_it_goes_on<T>(endless: impl Future, work: impl Future<Output = T>) -> T {
    tokio::select! {
        _ = endless => panic!("what should go on has ended"),
        done = work => done,
    }
}
