//! F5, F6, F24, F36, refill4: Redis loses data, and is refilled from PostgreSQL before it sells again (rules 10 and 11).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use rand::RngExt;
use seckill_domain::admission::Hold;
use seckill_domain::ids::{Epoch, GroupId, OrderId, Shard};
use seckill_harness::folder::Folder;
use seckill_harness::redis_group::RedisGroup;
use seckill_postgres::orders::purchase::{CommitOutcome, Purchase};
use tokio::time::sleep;
use uuid::Uuid;

use crate::Options;
use crate::run::Run;
use crate::run_summary::RunSummary;
use crate::rush::Plan;
use crate::servers::{Server, kill9};
use crate::tcp_forwarder::{TcpForwarder, authority};
use crate::world::{Setup, World, redis_command};

/// F5: the stock is rebuilt from PostgreSQL before the sale reopens.
pub async fn last_writes_lost(options: Options) -> anyhow::Result<RunSummary> {
    let mut world = World::new(&options, Setup::default()).await?;
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    let log = append_only_file(&world).await?;
    let pid = world.servers.pid(Server::Redis).await?;
    // Everything written from here on will be lost.
    let kept = std::fs::metadata(&log)?.len();
    let before = world.epoch().await?;
    sleep(Duration::from_millis(world.rng.random_range(100..800))).await;
    kill9(pid).await?;
    run.fault_injected();
    let written = std::fs::read(&log)?;
    let lost = &written[usize::try_from(kept)?..];
    let tickets = world.key("tickets");
    ensure!(lost.windows(tickets.len()).any(|bytes| bytes == tickets.as_bytes()), "no ticket was lost");
    let lost = lost.len();
    std::fs::OpenOptions::new().write(true).open(&log)?.set_len(kept)?;
    world.servers.start(Server::Redis).await?;
    run.wait_until_recovered().await?;
    ensure!(world.epoch().await? > before, "the epoch is still {before}");
    run.finished(world, format!("{lost} bytes of writes lost")).await
}

/// Redis's append-only file, which is not rewritten from now on.
async fn append_only_file(world: &World) -> anyhow::Result<PathBuf> {
    let _: () = world.redis_command(&["CONFIG", "SET", "auto-aof-rewrite-percentage", "0"]).await?;
    let folder: (String, String) = world.redis_command(&["CONFIG", "GET", "dir"]).await?;
    let files = std::fs::read_dir(Path::new(&folder.1).join("appendonlydir"))?.filter_map(Result::ok);
    let logs = files.filter(|file| file.file_name().to_string_lossy().ends_with(".incr.aof"));
    let newest = logs.max_by_key(|file| file.metadata().and_then(|data| data.modified()).ok());
    Ok(newest.context("there is no append-only file")?.path())
}

/// A replica of the Redis under test, killed when it is dropped.
struct Replica {
    _server: tokio::process::Child,
    client: redis::Client,
    authority: String,
    _folder: Folder,
}

impl Replica {
    /// Starts the replica, and waits until it has the master's data.
    async fn of(master: &str) -> anyhow::Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = Folder::new("replica");
        let server = tokio::process::Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
            .args(["--replicaof", &master.replace(':', " "), "--repl-diskless-sync-delay", "0", "--dir"])
            .arg(folder.path())
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let authority = format!("127.0.0.1:{port}");
        let client = redis::Client::open(format!("redis://{authority}/"))?;
        for _ in 0..500 {
            let info = redis_command::<String>(&client, &["INFO", "replication"]).await.unwrap_or_default();
            if info.contains("master_link_status:up") {
                return Ok(Self { _server: server, client, authority, _folder: folder });
            }
            sleep(Duration::from_millis(20)).await;
        }
        anyhow::bail!("the replica does not follow")
    }
}

