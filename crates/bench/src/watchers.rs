//! Watchers: a rush of winners, without and with buyers who follow their orders by server-sent events meanwhile.
//!
//! Both halves of a round do the same work: 2,000 orders wait for the workers, which start with the rush. In one half each of these
//! orders has a stream that stays open, so that 2,000 events are sent while the winners buy. The halves take turns at being the first.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use futures_util::StreamExt;
use futures_util::stream;
use reqwest::{Client, Response};
use rustix::process::setpriority_process;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::sync::oneshot;

use crate::crowds::{Rush, rush, settled};
use crate::processes::{self, cpu_us, memory_mb};
use crate::series::Series;
use crate::service::{Sale, Service};
use crate::settle;

/// Buyers who follow an order.
const WATCHERS: usize = 2_000;
/// Two purchases a round would soon reach the limit of one buyer, so each round has buyers of its own.
pub const BUYERS_A_ROUND: usize = 2 * WATCHERS;
/// Arrivals a second of the rush.
const RATE: u64 = 1_500;
/// Requests at a time while the orders are made and the streams are opened.
const AT_ONCE: usize = 32;
/// The least priority of a thread.
const NICE: i32 = 19;
/// How long the last event is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Results {
    without: Vec<Half>,
    with: Vec<Half>,
    /// What the streams add to the service's memory, in MB.
    memory_mb: Vec<f64>,
}

/// A rush, and the service's CPU time during it.
struct Half {
    rush: Rush,
    cpu_us: f64,
}

/// # Errors
/// A watcher does not get the event of its order, or the books do not hold.
pub async fn measure(
    service: &Service,
    tokens: &[&str],
    sql: &PgPool,
    logs: &Path,
    rounds: u64,
    seconds: u64,
) -> anyhow::Result<Results> {
    let mut results = Results::default();
    for (round, tokens) in (1..=rounds).zip(tokens.chunks_exact(BUYERS_A_ROUND)) {
        eprintln!("round {round} of {rounds}: a rush without and with watchers");
        let (without, with) = tokens.split_at(WATCHERS);
        for watched in [round % 2 == 0, round % 2 == 1] {
            if !watched {
                buy(service, without).await?;
                results.without.push(half(service, sql, logs, seconds, None).await?);
                continue;
            }
            let orders = buy(service, with).await?;
            let before = memory_mb(service.process.pid)?;
            let watchers = Watchers::start(service, with, &orders).await?;
            results.memory_mb.push(memory_mb(service.process.pid)? - before);
            results.with.push(half(service, sql, logs, seconds, Some(watchers)).await?);
        }
    }
    settle::audit(&[]).await?;
    Ok(results)
}

/// One purchase of each of the watchers: the orders' ids.
async fn buy(service: &Service, tokens: &[&str]) -> anyhow::Result<Vec<String>> {
    let sale: Sale = service.sale(WATCHERS.cast_signed() as i64).await?;
    let url = format!("http://{}{}", service.process.address, sale.path);
    let purchases = tokens.iter().enumerate().map(|(n, token)| {
        let address = format!("10.50.{}.{}", n / 250, n % 250);
        let call = service.client.post(&url).bearer_auth(token).header("X-Forwarded-For", address);
        let call = call.body(sale.body.clone());
        async move {
            let answer: Value = call.send().await?.error_for_status()?.json().await?;
            Ok(answer["order_id"].as_str().context("a purchase without an order_id")?.to_owned())
        }
    });
    stream::iter(purchases).buffered(AT_ONCE).collect::<Vec<anyhow::Result<String>>>().await.into_iter().collect()
}

/// Readers of the streams, on a thread of its own.
struct Watchers {
    seen: oneshot::Receiver<anyhow::Result<()>>,
    /// The streams stay open until this is dropped.
    _open: oneshot::Sender<()>,
}

impl Watchers {
    /// Opens the stream of each order, waits for its first event, and leaves a thread behind that waits for the next, and keeps the streams open.
    async fn start(service: &Service, tokens: &[&str], orders: &[String]) -> anyhow::Result<Self> {
        let address = service.process.address;
        let orders: Vec<_> = tokens.iter().map(|&token| token.to_owned()).zip(orders.iter().cloned()).collect();
        let (opened, is_open) = oneshot::channel();
        let (all, seen) = oneshot::channel();
        let (open_until, closed) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let read = move || {
            // Watchers have computers of their own. These share the service's, and so they give way to it.
            if let Err(error) = setpriority_process(None, NICE) {
                return drop(opened.send(Err(error.into())));
            }
            runtime.block_on(async {
                match open(address, &orders).await {
                    Err(error) => drop(opened.send(Err(error))),
                    Ok(streams) => {
                        let _ = opened.send(Ok(()));
                        let watching = stream::iter(streams)
                            .map(|mut one| async move { until(&mut one, "pending_payment").await.map(|()| one) });
                        let read = watching.buffer_unordered(WATCHERS).collect::<Vec<_>>().await;
                        let read: anyhow::Result<Vec<Response>> = read.into_iter().collect();
                        let (told, _streams) = match read {
                            Ok(streams) => (Ok(()), streams),
                            Err(error) => (Err(error), Vec::new()),
                        };
                        let _ = all.send(told);
                        let _ = closed.await;
                    }
                }
            });
        };
        std::thread::Builder::new().name("watchers".to_owned()).spawn(read)?;
        is_open.await??;
        Ok(Self { seen, _open: open_until })
    }

