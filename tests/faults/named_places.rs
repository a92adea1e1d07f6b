//! Every place with a name in `seckill::failpoint`: the process dies exactly there in mid-rush, and is started again.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rand::RngExt;
use seckill::failpoint::PLACES;
use tokio::time::sleep;

use crate::Terms;
use crate::process_deaths::TO_DIE;
use crate::process_deaths::small_batches;
use crate::run::Run;
use crate::run_summary::Figures;
use crate::rush::Plan;
use crate::service::{Process, Role};
use crate::world::{Setup, World};

pub async fn everywhere(terms: Terms) -> anyhow::Result<Figures> {
    let mut sum = Figures::default();
    let (mut held, mut failed) = (0, Vec::new());
    // No purchase passes an outflow's places, money's or the shop's: tests/outflow, tests/money and
    // tests/api/webhooks.rs die at them.
    let elsewhere = ["outflow.", "pay.", "ask.", "money.", "refund.", "refunded.", "shop."];
    let passed = |place: &str| !elsewhere.iter().any(|beginning| place.starts_with(beginning));
    let wanted = |place: &&str| passed(place) && terms.place.as_ref().is_none_or(|only| only == place);
    for (number, place) in PLACES.into_iter().enumerate().filter(|(_, place)| wanted(place)) {
        let seed = terms.seed * 1_000 + number as u64;
        match at(place, &Terms { seed, ..terms.clone() }).await {
            Ok(figures) => {
                println!("{}", figures.line("  place", seed));
                held += 1;
                sum.requests += figures.requests;
                sum.accepted += figures.accepted;
                sum.in_flight += figures.in_flight;
                sum.recovery = sum.recovery.max(figures.recovery);
                sum.undersold = sum.undersold.max(figures.undersold);
            }
            Err(error) => {
                println!("  place  {seed:>4}  FAILED at {place}: {error:#}");
                failed.push(place);
                terms.servers.mend().await;
            }
        }
    }
    ensure!(failed.is_empty(), "at {}", failed.join(", "));
    sum.note = format!("{held} places, the longest times");
    Ok(sum)
}

/// What it takes to bring a process to a place.
struct Way {
    role: Role,
    /// Passes before the one that kills, at most.
    passes: u32,
    pay_within_s: i64,
    settings: Vec<(&'static str, String)>,
}

impl Way {
    fn to(place: &str) -> Self {
        let way = |role, passes| Self { role, passes, pay_within_s: 900, settings: Vec::new() };
        match place.split('.').next().unwrap_or_default() {
            "purchase" => way(Role::Serve, 150),
            "commit" | "confirm" => way(Role::Serve, 40),
            "relay" | "fulfil" => Self { settings: small_batches(), ..way(Role::Work, 20) },
            // Orders have to end in mid-rush.
            "expire" | "release" => Self { pay_within_s: 1, ..way(Role::Work, 3) },
            // Every hold that the reconciler meets is old enough.
            "reconcile" => Self {
                settings: vec![
                    ("SECKILL_RECONCILE__UNCONFIRMED_AFTER_MS", "1".into()),
                    ("SECKILL_RECONCILE__INTERVAL_MS", "10".into()),
                ],
                ..way(Role::Work, 2)
            },
            "refill" => way(Role::Serve, 1),
            _ => way(Role::Serve, 0), // the guard lets a server sell once
        }
    }
}

async fn at(place: &str, terms: &Terms) -> anyhow::Result<Figures> {
    let way = Way::to(place);
    let (serve, work) = if way.role == Role::Serve { (1, 1) } else { (2, 0) };
    let settings = way.settings.clone();
    let mut world =
        World::new(terms, Setup { serve, work, settings, pay_within_s: way.pay_within_s, ..Setup::default() }).await?;
    let passes = world.dice.random_range(0..=way.passes);
    world.add(way.role, Some(&format!("{place}={passes}*off->return"))).await?;
    let victim = if way.role == Role::Serve { 1 } else { 0 };
    let refills = place.starts_with("refill.") || place.starts_with("guard.");
    let mut run = if refills {
        Run::under_way(&mut world, Plan::default()).await?
    } else {
        Run::begin(&mut world, Plan::default())
    };
    if refills {
        forgetful(&mut world, place, victim).await?;
    } else {
        one_of(&mut world, way.role, victim).aborted(TO_DIE).await.context("the place was not passed")?;
    }
    run.injected();
    sleep(Duration::from_millis(world.dice.random_range(0..400))).await;
    one_of(&mut world, way.role, victim).restart().await?;
    run.recovered().await?;
    let (mut figures, _) = run.judged(&mut world).await?;
    figures.note = format!("{place}, after {passes} passes");
    world.finish().await?;
    Ok(figures)
}

fn one_of(world: &mut World, role: Role, victim: usize) -> &mut Process {
    if role == Role::Serve { &mut world.serve[victim] } else { &mut world.work[victim] }
}

/// Lets Redis be doubted, or forget its scripts, again and again until it is the victim who looks after it.
async fn forgetful(world: &mut World, place: &str, victim: usize) -> anyhow::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < TO_DIE {
        if place.starts_with("guard.") {
            let _: () = world.ask(&["SCRIPT", "FLUSH"]).await?;
        } else {
            sqlx::query("UPDATE sale_epochs SET run_id = NULL").execute(&world.sql).await?;
            sqlx::query("SELECT pg_notify('seckill_catalog', '')").execute(&world.sql).await?;
        }
        if world.serve[victim].aborted(Duration::from_millis(100)).await.is_ok() {
            return Ok(());
        }
    }
    anyhow::bail!("the place was not passed")
}
