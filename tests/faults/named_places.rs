//! The process dies at each named place of `seckill_runtime::failpoint` during a rush, and is started again.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rand::RngExt;
use seckill_runtime::failpoint::PLACES;
use tokio::time::sleep;

use crate::Options;
use crate::process_deaths::{TO_DIE, small_batches};
use crate::run::Run;
use crate::run_summary::RunSummary;
use crate::rush::Plan;
use crate::service::{Process, Role};
use crate::world::{Setup, World};

pub async fn all_places(options: Options) -> anyhow::Result<RunSummary> {
    let mut sum = RunSummary::default();
    let (mut held, mut failed) = (0, Vec::new());
    // A purchase does not pass the places of outflows, money, order webhooks, cancellations, removals and changes of sales: tests/outflow,
    // tests/money, F40, and the tests of these names in tests/api cover them.
    let elsewhere = [
        "remove.",
        "change.",
        "cancel.",
        "outflow.",
        "pay.",
        "paid.",
        "status.",
        "money.",
        "refund.",
        "refunded.",
        "webhook.",
    ];
    let passed = |place: &str| !elsewhere.iter().any(|beginning| place.starts_with(beginning));
    let selected = |place: &&str| passed(place) && options.place.as_ref().is_none_or(|only| only == place);
    for (number, place) in PLACES.into_iter().enumerate().filter(|(_, place)| selected(place)) {
        let seed = options.seed * 1_000 + number as u64;
        match at_place(place, &Options { seed, ..options.clone() }).await {
            Ok(summary) => {
                println!("{}", summary.line("  place", seed));
                held += 1;
                sum.add(&summary);
            }
            Err(error) => {
                println!("  place  {seed:>4}  FAILED at {place}: {error:#}");
                failed.push(place);
                options.servers.repair().await;
            }
        }
    }
    ensure!(failed.is_empty(), "at {}", failed.join(", "));
    sum.note = format!("{held} places, the longest times");
    Ok(sum)
}

