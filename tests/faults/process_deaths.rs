//! F1, F2, F3, F21: a process of ours dies on the worst line, or is told to go.

use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use chrono::{DateTime, Utc};
use rand::RngExt;
use tokio::time::sleep;

use crate::Terms;
use crate::message_faults::ready;
use crate::run::Run;
use crate::run_summary::Figures;
use crate::rush::Plan;
use crate::service::Role;
use crate::world::{Setup, World};

/// How long a rush may take to reach the place where a process is to die.
pub const TO_DIE: Duration = Duration::from_secs(30);

/// F1: after the reconciliation I1 holds, and the same Idempotency-Key gets the same ticket.
pub async fn before_the_row(terms: Terms) -> anyhow::Result<Figures> {
    let mut world = World::new(&terms, Setup { serve: 1, ..Setup::default() }).await?;
    let passes = world.dice.random_range(20..250);
    world.add(Role::Serve, Some(&format!("purchase.reserved={passes}*off->return"))).await?;
    let mut run = Run::begin(&mut world, Plan::default());
    world.serve[1].aborted(TO_DIE).await?;
    let injected = run.injected();
    let holes = world.watch().holes(injected).await?;
    ensure!(!holes.is_empty(), "no hold was left without its row");
    world.serve[1].restart().await?;
    run.recovered().await?;
    let (mut figures, history) = run.judged(&mut world).await?;
    for hole in &holes {
        let owner: String = sqlx::query_scalar("SELECT user_id FROM orders WHERE id = $1")
            .bind(hole)
            .fetch_optional(&world.sql)
            .await?
            .with_context(|| format!("the hold {hole} came to nothing"))?;
        let told = history.calls.iter().any(|call| call.user == owner && call.order == Some(*hole));
        ensure!(told, "{owner} holds {hole} and never heard of it");
    }
    figures.note = format!("{} holds without a row, all finished, each buyer told of his own", holes.len());
    world.finish().await?;
    Ok(figures)
}

/// F2: delivered again, one effect.
pub async fn before_the_ack(terms: Terms) -> anyhow::Result<Figures> {
    let (mut world, mut run) = worker_dies_at(&terms, "fulfil.after_commit", 3..25).await?;
    let orders = world.count("SELECT count(*) FROM orders WHERE sale_id = $1").await?;
    sleep(Duration::from_millis(world.dice.random_range(0..500))).await;
    let waiting = ready(&world, "order-placed").await?;
    world.work[0].restart().await?;
    run.recovered().await?;
    let (mut figures, _) = run.judged(&mut world).await?;
    figures.note = format!("{orders} orders committed at its death, {waiting} messages in the queue for the next");
    world.finish().await?;
    Ok(figures)
}

/// F3: published twice, one effect.
pub async fn before_the_mark(terms: Terms) -> anyhow::Result<Figures> {
    let (mut world, mut run) = worker_dies_at(&terms, "relay.published", 3..25).await?;
    let marked = world.count("SELECT count(*) FROM outbox WHERE sale_id = $1 AND status <> 'pending'").await?;
    sleep(Duration::from_millis(world.dice.random_range(0..500))).await;
    world.work[0].restart().await?;
    run.recovered().await?;
    let (mut figures, _) = run.judged(&mut world).await?;
    figures.note = format!("{marked} rows were marked as sent at its death, the last batch was not");
    world.finish().await?;
    Ok(figures)
}

/// A rush in which the only worker dies at a place, after so many passes.
async fn worker_dies_at(terms: &Terms, place: &str, passes: std::ops::Range<u32>) -> anyhow::Result<(World, Run)> {
    // Small batches, so that there are enough of them however slow the machine.
    let mut world = World::new(terms, Setup { work: 0, settings: small_batches(), ..Setup::default() }).await?;
    let passes = world.dice.random_range(passes);
    world.add(Role::Work, Some(&format!("{place}={passes}*off->return"))).await?;
    let mut run = Run::begin(&mut world, Plan::default());
    world.work[0].aborted(TO_DIE).await?;
    run.injected();
    Ok((world, run))
}

/// Settings under which a rush passes through the worker in many batches.
pub fn small_batches() -> Vec<(&'static str, String)> {
    vec![("SECKILL_OUTBOX__BATCH_MAX", "50".into()), ("SECKILL_ORDERS__BATCH_MAX", "50".into())]
}

/// F21: drained, no ticket lost, exit code 0; first an instance, then the worker.
pub async fn told_to_go(terms: Terms) -> anyhow::Result<Figures> {
    let mut world = World::new(&terms, Setup::default()).await?;
    let mut run = Run::under_way(&mut world, Plan::default()).await?;
    let injected = run.injected();
    world.serve[0].terminate().await?;
    let status = world.serve[0].ended(Duration::from_secs(20)).await?;
    let served_for = injected.elapsed()?;
    ensure!(status.success(), "serve ended with {status}");
    let gone = SystemTime::now();
    sleep(Duration::from_millis(300)).await;
    // What it had begun it has finished: what the other instance has under way is finished by now, too.
    let left = world.watch().holes(gone).await?;
    ensure!(left.is_empty(), "{} holds were left without a row: {left:?}", left.len());
    world.work[0].terminate().await?;
    let status = world.work[0].ended(Duration::from_secs(20)).await?;
    ensure!(status.success(), "work ended with {status}");
    world.serve[0].restart().await?;
    world.work[0].restart().await?;
    run.recovered().await?;
    let (mut figures, history) = run.judged(&mut world).await?;
    // A request may still meet a connection that is being closed; one that was being worked on has its answer.
    let cut: Vec<_> = history.calls.iter().filter(|call| call.code == "cut" && call.sent < injected).collect();
    for call in &cut {
        let made: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM outbox WHERE kind = 'order_placed' AND user_id = $1 AND created_at BETWEEN $2 AND $3",
        )
        .bind(&call.user)
        .bind(DateTime::<Utc>::from(call.sent))
        .bind(DateTime::<Utc>::from(call.answered + Duration::from_millis(20)))
        .fetch_one(&world.sql)
        .await?;
        ensure!(made == 0, "{} bought, and the answer was cut off", call.user);
    }
    figures.note = format!(
        "exit code 0 after {:.2} s, no purchase without its answer; {} requests cut off unread",
        served_for.as_secs_f64(),
        cut.len()
    );
    world.finish().await?;
    Ok(figures)
}
