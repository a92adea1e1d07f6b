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
        let summary = one_round(&Options { seed, ..options.clone() })
            .await
            .map_err(|error| error.context(format!("round {round} of seed {}", options.seed)))?;
        println!("{}", summary.line("  round", round));
        sum.add(&summary);
    }
    sum.note = "the longest times".to_owned();
    Ok(sum)
}

async fn one_round(options: &Options) -> anyhow::Result<RunSummary> {
    let mut world = World::new(options, Setup::default()).await?;
    let victim = world.rng.random_range(0..5);
    let server = [Server::Redis, Server::Postgres, Server::Broker].get(victim).copied();
    let pid = match server {
        Some(server) => world.servers.pid(server).await?,
        None => 0,
    };
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    let pause = Duration::from_millis(world.rng.random_range(0..1_000));
    let name = if let Some(server) = server {
        kill9(pid).await?;
        run.fault_injected();
        sleep(pause).await;
        world.servers.start(server).await?;
        format!("{server:?}")
    } else {
        let process = if victim == 3 { &mut world.work[0] } else { &mut world.serve[0] };
        process.kill9().await?;
        run.fault_injected();
        sleep(pause).await;
        process.restart().await?;
        format!("{:?}", process.role)
    };
    run.wait_until_recovered().await?;
    run.finished(world, format!("{name} killed, started again after {:.2} s", pause.as_secs_f64())).await
}
