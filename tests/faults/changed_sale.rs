//! F40: the sale of a rush is changed again and again, while `serve` and the process that changes it are killed (protocol, rule 19).

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use chrono::{DateTime, SecondsFormat, Utc};
use rand::RngExt;
use tokio::time::sleep;

use crate::Options;
use crate::run::Run;
use crate::run_summary::RunSummary;
use crate::rush::Plan;
use crate::service::Process;
use crate::world::{Setup, World};

const TO_REST: Duration = Duration::from_secs(90);
/// How often a change is tried: sales that are busy, or have sold more meanwhile, refuse it.
const TRIES: usize = 20;

pub async fn changed_in_a_rush(options: Options) -> anyhow::Result<RunSummary> {
    let mut world = World::new(&options, Setup { stock: 1_000, ..Setup::default() }).await?;
    world.sale.is_shut_for_a_time = true;
    set(&mut world, &["--starts-in", "3600", "--ends-in", "3600"], "change.committed").await?;
    // After a death, supervision fills the sale; until then buyers are not told why they must wait.
    world.watch().complete_after(SystemTime::now()).await?;
    // A sale that was open and is moved gets a new key.
    world.sale.key = world.purchase_key(world.sale.id).await?;
    let moved = SystemTime::now();
    let mut run = Run::begin(&mut world, Plan { buyers: 1_200, rate: 40.0, ..Plan::default() });
    sleep(Duration::from_millis(1_500)).await;
    let sold = world.count("SELECT count(*) FROM purchase_records WHERE sale_id = $1").await?;
    ensure!(sold == 0, "{sold} were sold after the sale was moved, {:?} ago", moved.elapsed()?);

    set(&mut world, &["--starts-in", "0", "--ends-in", "3600"], "").await?;
    while run.rush.accepted() < 20 {
        ensure!(!run.rush.is_over(), "no buyer wins");
        sleep(Duration::from_millis(20)).await;
    }
    set(&mut world, &["--stock", "1100"], "change.stopped").await?;
    lower(&mut world).await?;
    set(&mut world, &["--ends-in", "7200"], "").await?;
    let ends = DateTime::<Utc>::from(SystemTime::now() + Duration::from_secs(4));
    set(&mut world, &["--ends-at", &ends.to_rfc3339_opts(SecondsFormat::Millis, true)], "").await?;
    let ended = SystemTime::from(ends);
    sleep(ended.duration_since(SystemTime::now()).unwrap_or_default() + Duration::from_millis(1_500)).await;
    run.fault_injected();
    run.wait_until_recovered().await?;

    let histories = run.end().await?;
    world.wait_until_audited(TO_REST).await?;
    world.sale.stock = world.count("SELECT total_stock FROM sales WHERE id = $1").await?;
    ensure!(world.sale.stock < 1_000, "the stock was not lowered");
    let mut summary = RunSummary::default();
    for (sale, history) in world.sales().zip(&histories) {
        history.check_against(&world, sale).await.with_context(|| format!("sale {}", sale.id))?;
        summary.requests += history.calls.len();
        summary.accepted += history.accepted();
    }
    let history = &histories[0];
    let [early, late] = ["not-started", "ended"].map(|code| history.count_answers(403, code));
    ensure!(early > 0 && late > 0, "{early} came before the start and {late} after the end");
    let mut first_sent = HashMap::new();
    for call in &history.calls {
        let first = first_sent.entry(call.user.as_str()).or_insert(call.sent);
        *first = call.sent.min(*first);
    }
    for user in history.promises().into_values() {
        ensure!(first_sent[user] < ended, "{user} came after the end and bought");
    }
    summary.note = format!("{early} came too early and {late} too late");
    world.finish().await?;
    Ok(summary)
}

/// Lowers the stock to a few units more than are sold at the moment.
async fn lower(world: &mut World) -> anyhow::Result<()> {
    for _ in 0..TRIES {
        let sold = world.count("SELECT count(*) FROM purchase_records WHERE sale_id = $1").await?;
        if set(world, &["--stock", &(sold + 30).to_string()], "change.before_commit").await.is_ok() {
            return Ok(());
        }
    }
    anyhow::bail!("the stock was never lowered")
}

/// Changes the sale. Meanwhile a serving process is killed, and started again. The changing process dies at the failpoint, if one is given;
/// then the change is repeated.
async fn set(world: &mut World, terms: &[&str], failpoint: &str) -> anyhow::Result<()> {
    let id = world.sale.id.to_string();
    let words = [&["sale", "set", &id][..], terms].concat();
    let pauses = [world.rng.random_range(0..600), world.rng.random_range(0..300)].map(Duration::from_millis);
    let mut victim = world.serve.swap_remove(0);
    let changed = async {
        if !failpoint.is_empty() {
            let (code, _) = world.run_to(&words, &format!("{failpoint}=return")).await?;
            ensure!(code.is_none(), "{failpoint} was not passed");
        }
        let mut last = None;
        for _ in 0..TRIES {
            let (code, output) = world.run_to(&words, "").await?;
            if code == Some(0) {
                return Ok(());
            }
            last = Some(output);
        }
        anyhow::bail!("{words:?} was refused: {last:?}")
    };
    let (changed, killed) = tokio::join!(changed, killed(&mut victim, pauses));
    world.serve.push(victim);
    killed?;
    changed
}

async fn killed(victim: &mut Process, [before, after]: [Duration; 2]) -> anyhow::Result<()> {
    sleep(before).await;
    victim.kill9().await?;
    sleep(after).await;
    victim.restart().await
}