/// F6: the epoch rises, and the old one is refused.
pub async fn stale_replica_promoted(options: Options) -> anyhow::Result<RunSummary> {
    let master = authority(options.servers.url("REDIS_URL")).to_owned();
    let forwarder = TcpForwarder::to(&master).await?;
    let settings = vec![("REDIS_URL", format!("redis://{}/", forwarder.address))];
    let mut world = World::new(&options, Setup { settings, ..Setup::default() }).await?;
    let replica = Replica::of(&master).await?;
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    let pid = world.servers.pid(Server::Redis).await?;
    let before = world.epoch().await?;
    let _: () = redis_command(&replica.client, &["REPLICAOF", "NO", "ONE"]).await?;
    sleep(Duration::from_millis(world.rng.random_range(200..900))).await;
    let sold: i64 = world.redis_command(&["HLEN", &world.key("tickets")]).await?;
    kill9(pid).await?;
    run.fault_injected();
    let kept: i64 = redis_command(&replica.client, &["HLEN", &world.key("tickets")]).await?;
    ensure!(sold > kept, "the replica knew all {sold} tickets");
    forwarder.point_at(&replica.authority);
    run.wait_until_recovered().await?;
    ensure!(world.epoch().await? > before, "the epoch is still {before}");
    // A purchase of the old epoch, as from an instance that was stopped during all this.
    let (order, hold) = (OrderId(Uuid::now_v7()), Hold { epoch: Epoch(before), shard: Shard::FIRST });
    let late = Purchase {
        order,
        sale: world.sale_id(),
        user: "sleeper".into(),
        units: 1,
        address: None,
        hold,
        group: GroupId::of_one(order),
        trace: None,
    };
    let verdict = world.stores.ledger.orders.commit_purchases(&[late]).await?;
    ensure!(verdict == [CommitOutcome::StaleEpoch], "a purchase of epoch {before} is {verdict:?}");
    let summary = run.finished(world, format!("at least {} tickets lost", sold - kept)).await?;
    restart_empty_redis(&options).await?;
    Ok(summary)
}

/// Starts the Redis under test again, empty.
async fn restart_empty_redis(options: &Options) -> anyhow::Result<()> {
    options.servers.start(Server::Redis).await?;
    redis_command(&redis::Client::open(options.servers.url("REDIS_URL"))?, &["FLUSHALL"]).await
}

/// F36: sentinels promote the replica of a killed master, and the service follows them.
pub async fn failed_over_by_sentinels(options: Options) -> anyhow::Result<RunSummary> {
    let mut group = RedisGroup::start().await;
    let forwarder = TcpForwarder::to(&group.first_master()).await?;
    let redis = Some(format!("redis://{}/", forwarder.address));
    let settings = vec![("REDIS_URL", group.url())];
    let mut world = World::new(&options, Setup { redis, settings, ..Setup::default() }).await?;
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    let before = world.epoch().await?;
    group.kill_master();
    let killed = run.fault_injected();
    forwarder.point_at(&group.failed_over().await);
    run.wait_until_recovered().await?;
    let again = run.rush.first_promise_after(killed).map(|again| again.duration_since(killed).unwrap_or_default());
    let after = world.epoch().await?;
    ensure!(after == before + 1, "the epoch was {before} and is {after}");
    run.finished(
        world,
        format!("selling {:.2} s after the death of the master", again.unwrap_or_default().as_secs_f64()),
    )
    .await
}

/// The time limit for the refill of all sales.
const TO_FILL: Duration = Duration::from_secs(120);
/// The sales next to the selling one.
const PLANNED: i64 = 1000;

