//! kill9: kills a random process or server at a random moment of a rush, and starts it again.

use std::time::Duration;

use rand::RngExt;
use tokio::time::sleep;

use crate::Options;
use crate::run::Run;
use crate::run_summary::RunSummary;
use crate::rush::Plan;
use crate::servers::{Server, kill9};
use crate::world::{Setup, World};

pub async fn rounds(options: Options) -> anyhow::Result<RunSummary> {
    let mut sum = RunSummary::default();
    for round in 1..=options.rounds {
        // Every round has its own seed, so that it can run alone.
        let seed = options.seed * 1_000 + round;
        let (summary, victim) = one_round(&Options { seed, ..options.clone() })
            .await
            .map_err(|error| error.context(format!("round {round} of seed {}", options.seed)))?;
        println!("{}", summary.line("  round", round));
        sum.requests += summary.requests;
        sum.accepted += summary.accepted;
        sum.in_flight += summary.in_flight;
        sum.recovery = sum.recovery.max(summary.recovery);
        sum.undersold = sum.undersold.max(summary.undersold);
        let between = if sum.note.is_empty() { "longest times of killed: " } else { ", " };
        sum.note = format!("{}{between}{victim}", sum.note);
    }
    Ok(sum)
}

async fn one_round(options: &Options) -> anyhow::Result<(RunSummary, &'static str)> {
    let mut world = World::new(options, Setup::default()).await?;
    let victim = world.rng.random_range(0..5);
    let server = match victim {
        0 => Some((Server::Redis, "Redis")),
        1 => Some((Server::Postgres, "PostgreSQL")),
        2 => Some((Server::Broker, "RabbitMQ")),
        _ => None,
    };
    let pid = match server {
        Some((server, _)) => world.servers.pid(server).await?,
        None => 0,
    };
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    let pause = Duration::from_millis(world.rng.random_range(0..1_000));
    let name = match (server, victim) {
        (Some((server, name)), _) => {
            run.count_in_flight();
            kill9(pid).await?;
            run.fault_injected();
            sleep(pause).await;
            world.servers.start(server).await?;
            name
        }
        (None, 3) => {
            run.count_in_flight();
            world.work[0].kill9().await?;
            run.fault_injected();
            sleep(pause).await;
            world.work[0].restart().await?;
            "work"
        }
        (None, _) => {
            run.count_in_flight();
            world.serve[0].kill9().await?;
            run.fault_injected();
            sleep(pause).await;
            world.serve[0].restart().await?;
            "serve"
        }
    };
    run.wait_until_recovered().await?;
    let (mut summary, _) = run.checked(&mut world).await?;
    summary.note = format!("{name} killed, started again after {:.2} s", pause.as_secs_f64());
    world.finish().await?;
    Ok((summary, name))
}
