//! kill9: a random process or server dies at a random moment of a rush, and is started again.

use std::time::Duration;

use rand::RngExt;
use tokio::time::sleep;

use crate::Terms;
use crate::run::Run;
use crate::run_summary::Figures;
use crate::rush::Plan;
use crate::servers::{Server, kill9};
use crate::world::{Setup, World};

pub async fn rounds(terms: Terms) -> anyhow::Result<Figures> {
    let mut sum = Figures::default();
    for round in 1..=terms.rounds {
        // Every round its own seed, so that it can be played alone.
        let seed = terms.seed * 1_000 + round;
        let (figures, victim) = one(&Terms { seed, ..terms.clone() })
            .await
            .map_err(|error| error.context(format!("round {round} of seed {}", terms.seed)))?;
        println!("{}", figures.line("  round", round));
        sum.requests += figures.requests;
        sum.accepted += figures.accepted;
        sum.in_flight += figures.in_flight;
        sum.recovery = sum.recovery.max(figures.recovery);
        sum.undersold = sum.undersold.max(figures.undersold);
        let between = if sum.note.is_empty() { "longest times of killed: " } else { ", " };
        sum.note = format!("{}{between}{victim}", sum.note);
    }
    Ok(sum)
}

async fn one(terms: &Terms) -> anyhow::Result<(Figures, &'static str)> {
    let mut world = World::new(terms, Setup::default()).await?;
    let victim = world.dice.random_range(0..5);
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
    let mut run = Run::under_way(&mut world, Plan::default()).await?;
    let pause = Duration::from_millis(world.dice.random_range(0..1_000));
    let name = match (server, victim) {
        (Some((server, name)), _) => {
            run.aim();
            kill9(pid).await?;
            run.injected();
            sleep(pause).await;
            world.servers.start(server).await?;
            name
        }
        (None, 3) => {
            run.aim();
            world.work[0].kill9().await?;
            run.injected();
            sleep(pause).await;
            world.work[0].restart().await?;
            "work"
        }
        (None, _) => {
            run.aim();
            world.serve[0].kill9().await?;
            run.injected();
            sleep(pause).await;
            world.serve[0].restart().await?;
            "serve"
        }
    };
    run.recovered().await?;
    let (mut figures, _) = run.judged(&mut world).await?;
    figures.note = format!("{name} killed, started again after {:.2} s", pause.as_secs_f64());
    world.finish().await?;
    Ok((figures, name))
}