/// F24: the selling sale is back first, and a sale that cannot be refilled delays no other. With an odd seed Redis keeps its data, and with
/// an even one it comes back empty.
pub async fn restarted_with_many_sales(options: Options) -> anyhow::Result<RunSummary> {
    let emptied = options.seed.is_multiple_of(2);
    let mut world = World::new(&options, Setup::default()).await?;
    plan_sales(&world, PLANNED).await?;
    let mut sick = world.sql.begin().await?;
    // A planned one: sales with buyers have the smallest ids.
    let sql = "SELECT sale_id FROM sale_epochs WHERE sale_id > $1 ORDER BY random() LIMIT 1 FOR UPDATE";
    sqlx::query(sql).bind(world.sales().map(|sale| sale.id).max()).fetch_one(&mut *sick).await?;

    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    if emptied {
        let _: () = world.redis_command(&["FLUSHALL"]).await?;
    }
    kill9(world.servers.pid(Server::Redis).await?).await?;
    let killed = run.fault_injected();
    let (started, up) = tokio::join!(world.servers.start(Server::Redis), answers_again(&world));
    started?;
    let up = up?;
    run.wait_until_recovered().await?;
    let sold = run.rush.first_promise_after(up).context("no sale after the restart")?;
    let beside: Option<Vec<SystemTime>> = run.first_promises_beside_after(up).into_iter().collect();
    let beside = beside.context("a sale beside it did not sell again")?.into_iter().max().unwrap_or(sold);
    let last = filled_since(&world, killed, 1).await?;
    sick.rollback().await?;
    filled_since(&world, killed, 0).await?;
    let after = |moment: SystemTime| moment.duration_since(up).unwrap_or_default().as_secs_f64();
    let note = format!(
        "Redis {}: sold again {:.2} s after it answered, four sales beside it within {:.2} s; the last of {PLANNED} planned ones filled \
         after {:.1} s, but the sick one",
        if emptied { "empty" } else { "from its AOF" },
        after(sold),
        after(beside),
        after(last),
    );
    run.finished(world, note).await
}

/// The moment when Redis answers again: `./dev up` checks only from time to time.
async fn answers_again(world: &World) -> anyhow::Result<SystemTime> {
    let asked = async {
        while world.redis_command::<String>(&["PING"]).await.is_err() {
            sleep(Duration::from_millis(5)).await;
        }
        SystemTime::now()
    };
    tokio::time::timeout(TO_FILL, asked).await.context("Redis does not answer")
}

async fn plan_sales(world: &World, number: i64) -> anyhow::Result<()> {
    sqlx::query(
        "WITH planned AS (
           INSERT INTO sales (product_id, price_cents, currency, total_stock, stock, per_user, min_level, starts_at, ends_at,
                              pay_within_ms, purchase_key, waiting_key, refund_returns_stock)
           SELECT product_id, price_cents, currency, 100, 100, per_user, min_level, now() + interval '1 hour',
                  now() + interval '2 hours', pay_within_ms, md5('p' || n), md5('w' || n), refund_returns_stock
           FROM sales, generate_series(1, $2) AS n WHERE id = $1
           RETURNING id)
         INSERT INTO sale_epochs (sale_id) SELECT id FROM planned",
    )
    .bind(world.sale.id)
    .bind(number)
    .execute(&world.sql)
    .await?;
    filled_since(world, SystemTime::UNIX_EPOCH, 0).await.map(drop)
}

/// Waits until all sales but `missing` have been refilled in Redis since this moment. Returns the time of the last one.
async fn filled_since(world: &World, since: SystemTime, missing: i64) -> anyhow::Result<SystemTime> {
    let (begun, since) = (Instant::now(), chrono::DateTime::<chrono::Utc>::from(since));
    loop {
        let (left, last): (i64, Option<chrono::DateTime<chrono::Utc>>) = sqlx::query_as(
            "SELECT count(*) FILTER (WHERE run_id IS NULL OR filled_at < $1), max(filled_at) FROM sale_epochs",
        )
        .bind(since)
        .fetch_one(&world.sql)
        .await?;
        if left == missing {
            return Ok(last.context("no sale was filled")?.into());
        }
        ensure!(begun.elapsed() < TO_FILL, "{left} sales are not filled");
        sleep(Duration::from_millis(50)).await;
    }
}

/// refill4: no 202 ends rejected, and no unit is sold twice.
pub async fn refilled_all_the_time(options: Options) -> anyhow::Result<RunSummary> {
    let mut world = World::new(&options, Setup { serve: 4, ..Setup::default() }).await?;
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    run.fault_injected();
    for _ in 0..25 {
        sqlx::query("UPDATE sale_epochs SET run_id = NULL WHERE sale_id = $1")
            .bind(world.sale.id)
            .execute(&world.sql)
            .await?;
        sqlx::query("SELECT pg_notify('seckill_catalog', '')").execute(&world.sql).await?;
        sleep(Duration::from_millis(world.rng.random_range(20..350))).await;
    }
    run.wait_until_recovered().await?;
    run.finished(world, String::new()).await
}
