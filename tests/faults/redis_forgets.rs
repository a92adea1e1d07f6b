//! F5, F6, F7, refill4: Redis forgets, and is filled again from PostgreSQL before it sells.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use rand::RngExt;
use seckill::domain::admission::Hold;
use seckill::domain::ids::{Epoch, OrderId, Shard};
use seckill::ledger::orders::commit::{Committed, Purchase};
use tokio::time::sleep;
use uuid::Uuid;

use crate::Terms;
use crate::run::Run;
use crate::run_summary::Figures;
use crate::rush::Plan;
use crate::servers::{Server, kill9};
use crate::tcp_forwarder::{Wire, authority};
use crate::world::{Setup, World, ask};

/// F5: the stock is rebuilt from PostgreSQL before it reopens.
pub async fn last_writes_lost(terms: Terms) -> anyhow::Result<Figures> {
    let mut world = World::new(&terms, Setup::default()).await?;
    let mut run = Run::under_way(&mut world, Plan::default()).await?;
    let log = append_only_file(&world).await?;
    let pid = world.servers.pid(Server::Redis).await?;
    // What is written from here on will be lost.
    let kept = std::fs::metadata(&log)?.len();
    let before = world.epoch().await?;
    sleep(Duration::from_millis(world.dice.random_range(100..800))).await;
    run.aim();
    kill9(pid).await?;
    run.injected();
    let written = std::fs::read(&log)?;
    let tail = &written[usize::try_from(kept)?..];
    let (writes, tickets) = read_tail(tail, &world.key("tickets"));
    ensure!(writes > 0 && tickets > 0, "nothing was lost: {writes} writes, {tickets} tickets");
    std::fs::OpenOptions::new().write(true).open(&log)?.set_len(kept)?;
    world.servers.start(Server::Redis).await?;
    run.recovered().await?;
    let (mut figures, _) = run.judged(&mut world).await?;
    figures.lost = Some(format!("{writes} writes, {tickets} tickets"));
    let after = world.epoch().await?;
    ensure!(after > before, "the epoch is still {before}");
    figures.note = format!("epoch {before} to {after}");
    world.finish().await?;
    Ok(figures)
}

/// The file that Redis is appending to, and goes on appending to.
async fn append_only_file(world: &World) -> anyhow::Result<PathBuf> {
    let _: () = world.ask(&["CONFIG", "SET", "auto-aof-rewrite-percentage", "0"]).await?;
    let folder: (String, String) = world.ask(&["CONFIG", "GET", "dir"]).await?;
    let files = std::fs::read_dir(Path::new(&folder.1).join("appendonlydir"))?.filter_map(Result::ok);
    let logs = files.filter(|file| file.file_name().to_string_lossy().ends_with(".incr.aof"));
    let newest = logs.max_by_key(|file| file.metadata().and_then(|data| data.modified()).ok());
    Ok(newest.context("there is no append-only file")?.path())
}

/// Commands in a piece of an append-only file, and the tickets that they write.
fn read_tail(tail: &[u8], tickets_key: &str) -> (usize, usize) {
    let text = String::from_utf8_lossy(tail);
    let (mut writes, mut tickets) = (0, 0);
    for command in text.split("\r\n*").map(|command| command.trim_start_matches('*')) {
        // A command's number of words, and then each word after its length.
        let mut lines = command.split("\r\n");
        let Some(words) = lines.next().and_then(|n| n.parse::<usize>().ok()) else { continue };
        let spoken: Vec<&str> = lines.skip(1).step_by(2).take(2).collect();
        writes += usize::from(!matches!(spoken.first(), Some(&("MULTI" | "EXEC" | "SELECT"))));
        if spoken.get(1) == Some(&tickets_key) {
            tickets += (words - 2) / 2;
        }
    }
    (writes, tickets)
}

/// A replica of the set's Redis, killed when it is dropped.
struct Replica {
    _server: tokio::process::Child,
    client: redis::Client,
    authority: String,
    folder: PathBuf,
}

