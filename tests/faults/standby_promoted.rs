//! F33, F34: the primary of PostgreSQL is killed in mid-sale, and its standby is promoted. The service finds it by the list in its address.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use seckill_harness::own_postgres::OwnPostgres;
use serde_json::Value;
use tokio::time::sleep;
use uuid::Uuid;

use crate::Options;
use crate::run::{Run, sell_last_units};
use crate::run_summary::RunSummary;
use crate::rush::Plan;
use crate::world::{Setup, World};

/// The time limit for repairing the sale after the loss was found. Messages with a lost effect are sent again within a minute.
const TO_MEND: Duration = Duration::from_secs(180);
/// The least promises that the standby misses, and their time limit: more than are being confirmed at any moment.
const MISSED: usize = 200;
const TO_MISS: Duration = Duration::from_secs(60);

struct Pair {
    primary: OwnPostgres,
    standby: OwnPostgres,
}

impl Pair {
    async fn start() -> Self {
        let primary = OwnPostgres::start(&[("max_connections", "200")]).await;
        let standby = primary.replica("standby").await;
        Self { primary, standby }
    }

    /// The system of a run on this pair. Its address names the standby first, which is no primary yet.
    async fn world(&self, options: &Options) -> anyhow::Result<World> {
        let (primary, standby) = (self.primary.port(), self.standby.port());
        let all = format!("postgres://seckill@127.0.0.1:{standby},127.0.0.1:{primary}");
        let postgres = Some((all, server(primary)));
        World::new(options, Setup { postgres, ..Setup::default() }).await
    }

    async fn fail_over(&mut self, world: &mut World, run: &mut Run) -> anyhow::Result<()> {
        self.primary.kill();
        run.fault_injected();
        self.standby.promote().await;
        world.look_at_postgres(&server(self.standby.port()))
    }
}

fn server(port: u16) -> String {
    format!("postgres://seckill@127.0.0.1:{port}")
}

/// F33: the standby has each commit before its 202, so nothing is lost, and the sale continues by itself.
pub async fn synchronous(options: Options) -> anyhow::Result<RunSummary> {
    let mut pair = Pair::start().await;
    pair.primary.set("synchronous_standby_names", "standby").await;
    let mut world = pair.world(&options).await?;
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    let killed = SystemTime::now();
    pair.fail_over(&mut world, &mut run).await?;
    run.wait_until_recovered().await?;
    let again = run.rush.first_promise_after(killed).map(|again| again.duration_since(killed).unwrap_or_default());
    run.finished(
        world,
        format!("selling {:.2} s after the death of the primary", again.unwrap_or_default().as_secs_f64()),
    )
    .await
}

/// F34: a standby that has missed the last commits is promoted. Those commits are lost. The auditor names their orders until Redis is
/// refilled.
pub async fn asynchronous(options: Options) -> anyhow::Result<RunSummary> {
    let mut pair = Pair::start().await;
    let mut world = pair.world(&options).await?;
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    // From here on the standby receives nothing.
    pair.standby.set("primary_conninfo", "").await;
    let (begun, before) = (Instant::now(), run.rush.accepted());
    while run.rush.accepted() < before + MISSED {
        ensure!(begun.elapsed() < TO_MISS && !run.rush.is_over(), "no buyer wins");
        sleep(Duration::from_millis(10)).await;
    }
    // The whole site dies, so nothing repairs the faults before the auditor sees them.
    for process in world.serve.iter_mut().chain(&mut world.work) {
        process.kill9().await?;
    }
    run.admit_no_more();
    pair.fail_over(&mut world, &mut run).await?;

    let promised = run.rush.promised();
    let known: Vec<Uuid> = sqlx::query_scalar("SELECT order_id FROM purchase_records").fetch_all(&world.sql).await?;
    let known: HashSet<Uuid> = known.into_iter().collect();
    let lost = promised.difference(&known).count();
    ensure!(lost > 0, "the standby has missed nothing");
    // Unconfirmed holds are not lost: the reconciler commits them again (rule 12).
    let (found, unconfirmed, named) = audited(&world).await?;
    ensure!(found > 0 && found + unconfirmed >= lost, "{lost} lost, found {found}, and {unconfirmed} unconfirmed");
    ensure!(named.is_disjoint(&known.into_iter().collect()), "the auditor named an order that is not lost");

    // The sales are repaired: the reconciler finds the drift, and orders a refill.
    for process in world.serve.iter_mut().chain(&mut world.work) {
        process.restart().await?;
    }
    let begun = Instant::now();
    loop {
        let (code, output) = world.run(&["audit", "--sale", &world.sale.id.to_string()]).await?;
        if code == 0 && output.contains("at rest") && world.run(&["audit"]).await?.0 == 0 {
            break;
        }
        ensure!(begun.elapsed() < TO_MEND, "not mended: {code}, {output}");
    }
    let mended_s = begun.elapsed().as_secs_f64();
    let mut histories = run.end().await?;
    let requests = histories.iter().map(|history| history.calls.len()).sum();
    // Buyers without an answer have repeated meanwhile. Their holds are not lost, and must have their rows.
    world.wait_until_audited(TO_MEND).await?;
    sell_last_units(&mut world, &mut histories).await?;
    let summary = RunSummary {
        requests,
        accepted: promised.len(),
        note: format!("{found} promises lost, and found by the auditor; mended within {mended_s:.1} s"),
    };
    world.finish().await?;
    Ok(summary)
}

/// The number of orders in Redis that PostgreSQL does not know, the number of unconfirmed ones, and the ids that the auditor prints.
async fn audited(world: &World) -> anyhow::Result<(usize, usize, BTreeSet<Uuid>)> {
    let (code, output) = world.run(&["audit", "--sale", &world.sale.id.to_string(), "--json"]).await?;
    ensure!(code == 1, "audit ended with {code}: {output}");
    let verdict: Value = serde_json::from_str(&output)?;
    let findings = verdict["sales"][0]["findings"].as_array().context("no findings")?;
    let gone =
        findings.iter().find(|finding| finding["problem"].as_str().is_some_and(|p| p.starts_with("Redis holds")));
    let evidence = gone.and_then(|gone| gone["evidence"].as_array()).with_context(|| format!("not found: {output}"))?;
    let evidence: Vec<&str> = evidence.iter().filter_map(Value::as_str).collect();
    let named =
        evidence.iter().filter_map(|line| line.strip_prefix("order ")?.split(',').next()?.parse().ok()).collect();
    let more = evidence.iter().find_map(|line| line.strip_prefix("and ")?.strip_suffix(" more")?.parse::<usize>().ok());
    let lines = evidence.len() - usize::from(more.is_some());
    let unconfirmed = verdict["sales"][0]["in_flight"]["unconfirmed_units"].as_u64().context("no figure")?;
    Ok((lines + more.unwrap_or(0), usize::try_from(unconfirmed)?, named))
}
