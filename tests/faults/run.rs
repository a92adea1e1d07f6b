//! The course of a run: a rush with a few buyers in the neighbours, a fault, rest, an audit, the sale of the last units, the check of the
//! histories.

use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use rand::RngExt;
use tokio::time::sleep;

use crate::history::History;
use crate::run_summary::{RunSummary, Watch};
use crate::rush::{Plan, Rush};
use crate::world::{Sale, World};

/// The time limit for rest. The default settings resend after 30 s, and the sweeper runs every 15 s.
const TO_REST: Duration = Duration::from_secs(90);

/// Each neighbour has a twentieth of the rush's buyers, over the same time. Their names have this prefix.
const NEIGHBOUR_PART: usize = 20;
const NEIGHBOUR_NAMES: [&str; 4] = ["a", "b", "c", "d"];

pub struct Run {
    pub rush: Rush,
    /// The buyers of the neighbours.
    beside: Vec<Rush>,
    fault_injected: Option<SystemTime>,
    watch: Watch,
}

impl Run {
    pub fn begin(world: &mut World, plan: Plan) -> Self {
        let (sale, neighbours) = (world.sale.clone(), world.neighbours.clone());
        let rush = Rush::begin(world, &sale, plan);
        let few = Plan { buyers: plan.buyers / NEIGHBOUR_PART, rate: plan.rate / NEIGHBOUR_PART as f64, ..plan };
        let beside = neighbours.iter().zip(NEIGHBOUR_NAMES);
        let beside = beside.map(|(sale, name)| Rush::begin(world, sale, Plan { name, ..few })).collect();
        Self { rush, beside, fault_injected: None, watch: world.watch() }
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

    pub fn fault_injected(&mut self) -> SystemTime {
        *self.fault_injected.insert(SystemTime::now())
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
        self.watch.complete_after(fault_injected).await?;
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

    /// The end of every run: `checked`, and the end of its system.
    pub async fn finished(self, mut world: World, note: String) -> anyhow::Result<RunSummary> {
        let (summary, _) = self.checked(&mut world).await?;
        world.finish().await?;
        Ok(RunSummary { note, ..summary })
    }

    /// Audits, sells the last units, and checks the histories. Returns all of them in one.
    pub async fn checked(self, world: &mut World) -> anyhow::Result<(RunSummary, History)> {
        let mut histories = self.end().await?;
        world.wait_until_audited(TO_REST).await?;
        sell_last_units(world, &mut histories).await?;
        let mut all = History::default();
        for (sale, history) in world.sales().zip(histories) {
            history.check_against(world, sale).await.with_context(|| format!("sale {}", sale.id))?;
            all.merge(history);
        }
        let (requests, accepted) = (all.calls.len(), all.accepted());
        Ok((RunSummary { requests, accepted, ..RunSummary::default() }, all))
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