impl Replica {
    /// Starts it, and waits until it follows.
    async fn of(master: &str) -> anyhow::Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = std::env::temp_dir().join(format!("seckill-replica-{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&folder)?;
        let server = tokio::process::Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
            .args(["--replicaof", &master.replace(':', " "), "--repl-diskless-sync-delay", "0", "--dir"])
            .arg(&folder)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let authority = format!("127.0.0.1:{port}");
        let client = redis::Client::open(format!("redis://{authority}/"))?;
        for _ in 0..500 {
            let info = ask::<String>(&client, &["INFO", "replication"]).await.unwrap_or_default();
            if info.contains("master_link_status:up") {
                return Ok(Self { _server: server, client, authority, folder });
            }
            sleep(Duration::from_millis(20)).await;
        }
        anyhow::bail!("the replica does not follow")
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// F6: the epoch rises, and the old one is refused.
pub async fn stale_replica_promoted(terms: Terms) -> anyhow::Result<Figures> {
    let master = authority(terms.servers.url("REDIS_URL")).to_owned();
    let wire = Wire::to(&master).await?;
    let settings = vec![("REDIS_URL", format!("redis://{}/", wire.address))];
    let mut world = World::new(&terms, Setup { settings, ..Setup::default() }).await?;
    let replica = Replica::of(&master).await?;
    let mut run = Run::under_way(&mut world, Plan::default()).await?;
    let pid = world.servers.pid(Server::Redis).await?;
    let before = world.epoch().await?;
    let _: () = ask(&replica.client, &["REPLICAOF", "NO", "ONE"]).await?;
    sleep(Duration::from_millis(world.dice.random_range(200..900))).await;
    let sold: i64 = world.ask(&["HLEN", &world.key("tickets")]).await?;
    run.aim();
    kill9(pid).await?;
    run.injected();
    let kept: i64 = ask(&replica.client, &["HLEN", &world.key("tickets")]).await?;
    ensure!(sold > kept, "the replica knew all {sold} tickets");
    wire.point_at(&replica.authority);
    run.recovered().await?;
    let (mut figures, _) = run.judged(&mut world).await?;
    let after = world.epoch().await?;
    ensure!(after > before, "the epoch is still {before}");
    // A purchase of the old epoch, as an instance would bring it that has slept through all this.
    let (order, hold) = (OrderId(Uuid::now_v7()), Hold { epoch: Epoch(before), shard: Shard::HOME });
    let late = Purchase { order, sale: world.sale_id(), user: "sleeper".into(), units: 1, hold };
    let verdict = world.stores.ledger.commit_purchases(&[late]).await?;
    ensure!(verdict == [Committed::StaleEpoch], "a purchase of epoch {before} is {verdict:?}");
    figures.lost = Some(format!("at least {} tickets", sold - kept));
    figures.note = format!("epoch {before} to {after}, the old one refused");
    world.finish().await?;
    world_of_redis(&terms).await?;
    Ok(figures)
}

/// The set's Redis, up again and empty.
async fn world_of_redis(terms: &Terms) -> anyhow::Result<()> {
    terms.servers.start(Server::Redis).await?;
    ask(&redis::Client::open(terms.servers.url("REDIS_URL"))?, &["FLUSHALL"]).await
}

/// F7: fails closed, refills; the scripts reload by themselves.
pub async fn flushed(terms: Terms) -> anyhow::Result<Figures> {
    let mut world = World::new(&terms, Setup::default()).await?;
    let mut run = Run::under_way(&mut world, Plan::default()).await?;
    let before = world.epoch().await?;
    let tickets: i64 = world.ask(&["HLEN", &world.key("tickets")]).await?;
    run.aim();
    let _: () = world.ask(&["FLUSHALL"]).await?;
    run.injected();
    sleep(Duration::from_millis(world.dice.random_range(300..900))).await;
    let _: () = world.ask(&["SCRIPT", "FLUSH"]).await?;
    let flushed = SystemTime::now();
    run.recovered().await?;
    let after_scripts = run.rush.first_promise_after(flushed).context("no sale after SCRIPT FLUSH")?;
    let (mut figures, _) = run.judged(&mut world).await?;
    let after = world.epoch().await?;
    ensure!(after > before, "the epoch is still {before}");
    figures.lost = Some(format!("all {tickets} tickets"));
    let scripts_s = after_scripts.duration_since(flushed)?.as_secs_f64();
    figures.note = format!("epoch {before} to {after}; sold {scripts_s:.2} s after SCRIPT FLUSH");
    world.finish().await?;
    Ok(figures)
}

/// refill4: no 202 ends rejected, and no unit is sold twice.
pub async fn refilled_all_the_time(terms: Terms) -> anyhow::Result<Figures> {
    let mut world = World::new(&terms, Setup { serve: 4, ..Setup::default() }).await?;
    let mut run = Run::under_way(&mut world, Plan::default()).await?;
    let before = world.epoch().await?;
    run.injected();
    for _ in 0..25 {
        sqlx::query("UPDATE sale_epochs SET run_id = NULL WHERE sale_id = $1")
            .bind(world.sale.id)
            .execute(&world.sql)
            .await?;
        sqlx::query("SELECT pg_notify('seckill_catalog', '')").execute(&world.sql).await?;
        sleep(Duration::from_millis(world.dice.random_range(20..350))).await;
    }
    run.recovered().await?;
    let (mut figures, _) = run.judged(&mut world).await?;
    figures.note = format!("epoch {before} to {}, no promise rejected", world.epoch().await?);
    world.finish().await?;
    Ok(figures)
}
