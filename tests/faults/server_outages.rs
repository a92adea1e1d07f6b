//! F8, F15, F35: a server is stopped or killed, or is full.

use std::time::{Duration, Instant, SystemTime};

use anyhow::ensure;
use rand::RngExt;
use seckill_harness::folder::Folder;
use seckill_harness::own_rabbitmq::OwnRabbitmq;
use tokio::time::sleep;

use crate::Options;
use crate::run::Run;
use crate::run_summary::RunSummary;
use crate::rush::Plan;
use crate::servers::Server;
use crate::world::{Setup, World};

const TO_DRAIN: Duration = Duration::from_secs(60);
/// The growth of the outbox in rows while nothing can be published, and its time limit.
const GROWTH: i64 = 100;
const TO_GROW: Duration = Duration::from_secs(20);

/// F35: the other two nodes have all confirmed messages. Workers find them by the list in their address.
pub async fn broker_node_killed(options: Options) -> anyhow::Result<RunSummary> {
    let folder = Folder::new("cluster");
    let mut cluster = OwnRabbitmq::cluster(folder.path(), 3).await;
    let nodes: Vec<String> = cluster.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    let settings = vec![("AMQP_URL", format!("amqp://guest:guest@{}/%2f", nodes.join(",")))];
    let mut world = World::new(&options, Setup { settings, ..Setup::default() }).await?;
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    // All are connected to the first node, and have declared the queues there, so that it leads them.
    cluster[0].kill();
    run.fault_injected();
    run.wait_until_recovered().await?;
    world.wait_until_drained_of(SystemTime::now(), TO_DRAIN).await?;
    run.finished(world, String::new()).await
}

/// F8: the Idempotency-Key resolves commits of unknown outcome.
pub async fn postgres_restarted(options: Options) -> anyhow::Result<RunSummary> {
    let mut world = World::new(&options, Setup::default()).await?;
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    run.fault_injected();
    let mut ended = 0;
    for _ in 0..10 {
        let backends: i64 = sqlx::query_scalar(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .fetch_one(&world.sql)
        .await?;
        ended += backends;
        sleep(Duration::from_millis(world.rng.random_range(10..150))).await;
    }
    sleep(Duration::from_millis(world.rng.random_range(200..1_000))).await;
    world.servers.stop(Server::Postgres).await?;
    sleep(Duration::from_millis(world.rng.random_range(0..1_500))).await;
    world.servers.start(Server::Postgres).await?;
    run.wait_until_recovered().await?;
    let (summary, history) = run.checked(&mut world).await?;
    let unsure = history.count_answers(503, "temporarily-unavailable");
    ensure!(ended > 0 && unsure > 0, "{ended} backends ended, and {unsure} buyers noticed");
    world.finish().await?;
    Ok(summary)
}

/// F15, in two halves of one rush: refusals are clean, and unpublished rows stay in the outbox.
pub async fn no_room(options: Options) -> anyhow::Result<RunSummary> {
    let mut world = World::new(&options, Setup { stock: 10_000, ..Setup::default() }).await?;
    let mut run = Run::begin_and_wait(&mut world, Plan { buyers: 11_000, rate: 200.0, ..Plan::default() }).await?;
    let (kind, alarm, calm): (_, &[&str], &[&str]) = if options.seed % 2 == 1 {
        ("disk", &["set_disk_free_limit", "1000000GB"], &["set_disk_free_limit", "200MB"])
    } else {
        let memory = "set_vm_memory_high_watermark";
        ("memory", &[memory, "0"], &[memory, "absolute", "1GB"])
    };
    // Redis first: `rabbitmqctl` takes seconds, many on a busy machine, and both halves need units to sell.
    let _: () = world.redis_command(&["CONFIG", "SET", "maxmemory", "1"]).await?;
    let full = run.fault_injected();
    sleep(Duration::from_millis(1_500)).await;
    let sold_when_full = run.rush.first_promise_after(full).is_some();
    let _: () = world.redis_command(&["CONFIG", "SET", "maxmemory", "1gb"]).await?;
    let room = SystemTime::now();
    ensure!(!sold_when_full, "something was sold by a full Redis");
    while run.rush.first_promise_after(room).is_none() {
        ensure!(room.elapsed()? < TO_DRAIN && !run.rush.is_over(), "nothing was sold when there was room again");
        sleep(Duration::from_millis(20)).await;
    }

    world.servers.brokerctl(alarm).await?;
    let (promised, alarmed) = (run.rush.accepted(), Instant::now());
    // Messages that the relay sent just before the alarm may still be marked as sent.
    let (mut before, mut backlog) = (world.backlog().await?, 0);
    while backlog < before + GROWTH && alarmed.elapsed() < TO_GROW {
        sleep(Duration::from_millis(200)).await;
        backlog = world.backlog().await?;
        before = before.min(backlog);
    }
    let promised = run.rush.accepted() - promised;
    world.servers.brokerctl(calm).await?;
    ensure!(promised > 0, "no purchase under the {kind} alarm");
    ensure!(backlog >= before + GROWTH, "the outbox did not grow under the {kind} alarm: {before}, {backlog}");
    // New purchases keep coming: the backlog has drained when the rows of this moment are gone.
    world.wait_until_drained_of(SystemTime::now(), TO_DRAIN).await?;
    run.wait_until_recovered().await?;
    run.finished(world, format!("{kind} alarm: {promised} promises, backlog {before} to {backlog}")).await
}
