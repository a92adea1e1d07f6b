//! Crowds: winners beside a thousand readers, and a rush without and with the workers that settle it. Both are played by
//! `seckill load`, whose arrivals come by a schedule, whatever the service does.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::time::sleep;

use crate::processes::{self, seckill};
use crate::series::{Series, thousands};
use crate::service::{Sale, Service};
use crate::settle;
use crate::wrk::Buyers;

/// Arrivals per second beside the readers, and the connections of those.
const BESIDE_READERS: u64 = 1_500;
const READERS: u64 = 1_000;
/// A rush of buyers who each send one request, and no bots.
const RUSH_BUYERS: &str = "20000";
const RUSH_STOCK: u64 = 2_000;
/// Before a rush, so that nothing of what came before is measured with it.
const REST: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Results {
    quiet: Vec<Rush>,
    beside_readers: Vec<Rush>,
    reads: Vec<f64>,
    alone: Vec<Rush>,
    with_workers: Vec<Rush>,
    settled_after_s: Vec<f64>,
}

/// What a rush looked like from outside.
pub struct Rush {
    arrivals: u64,
    seconds: f64,
    accepted: u64,
    /// Answers that told a buyer what became of the purchase.
    useful: u64,
    pub unavailable: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    first_second: (f64, f64),
    pub winners_a_second: f64,
}

impl Rush {
    pub fn read(report: &Value) -> anyhow::Result<Self> {
        let number = |at: &str| report.pointer(at).and_then(Value::as_f64);
        let counts = report["counts"].as_object().context("the report has no counts")?;
        let count = |starts: &str| {
            let of_kind = counts.iter().filter(|(answer, _)| answer.starts_with(starts));
            of_kind.filter_map(|(_, n)| n.as_u64()).sum::<u64>()
        };
        let timeline = report["first_second_timeline"].as_array().context("the report has no timeline")?;
        // From the first winner to nearly the last.
        let orders = number("/orders").unwrap_or_default();
        let so_far = |bucket: &Value| bucket["orders_so_far"].as_f64().unwrap_or_default();
        let from_ms = |bucket: &Value| bucket["from_ms"].as_f64().unwrap_or_default();
        let begun = timeline.iter().position(|bucket| so_far(bucket) > 0.0);
        let most = timeline.iter().position(|bucket| so_far(bucket) >= orders * 0.95);
        let whole = report["timeline"].as_array().context("the report has no timeline")?;
        let (timeline, begun, most) = match (begun, most) {
            (Some(begun), Some(most)) if most > begun => (timeline, begun, most),
            _ => (
                whole,
                whole.iter().position(|bucket| so_far(bucket) > 0.0).unwrap_or_default(),
                whole.iter().position(|bucket| so_far(bucket) >= orders * 0.95).unwrap_or_default(),
            ),
        };
        let seconds = (from_ms(&timeline[most]) - from_ms(&timeline[begun])).max(25.0) / 1000.0;
        let first_second = (number("/first_second/p50_ms"), number("/first_second/p99_ms"));
        Ok(Self {
            arrivals: report["arrivals"].as_u64().unwrap_or_default(),
            seconds: number("/duration_ms").unwrap_or_default() / 1000.0,
            accepted: count("202"),
            useful: count("202") + count("409"),
            unavailable: count("503") + count("no answer"),
            p50_ms: number("/accepted_only/p50_ms").unwrap_or(f64::NAN),
            p99_ms: number("/accepted_only/p99_ms").unwrap_or(f64::NAN),
            first_second: (first_second.0.unwrap_or(f64::NAN), first_second.1.unwrap_or(f64::NAN)),
            winners_a_second: so_far(&timeline[most]) / seconds,
        })
    }

    pub fn json(&self) -> Value {
        json!({
            "arrivals": self.arrivals, "seconds": self.seconds, "accepted": self.accepted, "useful": self.useful,
            "unavailable": self.unavailable, "p50_ms": self.p50_ms, "p99_ms": self.p99_ms,
            "first_second_p50_ms": self.first_second.0, "first_second_p99_ms": self.first_second.1,
            "winners_a_second": self.winners_a_second,
        })
    }
}

/// Plays a rush of buyers who each send one request.
pub async fn rush(service: &Service, sale: &Sale, words: &[&str]) -> anyhow::Result<Rush> {
    let honest = ["--early", "0", "--doubles", "0", "--unknown", "0", "--forged", "0"];
    Rush::read(&load(service, sale, &[&honest[..], words].concat()).await?)
}

/// Runs `seckill load` in this sale, with these words. Returns its report.
pub async fn load(service: &Service, sale: &Sale, words: &[&str]) -> anyhow::Result<Value> {
    let file = ".dev/bench/load.json";
    let (base, sale) = (format!("http://{}", service.process.address), sale.id.to_string());
    let all = ["load", "--base", &base, "--sale", &sale, "--json", file];
    seckill(&[&all[..], words].concat()).await?;
    let mut document: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    Ok(document["report"].take())
}

