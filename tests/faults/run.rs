//! The course of a run: a rush with a few buyers in the neighbours, a fault, rest, an audit, the sale of the last units, the check of the
//! histories.

use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use rand::RngExt;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::history::History;
use crate::run_summary::{RunSummary, Watch, first_order_after};
use crate::rush::{Plan, Rush};
use crate::world::{Sale, World};

/// The time limit for rest. The default settings resend after 30 s, and the sweeper runs every 15 s.
const TO_REST: Duration = Duration::from_secs(90);

/// Each neighbour has a twentieth of the rush's buyers, over the same time. Their names have this prefix.
const NEIGHBOUR_PART: usize = 20;
const NEIGHBOUR_NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A rush, and the summary of the run so far.
pub struct Run {
    pub rush: Rush,
    /// The buyers of the neighbours.
    beside: Vec<Rush>,
    pub summary: RunSummary,
    fault_injected: Option<SystemTime>,
    watch: Watch,
    /// Ends with the moment when the system was complete again.
    complete: Option<JoinHandle<Option<SystemTime>>>,
}

impl Run {
    pub fn begin(world: &mut World, plan: Plan) -> Self {
        let (sale, neighbours) = (world.sale.clone(), world.neighbours.clone());
        let rush = Rush::begin(world, &sale, plan);
        let few = Plan { buyers: plan.buyers / NEIGHBOUR_PART, rate: plan.rate / NEIGHBOUR_PART as f64, ..plan };
        let beside = neighbours.iter().zip(NEIGHBOUR_NAMES);
        let beside = beside.map(|(sale, name)| Rush::begin(world, sale, Plan { name, ..few })).collect();
        let (summary, watch) = (RunSummary::default(), world.watch());
        Self { rush, beside, summary, fault_injected: None, watch, complete: None }
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

    /// Admits no more buyers to any sale. Admitted buyers continue.
    pub fn admit_no_more(&self) {
        self.beside.iter().chain([&self.rush]).for_each(Rush::admit_no_more);
    }

    /// For each neighbour, the time of the first 202 among the requests sent after `moment`.
    pub fn first_promises_beside_after(&self, moment: SystemTime) -> Vec<Option<SystemTime>> {
        self.beside.iter().map(|rush| rush.first_promise_after(moment)).collect()
    }

    /// After the restart of the killed processes, waits until the system sells and is complete again. Then admits no more buyers.
    pub async fn wait_until_recovered(&mut self) -> anyhow::Result<()> {
        let fault_injected = self.fault_injected.context("no fault was injected")?;
        // The system may have looked complete before the fault took effect, so check again.
        self.watch.clone().complete_after(fault_injected).await.context("never complete again")?;
        for _ in 0..100 {
            if self.rush.first_promise_after(fault_injected).is_some() || self.rush.is_over() {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        sleep(Duration::from_millis(500)).await;
        self.admit_no_more();
        Ok(())
    }

    /// Waits until every buyer has a definite answer. Returns the history of each sale, that of the rush first.
    pub async fn end(self) -> anyhow::Result<Vec<History>> {
        let mut histories = vec![self.rush.end().await?];
        for rush in self.beside {
            histories.push(rush.end().await?);
        }
        Ok(histories)
    }

    /// The end of every run: audits, sells the last units, checks the histories. Returns all of them in one.
    pub async fn checked(mut self, world: &mut World) -> anyhow::Result<(RunSummary, History)> {
        let (mut summary, fault_injected) = (std::mem::take(&mut self.summary), self.fault_injected);
        let complete = self.complete.take();
        let promised = fault_injected.and_then(|fault_injected| self.rush.first_promise_after(fault_injected));
        let mut histories = self.end().await?;
        summary.requests = histories.iter().map(|history| history.calls.len()).sum();
        summary.accepted = histories.iter().map(History::accepted).sum();
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
        sell_last_units(world, &mut histories).await?;
        let mut all = History::default();
        for (sale, history) in world.sales().zip(histories) {
            history.check_against(world, sale).await.with_context(|| format!("sale {}", sale.id))?;
            all.merge(history);
        }
        Ok((summary, all))
    }
}

/// Sells the remaining units of each sale, exactly to the last one, and audits. If units come back, there is no last one.
pub async fn sell_last_units(world: &mut World, histories: &mut [History]) -> anyhow::Result<()> {
    let sales: Vec<Sale> = world.sales().cloned().collect();
    for (sale, history) in sales.iter().zip(histories).filter(|(sale, _)| sale.is_lasting()) {
        let left = usize::try_from(world.left(sale).await?)?;
        let late = Rush::begin(world, sale, Plan { name: "late", buyers: left + 20, rate: 1_000.0 }).end().await?;
        let won = late.promises().len();
        ensure!(won == left, "{won} of the {left} last units of sale {} were sold", sale.id);
        history.merge(late);
    }
    world.wait_until_audited(TO_REST).await?;
    for sale in sales.iter().filter(|sale| sale.is_lasting()) {
        let left = world.left(sale).await?;
        ensure!(left == 0, "{left} units of sale {} were never sold", sale.id);
    }
    Ok(())
}
