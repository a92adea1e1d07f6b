//! The course of a run: a rush, a fault in the middle of it, rest, audit, the last units sold, the history judged.

use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use rand::RngExt;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::history::History;
use crate::run_summary::{Figures, Watch, first_order_after};
use crate::rush::{Plan, Rush};
use crate::world::World;

/// How long the system may take to come to rest: the default settings send again after 30 s, and look every 15 s.
const TO_REST: Duration = Duration::from_secs(90);

/// A rush, and the figures of a run as they come.
pub struct Run {
    pub rush: Rush,
    pub figures: Figures,
    injected: Option<SystemTime>,
    watch: Watch,
    /// Tells when everything was whole again.
    whole: Option<JoinHandle<Option<SystemTime>>>,
}

impl Run {
    pub fn begin(world: &mut World, plan: Plan) -> Self {
        let rush = Rush::begin(world, plan);
        Self { rush, figures: Figures::default(), injected: None, watch: world.watch(), whole: None }
    }

    /// Starts the rush and waits for a random moment in it, not before some have won.
    pub async fn under_way(world: &mut World, plan: Plan) -> anyhow::Result<Self> {
        let run = Self::begin(world, plan);
        while run.rush.accepted() < 20 {
            ensure!(!run.rush.is_over(), "nobody wins");
            sleep(Duration::from_millis(2)).await;
        }
        sleep(Duration::from_millis(world.dice.random_range(100..1_500))).await;
        Ok(run)
    }

    /// The moment before the injection: counts the requests that are on their way.
    pub fn aim(&mut self) {
        self.figures.in_flight = self.rush.in_flight();
    }

    /// The moment of the injection.
    pub fn injected(&mut self) -> SystemTime {
        self.figures.in_flight = self.figures.in_flight.max(self.rush.in_flight());
        let now = SystemTime::now();
        self.whole = Some(tokio::spawn(self.watch.clone().whole_after(now)));
        *self.injected.insert(now)
    }

    /// Waits, after what was killed is back, until the system sells and is whole again; then the doors close.
    pub async fn recovered(&mut self) -> anyhow::Result<()> {
        let injected = self.injected.context("nothing was injected")?;
        // It may have been whole for a moment before the fault was felt: so it has to be now.
        self.watch.clone().whole_after(injected).await.context("never whole again")?;
        for _ in 0..100 {
            if self.rush.first_promise_after(injected).is_some() || self.rush.is_over() {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        sleep(Duration::from_millis(500)).await;
        self.rush.close_doors();
        Ok(())
    }

    /// Everything that is the same at the end of every run.
    pub async fn judged(self, world: &mut World) -> anyhow::Result<(Figures, History)> {
        let Self { rush, mut figures, injected, whole, watch: _ } = self;
        let promised = injected.and_then(|injected| rush.first_promise_after(injected));
        let mut history = rush.end().await?;
        figures.requests = history.calls.len();
        figures.accepted = history.accepted();
        world.audited(TO_REST).await?;
        // Times are told where the rush had units left to show them by.
        if let (Some(injected), Some(promised)) = (injected, promised) {
            let since = |moment: SystemTime| moment.duration_since(injected).unwrap_or_default();
            let whole = match whole {
                Some(whole) => whole.await?,
                None => None,
            };
            figures.undersold = whole.map(|whole| since(whole.max(promised)));
            figures.recovery = first_order_after(world, injected).await?.map(|order| since(order.max(promised)));
        }
        if world.sale.pay_within_s > 60 {
            history.merge(last_units(world).await?);
            world.audited(TO_REST).await?;
            ensure!(world.left().await? == 0, "{} units were never sold", world.left().await?);
        }
        history.hold_against(world).await?;
        Ok((figures, history))
    }
}

/// What is left is sold to the last unit, and not one more.
async fn last_units(world: &mut World) -> anyhow::Result<History> {
    let left = usize::try_from(world.left().await?)?;
    let history = Rush::begin(world, Plan { name: "late", buyers: left + 20, rate: 1_000.0 }).end().await?;
    let won = history.promises().len();
    ensure!(won == left, "{won} of the {left} last units were sold");
    Ok(history)
}
