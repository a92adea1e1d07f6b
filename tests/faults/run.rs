//! The course of a run: a rush, a fault during the rush, rest, an audit, the sale of the last units, the check of the history.

use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use rand::RngExt;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::history::History;
use crate::run_summary::{RunSummary, Watch, first_order_after};
use crate::rush::{Plan, Rush};
use crate::world::World;

/// How long the system may take to come to rest. The default settings resend after 30 s, and the sweeper runs every 15 s.
const TO_REST: Duration = Duration::from_secs(90);

/// A rush, and the summary of the run so far.
pub struct Run {
    pub rush: Rush,
    pub summary: RunSummary,
    fault_injected: Option<SystemTime>,
    watch: Watch,
    /// Ends with the moment at which the system was complete again.
    complete: Option<JoinHandle<Option<SystemTime>>>,
}

impl Run {
    pub fn begin(world: &mut World, plan: Plan) -> Self {
        let rush = Rush::begin(world, plan);
        Self { rush, summary: RunSummary::default(), fault_injected: None, watch: world.watch(), complete: None }
    }

    /// Starts the rush and waits for a random moment of it, after the first winners.
    pub async fn begin_and_wait(world: &mut World, plan: Plan) -> anyhow::Result<Self> {
        let run = Self::begin(world, plan);
        while run.rush.accepted() < 20 {
            ensure!(!run.rush.is_over(), "no buyer wins");
            sleep(Duration::from_millis(2)).await;
        }
        sleep(Duration::from_millis(world.rng.random_range(100..1_500))).await;
        Ok(run)
    }

    /// Counts the requests in flight. Call this just before the fault.
    pub fn count_in_flight(&mut self) {
        self.summary.in_flight = self.rush.in_flight();
    }

    /// Records the moment of the fault.
    pub fn fault_injected(&mut self) -> SystemTime {
        self.summary.in_flight = self.summary.in_flight.max(self.rush.in_flight());
        let now = SystemTime::now();
        self.complete = Some(tokio::spawn(self.watch.clone().complete_after(now)));
        *self.fault_injected.insert(now)
    }

    /// Waits, after the restart of what was killed, until the system sells and is complete again; then admits no more buyers.
    pub async fn wait_until_recovered(&mut self) -> anyhow::Result<()> {
        let fault_injected = self.fault_injected.context("no fault was injected")?;
        // The system may have looked complete before the fault took effect, so check once more.
        self.watch.clone().complete_after(fault_injected).await.context("never complete again")?;
        for _ in 0..100 {
            if self.rush.first_promise_after(fault_injected).is_some() || self.rush.is_over() {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        sleep(Duration::from_millis(500)).await;
        self.rush.admit_no_more();
        Ok(())
    }

    /// The end of every run: audits, sells the last units, checks the history.
    pub async fn checked(self, world: &mut World) -> anyhow::Result<(RunSummary, History)> {
        let Self { rush, mut summary, fault_injected, complete, watch: _ } = self;
        let promised = fault_injected.and_then(|fault_injected| rush.first_promise_after(fault_injected));
        let mut history = rush.end().await?;
        summary.requests = history.calls.len();
        summary.accepted = history.accepted();
        world.wait_until_audited(TO_REST).await?;
        // The times are known only if the rush had units left to sell after the fault.
        if let (Some(fault_injected), Some(promised)) = (fault_injected, promised) {
            let since = |moment: SystemTime| moment.duration_since(fault_injected).unwrap_or_default();
            let complete = match complete {
                Some(complete) => complete.await?,
                None => None,
            };
            summary.undersold = complete.map(|complete| since(complete.max(promised)));
            summary.recovery = first_order_after(world, fault_injected).await?.map(|order| since(order.max(promised)));
        }
        if world.sale.pay_within_s > 60 {
            history.merge(last_units(world).await?);
            world.wait_until_audited(TO_REST).await?;
            ensure!(world.left().await? == 0, "{} units were never sold", world.left().await?);
        }
        history.check_against(world).await?;
        Ok((summary, history))
    }
}

/// Sells the remaining units, to the last one and not one more.
pub async fn last_units(world: &mut World) -> anyhow::Result<History> {
    let left = usize::try_from(world.left().await?)?;
    let history = Rush::begin(world, Plan { name: "late", buyers: left + 20, rate: 1_000.0 }).end().await?;
    let won = history.promises().len();
    ensure!(won == left, "{won} of the {left} last units were sold");
    Ok(history)
}