/// How to bring a process to a place.
struct Approach {
    role: Role,
    /// The most passes of the place before the process dies.
    passes: u32,
    pay_within_s: i64,
    /// More than one if only a purchase with a loan passes the place.
    shards: u8,
    settings: Vec<(&'static str, String)>,
    /// The delay of one of the selling instances.
    delay: Option<&'static str>,
    /// The delay of the process itself.
    slow: &'static str,
    /// A change of the database before the rush.
    sql: &'static str,
    plan: Plan,
}

/// No row can be written for a group of several.
const NO_GROUP_ROWS: &str = "
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      IF NEW.members > 1 THEN RAISE EXCEPTION 'no groups'; END IF; RETURN NEW; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON purchase_groups FOR EACH ROW EXECUTE FUNCTION refuse()";
/// No group can be settled as a whole.
const NO_WHOLE_GROUPS: &str = "
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      IF NEW.group_id <> NEW.id THEN RAISE EXCEPTION 'no whole groups'; END IF; RETURN NEW; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse()";
/// Each order must be made alone.
const NO_COMPANY: &str = "
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      IF (SELECT count(*) FROM made) > 1 THEN RAISE EXCEPTION 'no company'; END IF; RETURN NULL; END $$;
    CREATE TRIGGER refuse AFTER INSERT ON orders REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION refuse()";

impl Approach {
    fn to(place: &str) -> Self {
        let approach = |role, passes| Self {
            role,
            passes,
            pay_within_s: 900,
            shards: 1,
            settings: Vec::new(),
            delay: None,
            slow: "",
            sql: "",
            plan: Plan::default(),
        };
        // All come at once, so that calls to Redis carry several purchases.
        let crowd = Plan { rate: 20_000.0, ..Plan::default() };
        let hurried = |approach| Self {
            // Every hold, and every open loan, is old enough for the reconciler.
            settings: vec![
                ("SECKILL_RECONCILE__UNCONFIRMED_AFTER_MS", "1".into()),
                ("SECKILL_RECONCILE__INTERVAL_MS", "10".into()),
            ],
            ..approach
        };
        match place.split('.').next().unwrap_or_default() {
            // Some shards sell, and others do not yet.
            "refill" if place == "refill.shard_opened" => Self { shards: 8, ..approach(Role::Serve, 6) },
            "loan" => Self { shards: 8, ..approach(Role::Serve, 10) },
            "release" if place == "release.at_lender" => Self { shards: 8, pay_within_s: 1, ..approach(Role::Work, 1) },
            // Loans stay open long enough to be checked, one after the other.
            "reconcile" if place == "reconcile.barred" => {
                let delay = Some("loan.written=10*sleep(500)");
                hurried(Self { shards: 8, delay, ..approach(Role::Work, 2) })
            }
            "purchase" => approach(Role::Serve, 150),
            "commit" if place == "commit.fallback" => {
                Self { sql: NO_GROUP_ROWS, plan: crowd, ..approach(Role::Serve, 10) }
            }
            "commit" | "confirm" => approach(Role::Serve, 40),
            // Two other workers share the messages, and the orders of a group need only one. The broker's delay exceeds the time-out of row
            // locks.
            "relay" if place == "relay.leased" => {
                Self { settings: small_batches(), slow: "relay.sending=sleep(700);", ..approach(Role::Work, 1) }
            }
            "relay" => Self { settings: small_batches(), ..approach(Role::Work, 3) },
            "fulfil" => Self { settings: small_batches(), sql: NO_COMPANY, ..approach(Role::Work, 20) },
            "group" => {
                let sql = if place.starts_with("group.split") { NO_WHOLE_GROUPS } else { "" };
                Self { settings: small_batches(), sql, plan: crowd, ..approach(Role::Work, 3) }
            }
            // The message spends 20 s on the ladder, comes five seconds early, and goes round again.
            "expire" if place == "expire.round_again" => {
                Self { pay_within_s: 25, plan: crowd, ..approach(Role::Work, 0) }
            }
            // Orders must end during the rush.
            "expire" | "release" => Self { pay_within_s: 1, ..approach(Role::Work, 3) },
            "reconcile" => hurried(approach(Role::Work, 2)),
            _ => approach(Role::Serve, 1),
        }
    }
}

async fn at_place(place: &str, options: &Options) -> anyhow::Result<RunSummary> {
    let approach = Approach::to(place);
    let (serve, work) = if approach.role == Role::Serve { (1, 1) } else { (2, 0) };
    let (settings, plan) = (approach.settings.clone(), approach.plan);
    let Approach { pay_within_s, shards, slow, .. } = approach;
    let setup = Setup { serve, work, settings, pay_within_s, shards, ..Setup::default() };
    let mut world = World::new(options, setup).await?;
    if !approach.sql.is_empty() {
        sqlx::raw_sql(approach.sql).execute(&world.sql).await?;
    }
    if approach.delay.is_some() {
        world.add(Role::Serve, approach.delay).await?;
    }
    let passes = world.rng.random_range(0..=approach.passes);
    world.add(approach.role, Some(&format!("{slow}{place}={passes}*off->return"))).await?;
    let victim = if approach.role == Role::Serve { 1 } else { 0 };
    let refills = place.starts_with("refill.");
    let mut run = if refills { Run::begin_and_wait(&mut world, plan).await? } else { Run::begin(&mut world, plan) };
    if refills {
        make_redis_forget(&mut world, victim).await?;
    } else {
        victim_of(&mut world, approach.role, victim).aborted(TO_DIE).await.context("the place was not passed")?;
    }
    run.fault_injected();
    sleep(Duration::from_millis(world.rng.random_range(0..400))).await;
    victim_of(&mut world, approach.role, victim).restart().await?;
    run.wait_until_recovered().await?;
    run.finished(world, format!("{place}, after {passes} passes")).await
}

fn victim_of(world: &mut World, role: Role, victim: usize) -> &mut Process {
    if role == Role::Serve { &mut world.serve[victim] } else { &mut world.work[victim] }
}

/// Forces refills until the victim is the instance that refills.
async fn make_redis_forget(world: &mut World, victim: usize) -> anyhow::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < TO_DIE {
        sqlx::query("UPDATE sale_epochs SET run_id = NULL").execute(&world.sql).await?;
        sqlx::query("SELECT pg_notify('seckill_catalog', '')").execute(&world.sql).await?;
        if world.serve[victim].aborted(Duration::from_millis(100)).await.is_ok() {
            return Ok(());
        }
    }
    anyhow::bail!("the place was not passed")
}