    /// Waits until each has read the event of its order.
    async fn all_told(&mut self) -> anyhow::Result<()> {
        (&mut self.seen).await?
    }
}

/// Opens the stream of each order and waits for its first event.
async fn open(address: SocketAddr, orders: &[(String, String)]) -> anyhow::Result<Vec<Response>> {
    let client = Client::new();
    let streams = orders.iter().map(|(token, order)| {
        let call = client.get(format!("http://{address}/api/v1/orders/{order}/events")).bearer_auth(token);
        async move {
            let mut events = call.send().await?.error_for_status()?;
            until(&mut events, "accepted").await?;
            Ok(events)
        }
    });
    stream::iter(streams).buffered(AT_ONCE).collect::<Vec<anyhow::Result<Response>>>().await.into_iter().collect()
}

/// Reads a stream until it brings this status.
async fn until(events: &mut Response, status: &str) -> anyhow::Result<()> {
    let (mut read, wanted) = (String::new(), format!("\"status\":\"{status}\""));
    let reading = async {
        while !read.contains(&wanted) {
            let bytes = events.chunk().await?.context("a stream ended early")?;
            read.push_str(&String::from_utf8_lossy(&bytes));
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, reading).await.with_context(|| format!("no event `{status}`"))?
}

/// Plays the rush while the workers settle the watched orders.
async fn half(
    service: &Service,
    sql: &PgPool,
    logs: &Path,
    seconds: u64,
    mut watchers: Option<Watchers>,
) -> anyhow::Result<Half> {
    let (rate, length, buyers) = (RATE.to_string(), seconds.to_string(), (RATE * seconds).to_string());
    let words = ["--rate", &rate, "--seconds", &length, "--buyers", &buyers, "--shape", "even"];
    let sale = service.sale((RATE * seconds).cast_signed()).await?;
    let mut work = processes::work(&logs.join("work.log"), None)?;
    let server = [("server", service.process.pid)];
    let before = cpu_us(&server)?;
    let watching = async {
        match &mut watchers {
            Some(watchers) => watchers.all_told().await,
            None => Ok(()),
        }
    };
    let (rush, told) = tokio::join!(rush(service, &sale, &words), watching);
    told?;
    let used = cpu_us(&server)?.iter().zip(&before).map(|((_, after), (_, before))| after - before).sum::<u64>();
    settled(sql).await?;
    processes::stop(&mut work).await?;
    Ok(Half { rush: rush?, cpu_us: used as f64 })
}

impl Results {
    pub fn markdown(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "| {RATE} winners a second | p50 ms | p99 ms | CPU of `serve`, s | 503 or no answer |\n|---|---|---|---|---|"
        );
        for (name, halves) in [("nobody watches", &self.without), ("2,000 watch their orders", &self.with)] {
            let of = |figure: fn(&Half) -> f64| Series::of(halves.iter().map(figure));
            let ms = |series: Series| series.with_range(|ms| format!("{ms:.1}"));
            let unavailable: u64 = halves.iter().map(|half| half.rush.unavailable).sum();
            let (p50, p99, cpu) =
                (of(|half| half.rush.p50_ms), of(|half| half.rush.p99_ms), of(|half| half.cpu_us / 1e6));
            let _ = writeln!(text, "| {name} | {} | {} | {} | {unavailable} |", ms(p50), ms(p99), ms(cpu));
        }
        let _ = writeln!(
            text,
            "\nThe streams take {} MB of the service's memory. Each watcher got the event of its order during the rush.\n",
            Series::of(self.memory_mb.iter().copied()).with_range(|mb| format!("{mb:.0}"))
        );
    }

    pub fn json(&self) -> Value {
        let all = |halves: &[Half]| {
            halves.iter().map(|half| json!({ "rush": half.rush.json(), "cpu_us": half.cpu_us })).collect::<Vec<_>>()
        };
        json!({ "without": all(&self.without), "with": all(&self.with), "memory_mb": self.memory_mb })
    }
}
