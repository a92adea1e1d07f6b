//! Crowds: winners beside a thousand readers, and a rush without and with the workers that settle it. Both are played by
//! `seckill load`, whose arrivals follow a schedule, whatever the service does.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::time::sleep;

use crate::processes::{self, seckill};
use crate::series::{Series, thousands};
use crate::service::Service;
use crate::settle::{self, relayed, settled};
use crate::wrk::RecordFile;

/// Arrivals per second beside the readers, and the connections of the readers.
const BESIDE_READERS: u64 = 1_500;
const READERS: u64 = 1_000;
/// A rush of buyers who each send one request, and no bots.
const RUSH_BUYERS: &str = "20000";
const RUSH_STOCK: u64 = 2_000;
const HONEST: [&str; 8] = ["--early", "0", "--doubles", "0", "--unknown", "0", "--forged", "0"];
/// Before a rush, so that the crowds before it are not measured with it.
const REST: Duration = Duration::from_secs(2);

/// The readers that `measure` needs.
pub fn readers(seconds: u64) -> u64 {
    seconds * 20_000
}

#[derive(Default)]
pub struct Results {
    quiet: Vec<Rush>,
    beside_readers: Vec<Rush>,
    reads: Vec<f64>,
    alone: Vec<Rush>,
    with_workers: Vec<Rush>,
}

/// The answers to a crowd.
struct Rush {
    unavailable: u64,
    /// Of winners, and of all buyers due in the first second.
    winners: Latency,
    first_second: Latency,
}

#[derive(Clone, Copy)]
struct Latency {
    p50_ms: f64,
    p99_ms: f64,
}

impl Rush {
    fn read(report: &Value) -> anyhow::Result<Self> {
        let counts = report["counts"].as_object().context("the report has no counts")?;
        let refused = |answer: &str| answer.starts_with("503") || answer.starts_with("no answer");
        let unavailable = counts.iter().filter(|(answer, _)| refused(answer)).filter_map(|(_, n)| n.as_u64()).sum();
        let latency = |name: &str| {
            let ms = |figure: &str| report[name][figure].as_f64().unwrap_or(f64::NAN);
            Latency { p50_ms: ms("p50_ms"), p99_ms: ms("p99_ms") }
        };
        Ok(Self { unavailable, winners: latency("accepted_only"), first_second: latency("first_second") })
    }

    fn json(&self) -> Value {
        json!({
            "unavailable": self.unavailable, "p50_ms": self.winners.p50_ms, "p99_ms": self.winners.p99_ms,
            "first_second_p50_ms": self.first_second.p50_ms, "first_second_p99_ms": self.first_second.p99_ms,
        })
    }
}

/// Plays a crowd by `seckill load` with these words, at a new sale.
async fn rush(service: &Service, stock: u64, words: &[&str]) -> anyhow::Result<Rush> {
    let file = ".dev/bench/load.json";
    let sale = service.sale(stock.cast_signed()).await?.id.to_string();
    sleep(REST).await;
    let base = format!("http://{}", service.process.address);
    seckill(&[&["load", "--base", &base, "--sale", &sale, "--json", file], &HONEST[..], words].concat()).await?;
    let document: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    Rush::read(&document["report"])
}

pub async fn measure(
    service: &Service,
    readers: &RecordFile,
    sql: &PgPool,
    logs: &Path,
    rounds: u64,
    seconds: u64,
) -> anyhow::Result<Results> {
    let mut results = Results::default();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: winners without and with readers");
        let stock = BESIDE_READERS * seconds;
        let [rate, length, buyers] = [BESIDE_READERS, seconds, stock].map(|n| n.to_string());
        let words = ["--rate", &rate, "--seconds", &length, "--buyers", &buyers, "--shape", "even"];
        results.quiet.push(rush(service, stock, &words).await?);
        // The readers read before the first buyer comes and after the last.
        let reads = readers.read(service.process.address, READERS, REST.as_secs() + seconds + 3);
        let (read, bought) = tokio::try_join!(reads, rush(service, stock, &words))?;
        results.reads.push(read.per_second());
        results.beside_readers.push(bought);

        // In alternating order, because the first has to share the machine with work left by the crowds before.
        for with_workers in if round % 2 == 1 { [false, true] } else { [true, false] } {
            eprintln!("round {round} of {rounds}: a rush {} workers", if with_workers { "beside" } else { "without" });
            let words = ["--buyers", RUSH_BUYERS];
            if !with_workers {
                results.alone.push(rush(service, RUSH_STOCK, &words).await?);
                continue;
            }
            let mut work = processes::work(&logs.join("work.log"), None)?;
            settled(sql).await?;
            relayed(sql).await?;
            results.with_workers.push(rush(service, RUSH_STOCK, &words).await?);
            settled(sql).await?;
            processes::stop(&mut work).await?;
        }
    }
    settle::audit(&[]).await?;
    Ok(results)
}

impl Results {
    pub fn markdown(&self, text: &mut String) {
        let row = |text: &mut String, name: &str, rounds: &[Rush], latency: fn(&Rush) -> Latency| {
            let ms = |figure: fn(Latency) -> f64| {
                Series::of(rounds.iter().map(|rush| figure(latency(rush)))).with_range(|ms| format!("{ms:.1}"))
            };
            let (p50, p99) = (ms(|of| of.p50_ms), ms(|of| of.p99_ms));
            let unavailable: u64 = rounds.iter().map(|rush| rush.unavailable).sum();
            let _ = writeln!(text, "| {name} | {p50} | {p99} | {unavailable} |");
        };
        text.push_str("| beside others | p50 ms | p99 ms | 503 or no answer |\n|---|---|---|---|\n");
        let beside = format!(
            "the same beside {READERS} connections that read, {} times a second",
            Series::of(self.reads.iter().copied()).with_range(thousands)
        );
        row(text, &format!("winners, {BESIDE_READERS} arrivals a second"), &self.quiet, |rush| rush.winners);
        row(text, &beside, &self.beside_readers, |rush| rush.winners);
        row(text, "the first second of a rush, `serve` alone", &self.alone, |rush| rush.first_second);
        row(text, "the same, with `work` beside it", &self.with_workers, |rush| rush.first_second);
        let _ = writeln!(text, "\nThe rush: {RUSH_BUYERS} buyers within ten seconds, {RUSH_STOCK} units.\n");
    }

    pub fn json(&self) -> Value {
        let all = |rounds: &[Rush]| rounds.iter().map(Rush::json).collect::<Vec<_>>();
        json!({
            "quiet": all(&self.quiet), "beside_readers": all(&self.beside_readers), "reads_a_second": self.reads,
            "rush_alone": all(&self.alone), "rush_with_workers": all(&self.with_workers),
        })
    }
}
