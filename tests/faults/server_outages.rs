//! F4, F8, F15: a server is away, or has no room.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use rand::RngExt;
use tokio::time::sleep;

use crate::Terms;
use crate::run::Run;
use crate::run_summary::Figures;
use crate::rush::Plan;
use crate::servers::Server;
use crate::tcp_forwarder::{Wire, authority};
use crate::world::{Setup, World};

/// How long the backlog of an outage may take to drain.
const TO_DRAIN: Duration = Duration::from_secs(60);
/// Attempts to reach a broker that is away, in a second: three loops, each with a pause that grows.
const ATTEMPTS_A_SECOND: f64 = 10.0;

/// F4: purchases go on, the backlog drains, no reconnect storm.
pub async fn broker_stopped(terms: Terms) -> anyhow::Result<Figures> {
    let away = Duration::from_secs(if terms.full { 60 } else { 10 });
    let url = terms.servers.url("AMQP_URL");
    let broker = authority(url).to_owned();
    let wire = Wire::to(&broker).await?;
    let settings = vec![("AMQP_URL", url.replace(&broker, &wire.address.to_string()))];
    let mut world = World::new(&terms, Setup { stock: 3_000, settings, ..Setup::default() }).await?;
    // As many buyers as units, all through the outage.
    let plan = Plan { buyers: 2_800, rate: 2_800.0 / (away.as_secs_f64() + 4.0), ..Plan::default() };
    let mut run = Run::under_way(&mut world, plan).await?;
    run.aim();
    world.servers.stop(Server::Broker).await?;
    let stopped = run.injected();
    let (promised, callers) = (run.rush.accepted(), wire.callers());
    sleep(away).await;
    let (promised, callers) = (run.rush.accepted() - promised, wire.callers() - callers);
    ensure!(promised > 0, "no purchase while the broker was away");
    let storm = away.as_secs_f64() * ATTEMPTS_A_SECOND;
    ensure!((callers as f64) < storm, "{callers} attempts to reach the broker in {away:?}");
    let backlog = world.backlog().await?;
    world.servers.start(Server::Broker).await?;
    let begun = Instant::now();
    run.recovered().await?;
    world.drained_of(SystemTime::now(), TO_DRAIN).await?;
    let drained_s = begun.elapsed().as_secs_f64();
    let away_s = stopped.elapsed()?.as_secs_f64();
    let (mut figures, history) = run.judged(&mut world).await?;
    ensure!(history.told(503, "temporarily-unavailable") == 0, "buyers were told of the broker");
    figures.note = format!(
        "{promised} promises and {callers} attempts to connect in {:.0} s without it; backlog {backlog}, gone {drained_s:.1} s \
         after its return ({away_s:.1} s in all)",
        away.as_secs_f64()
    );
    world.finish().await?;
    Ok(figures)
}

/// F8: what became of a commit is found out by its key.
pub async fn postgres_restarted(terms: Terms) -> anyhow::Result<Figures> {
    let mut world = World::new(&terms, Setup::default()).await?;
    let mut run = Run::under_way(&mut world, Plan::default()).await?;
    run.aim();
    run.injected();
    let mut ended = 0;
    for _ in 0..10 {
        let backends: i64 = sqlx::query_scalar(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .fetch_one(&world.sql)
        .await?;
        ended += backends;
        sleep(Duration::from_millis(world.dice.random_range(10..150))).await;
    }
    sleep(Duration::from_millis(world.dice.random_range(200..1_000))).await;
    let stopped = SystemTime::now();
    world.servers.stop(Server::Postgres).await?;
    let gone = SystemTime::now();
    sleep(Duration::from_millis(world.dice.random_range(0..1_500))).await;
    world.servers.start(Server::Postgres).await?;
    let away_s = stopped.elapsed()?.as_secs_f64();
    run.recovered().await?;
    let again = run.rush.first_promise_after(gone).map(|moment| moment.duration_since(stopped).unwrap_or_default());
    let (mut figures, history) = run.judged(&mut world).await?;
    figures.note = format!(
        "{ended} backends ended, {} answers of 503; then away for {away_s:.1} s, selling {:.1} s after it was stopped",
        history.told(503, "temporarily-unavailable"),
        again.unwrap_or_default().as_secs_f64()
    );
    world.finish().await?;
    Ok(figures)
}

/// F15, in two halves of one rush: clean refusals, publishing falls back to the outbox.
pub async fn no_room(terms: Terms) -> anyhow::Result<Figures> {
    let mut world = World::new(&terms, Setup { stock: 5_000, ..Setup::default() }).await?;
    let mut run = Run::under_way(&mut world, Plan { buyers: 6_000, rate: 200.0, ..Plan::default() }).await?;
    let (kind, alarm, calm): (_, &[&str], &[&str]) = if terms.seed % 2 == 1 {
        ("disk", &["set_disk_free_limit", "1000000GB"], &["set_disk_free_limit", "200MB"])
    } else {
        let memory = "set_vm_memory_high_watermark";
        ("memory", &[memory, "0"], &[memory, "absolute", "1GB"])
    };
    // Redis first: `rabbitmqctl` takes seconds, and there have to be units left for both.
    run.aim();
    let _: () = world.ask(&["CONFIG", "SET", "maxmemory", "1mb"]).await?;
    let full = run.injected();
    sleep(Duration::from_millis(1_500)).await;
    let sold_when_full = run.rush.first_promise_after(full).is_some();
    let _: () = world.ask(&["CONFIG", "SET", "maxmemory", "1gb"]).await?;
    let room = SystemTime::now();
    ensure!(!sold_when_full, "something was sold by a Redis without room");
    let again = loop {
        match run.rush.first_promise_after(room) {
            None if room.elapsed()? < TO_DRAIN && !run.rush.is_over() => sleep(Duration::from_millis(20)).await,
            again => break again,
        }
    };
    let again_s = again.context("nothing was sold when there was room again")?.duration_since(room)?.as_secs_f64();

    world.servers.brokerctl(alarm).await?;
    let (promised, before) = (run.rush.accepted(), world.backlog().await?);
    sleep(Duration::from_secs(3)).await;
    let (promised, backlog) = (run.rush.accepted() - promised, world.backlog().await?);
    world.servers.brokerctl(calm).await?;
    ensure!(promised > 0, "no purchase under the {kind} alarm");
    ensure!(backlog > before, "the outbox did not grow under the {kind} alarm: {before}, {backlog}");
    let begun = Instant::now();
    // New purchases come all the time: it has drained when what was there then is gone.
    world.drained_of(SystemTime::now(), TO_DRAIN).await?;
    let drained_s = begun.elapsed().as_secs_f64();
    run.recovered().await?;
    let (mut figures, history) = run.judged(&mut world).await?;
    figures.note = format!(
        "maxmemory: {} of 503, sold again {again_s:.2} s after there was room; {kind} alarm: {promised} promises, backlog \
         {before} to {backlog}, gone {drained_s:.1} s after",
        history.told(503, "temporarily-unavailable")
    );
    world.finish().await?;
    Ok(figures)
}