pub async fn measure(
    service: &Service,
    readers: &Buyers,
    sql: &PgPool,
    logs: &Path,
    rounds: u64,
    seconds: u64,
) -> anyhow::Result<Results> {
    let mut results = Results::default();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: winners without and with readers");
        let (rate, length) = (BESIDE_READERS.to_string(), seconds.to_string());
        let buyers = (BESIDE_READERS * seconds).to_string();
        let words = ["--rate", &rate, "--seconds", &length, "--buyers", &buyers, "--shape", "even"];
        let stock = (BESIDE_READERS * seconds).cast_signed();
        let sale = service.sale(stock).await?;
        results.quiet.push(rush(service, &sale, &words).await?);
        let sale = service.sale(stock).await?;
        let address = service.process.address;
        let reads = readers.read(address, READERS, seconds + 3);
        let buying = async {
            sleep(Duration::from_secs(1)).await;
            rush(service, &sale, &words).await
        };
        let (read, bought) = tokio::try_join!(reads, buying)?;
        results.reads.push(read.per_second());
        results.beside_readers.push(bought);

        // Whatever came first would be measured beside what the crowds before have left behind.
        for with_workers in if round % 2 == 1 { [false, true] } else { [true, false] } {
            eprintln!("round {round} of {rounds}: a rush {} workers", if with_workers { "beside" } else { "without" });
            let work = if with_workers { Some(processes::work(&logs.join("work.log"), None)?) } else { None };
            if with_workers {
                settled(sql).await?;
                relayed(sql).await?;
            }
            let sale = service.sale(RUSH_STOCK.cast_signed()).await?;
            sleep(REST).await;
            let rush = rush(service, &sale, &["--buyers", RUSH_BUYERS]).await?;
            let Some(mut work) = work else {
                results.alone.push(rush);
                continue;
            };
            let ended = Instant::now();
            settled(sql).await?;
            results.settled_after_s.push(ended.elapsed().as_secs_f64());
            results.with_workers.push(rush);
            processes::stop(&mut work).await?;
        }
    }
    settle::audit(&[]).await?;
    Ok(results)
}

/// Waits until every purchase is an order.
pub async fn settled(sql: &PgPool) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM accepted_purchases").fetch_one(sql).await?;
        if left == 0 {
            return Ok(());
        }
        ensure!(begun.elapsed() < Duration::from_secs(600), "{left} purchases are not settled");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until the broker has every message that is due.
async fn relayed(sql: &PgPool) -> anyhow::Result<()> {
    let begun = Instant::now();
    let due = "SELECT count(*) FROM outbox WHERE status = 'pending' AND next_attempt_at <= now()";
    loop {
        let left: i64 = sqlx::query_scalar(due).fetch_one(sql).await?;
        if left == 0 {
            return Ok(());
        }
        ensure!(begun.elapsed() < Duration::from_secs(600), "{left} messages are not relayed");
        sleep(Duration::from_millis(100)).await;
    }
}

impl Results {
    pub fn markdown(&self, text: &mut String) {
        let row = |text: &mut String, name: &str, rounds: &[Rush], first: bool| {
            let of = |figure: fn(&Rush) -> f64| Series::of(rounds.iter().map(figure));
            let (p50, p99) = if first {
                (of(|rush| rush.first_second.0), of(|rush| rush.first_second.1))
            } else {
                (of(|rush| rush.p50_ms), of(|rush| rush.p99_ms))
            };
            let ms = |series: Series| series.with_range(|ms| format!("{ms:.1}"));
            let unavailable: u64 = rounds.iter().map(|rush| rush.unavailable).sum();
            let winners = of(|rush| rush.winners_a_second).with_range(thousands);
            let _ = writeln!(text, "| {name} | {} | {} | {winners} | {unavailable} |", ms(p50), ms(p99));
        };
        let _ = writeln!(
            text,
            "| beside others | p50 ms | p99 ms | winners a second | 503 or no answer |\n|---|---|---|---|---|"
        );
        let beside = format!(
            "the same beside {READERS} connections that read, {} times a second",
            Series::of(self.reads.iter().copied()).with_range(thousands)
        );
        row(text, &format!("winners, {BESIDE_READERS} arrivals a second"), &self.quiet, false);
        row(text, &beside, &self.beside_readers, false);
        row(text, "the first second of a rush, `serve` alone", &self.alone, true);
        row(text, "the same, with `work` beside it", &self.with_workers, true);
        let _ = writeln!(
            text,
            "\nThe rush: {RUSH_BUYERS} buyers within ten seconds, {RUSH_STOCK} units. All orders of it were settled {} s after \
             its last answer.\n",
            Series::of(self.settled_after_s.iter().copied()).with_range(|s| format!("{s:.1}"))
        );
    }

    pub fn json(&self) -> Value {
        let all = |rounds: &[Rush]| rounds.iter().map(Rush::json).collect::<Vec<_>>();
        json!({
            "quiet": all(&self.quiet), "beside_readers": all(&self.beside_readers), "reads_a_second": self.reads,
            "rush_alone": all(&self.alone), "rush_with_workers": all(&self.with_workers),
            "settled_after_s": self.settled_after_s,
        })
    }
}
