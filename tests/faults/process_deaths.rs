//! F1, F21, F32: a process of the service dies on the worst line, receives SIGTERM, or is one of many that die.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use chrono::{DateTime, Utc};
use rand::RngExt;
use tokio::time::sleep;

use crate::Options;
use crate::run::Run;
use crate::run_summary::RunSummary;
use crate::rush::Plan;
use crate::service::Role;
use crate::world::{Setup, World};

/// The time limit for a rush to reach the place of death, on a busy machine.
pub const TO_DIE: Duration = Duration::from_secs(120);

/// F1: after the reconciler has run, I1 holds, and the same Idempotency-Key gets the same ticket.
pub async fn killed_before_row(options: Options) -> anyhow::Result<RunSummary> {
    // The process may have died in a repeat: then the run is repeated.
    for round in 0..KILLS_MAX {
        let (left, summary) =
            killed_before_row_once(&Options { seed: options.seed + 1_000 * round, ..options.clone() }).await?;
        if left > 0 {
            return Ok(summary);
        }
    }
    anyhow::bail!("no hold was left without its row, {KILLS_MAX} times");
}

/// Also returns the number of holds without a row.
async fn killed_before_row_once(options: &Options) -> anyhow::Result<(usize, RunSummary)> {
    // Before the run has checked the holds, nothing finishes them: neither another instance, by a buyer's repeat, nor the reconciler.
    let settings = vec![("SECKILL_RECONCILE__UNCONFIRMED_AFTER_MS", "15000".into())];
    let mut world = World::new(options, Setup { serve: 0, settings, ..Setup::default() }).await?;
    let passes = world.rng.random_range(20..250);
    world.add(Role::Serve, Some(&format!("purchase.reserved={passes}*off->return"))).await?;
    let mut run = Run::begin(&mut world, Plan::default());
    world.serve[0].aborted(TO_DIE).await?;
    let fault_injected = run.fault_injected();
    let holds_without_row = world.watch().holds_without_row(fault_injected).await?;
    world.serve[0].restart().await?;
    run.wait_until_recovered().await?;
    let (mut summary, history) = run.checked(&mut world).await?;
    for hold in &holds_without_row {
        let owner: String = sqlx::query_scalar("SELECT user_id FROM orders WHERE id = $1")
            .bind(hold)
            .fetch_optional(&world.sql)
            .await?
            .with_context(|| format!("the hold {hold} became no order"))?;
        let told = history.calls.iter().any(|call| call.user == owner && call.order == Some(*hold));
        ensure!(told, "{owner} holds {hold} and received no answer about it");
    }
    let left = holds_without_row.len();
    summary.note = format!("{left} holds without a row, all finished, each buyer has an answer");
    world.finish().await?;
    Ok((left, summary))
}

/// The most kills of a process until it leaves a hold.
const KILLS_MAX: u64 = 5;

/// Settings under which a rush passes through the worker in many batches.
pub fn small_batches() -> Vec<(&'static str, String)> {
    vec![("SECKILL_OUTBOX__BATCH_MAX", "50".into()), ("SECKILL_ORDERS__BATCH_MAX", "50".into())]
}

/// F21: an instance and then the worker finish their work, lose no ticket, and end with exit code 0.
pub async fn terminated_under_load(options: Options) -> anyhow::Result<RunSummary> {
    let mut world = World::new(&options, Setup::default()).await?;
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    let fault_injected = run.fault_injected();
    world.serve[0].terminate().await?;
    let status = world.serve[0].ended(Duration::from_secs(20)).await?;
    ensure!(status.success(), "serve ended with {status}");
    let gone = SystemTime::now();
    sleep(Duration::from_millis(300)).await;
    // The instance has finished its work. The pause lets the other instance finish its requests in flight.
    let left = world.watch().holds_without_row(gone).await?;
    ensure!(left.is_empty(), "{} holds were left without a row: {left:?}", left.len());
    world.work[0].terminate().await?;
    let status = world.work[0].ended(Duration::from_secs(20)).await?;
    ensure!(status.success(), "work ended with {status}");
    world.serve[0].restart().await?;
    world.work[0].restart().await?;
    run.wait_until_recovered().await?;
    let (summary, history) = run.checked(&mut world).await?;
    // A request may meet a closing connection. A request in progress must get its answer.
    for call in history.calls.iter().filter(|call| call.code == "cut" && call.sent < fault_injected) {
        let made: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM purchase_records WHERE user_id = $1 AND created_at BETWEEN $2 AND $3",
        )
        .bind(&call.user)
        .bind(DateTime::<Utc>::from(call.sent))
        .bind(DateTime::<Utc>::from(call.answered + Duration::from_millis(20)))
        .fetch_one(&world.sql)
        .await?;
        ensure!(made == 0, "{} bought, and the answer was cut off", call.user);
    }
    world.finish().await?;
    Ok(summary)
}

/// How long a process is stopped before the kill, so that it has requests and messages in flight.
const STOPPED: Duration = Duration::from_millis(300);

/// F32: the others continue, and answer the unanswered buyers of the dead process. No process is restarted.
pub async fn one_of_many_killed(options: Options) -> anyhow::Result<RunSummary> {
    let mut world = World::new(&options, Setup { serve: 4, work: 2, edge: true, ..Setup::default() }).await?;
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    let victim = world.rng.random_range(0..world.serve.len());
    world.work[0].pause().await?;
    world.serve[victim].pause().await?;
    sleep(STOPPED).await;
    // Measured before the deaths: the unanswered buyers see the cut immediately.
    let killed = run.fault_injected();
    world.serve[victim].kill9().await?;
    world.work[0].kill9().await?;
    run.wait_until_recovered().await?;
    let (mut summary, history) = run.checked(&mut world).await?;
    let cut = history.calls.iter().filter(|call| call.sent < killed && call.answered > killed);
    let unanswered: HashSet<&str> = cut.filter(|call| call.status == 503).map(|call| call.user.as_str()).collect();
    ensure!(!unanswered.is_empty(), "no request was under way in the instance that died");
    for user in &unanswered {
        let repeats = history.calls.iter().filter(|call| call.user == **user && call.sent > killed);
        let told = repeats.filter(|call| matches!(call.status, 202 | 409)).count();
        ensure!(told > 0, "{user} was answered by nobody after the death of an instance");
    }
    summary.note = format!("{} callers were left without an answer, and heard from another instance", unanswered.len());
    world.finish().await?;
    Ok(summary)
}
