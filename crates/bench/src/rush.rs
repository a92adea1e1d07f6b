//! The README's rush, with everything running: `serve`, `work` with all its queues, and `seckill load`, on the same processors.
//!
//! A wait counts from the moment at which the buyer was due. `seckill load` may be late itself: how late it sent stands beside it.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};
use sqlx::PgPool;
use tokio::time::sleep;

use crate::processes::{self, seckill};
use crate::series::Series;
use crate::service::Service;
use crate::settle;

/// One round says little: the first second is short.
const ROUNDS_MIN: u64 = 3;
/// All units must be sold and settled within this time.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);
/// In ten seconds, 60 % of the buyers wait for the start with the page open. Name, units, arguments.
const CROWDS: [(&str, i64, &[&str]); 2] = [
    ("20,000 buyers and 1,000 bots, 500 units", 500, &["--buyers", "20000", "--bots", "1000"]),
    ("20,000 buyers, 10,000 units", 10_000, &["--buyers", "20000"]),
];
/// The figures of a round: heading, and where `seckill load` reports it.
const FIGURES: [(&str, &str); 5] = [
    ("p50 ms", "/first_second/p50_ms"),
    ("p99 ms", "/first_second/p99_ms"),
    ("longest ms", "/first_second/max_ms"),
    ("sent late: p99 ms", "/first_second_lag/p99_ms"),
    ("of that the client's own", "/first_second_lag/own_p99_ms"),
];

pub struct Results {
    /// By crowd: the reports of `seckill load`, and the seconds until all orders were settled.
    rounds: [Vec<(Value, f64)>; 2],
}

/// # Errors
/// A rush does not sell all its units, or the audit fails.
pub async fn measure(service: &Service, sql: &PgPool, logs: &Path, rounds: u64) -> anyhow::Result<Results> {
    let rounds = rounds.max(ROUNDS_MIN);
    let mut work = processes::work(&logs.join("work.log"), None)?;
    let mut results = Results { rounds: [Vec::new(), Vec::new()] };
    eprintln!("rush: warm-up");
    play(service, sql, CROWDS[0].1, CROWDS[0].2).await?;
    for n in 1..=rounds {
        for ((name, units, words), played) in CROWDS.iter().zip(&mut results.rounds) {
            let (report, settled_s) = play(service, sql, *units, words).await?;
            eprintln!("round {n} of {rounds}: {name}: {}; settled after {settled_s:.1} s", report["first_second"]);
            played.push((report, settled_s));
        }
        ensure!(work.try_wait()?.is_none(), "the workers ended unexpectedly");
    }
    processes::stop(&mut work).await?;
    settle::audit(&[]).await?;
    Ok(results)
}

async fn play(service: &Service, sql: &PgPool, units: i64, words: &[&str]) -> anyhow::Result<(Value, f64)> {
    let (file, base) = (".dev/bench/load.json", format!("http://{}", service.process.address));
    let sale = service.sale(units).await?.id;
    let (begun, id) = (Instant::now(), sale.to_string());
    let words = [&["load", "--base", &base, "--sale", &id, "--json", file], words].concat();
    // `seckill load` also waits for the auditor, so the units are watched meanwhile.
    let settled = async {
        loop {
            let sold = sqlx::query_scalar("SELECT (total_stock - stock)::bigint FROM sales WHERE id = $1");
            let sold: i64 = sold.bind(sale).fetch_one(sql).await?;
            if sold == units {
                return Ok(begun.elapsed().as_secs_f64());
            }
            ensure!(begun.elapsed() < SETTLED_WITHIN, "{sold} of {units} units are settled after {SETTLED_WITHIN:?}");
            sleep(Duration::from_millis(20)).await;
        }
    };
    let (_, settled_s) = tokio::try_join!(seckill(&words), settled)?;
    let mut document: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let report = document["report"].take();
    report.pointer(FIGURES[0].1).context("the report has no first second")?;
    Ok((report, settled_s))
}

impl Results {
    fn series(rounds: &[(Value, f64)], figure: &str) -> Series {
        Series::of(rounds.iter().map(|(report, _)| report.pointer(figure).and_then(Value::as_f64).unwrap_or(f64::NAN)))
    }

    pub fn markdown(&self, text: &mut String) {
        let headings: Vec<&str> = FIGURES.iter().map(|(heading, _)| *heading).collect();
        let _ = writeln!(
            text,
            "The first second of a rush of ten, with `serve`, `work` and `seckill load` on the same processors:\n\n\
             | rush | {} | all settled, s after the command |\n|---|{}---|",
            headings.join(" | "),
            "---|".repeat(headings.len())
        );
        for ((name, ..), rounds) in CROWDS.iter().zip(&self.rounds) {
            let ms = FIGURES.map(|(_, figure)| Self::series(rounds, figure).with_range(|ms| format!("{ms:.0}")));
            let settled = Series::of(rounds.iter().map(|(_, seconds)| *seconds)).with_range(|s| format!("{s:.1}"));
            let _ = writeln!(text, "| {name} | {} | {settled} |", ms.join(" | "));
        }
        text.push('\n');
    }

    pub fn json(&self) -> Value {
        let crowds = CROWDS.iter().zip(&self.rounds).map(|((name, ..), rounds)| {
            let figures = FIGURES.iter().map(|(heading, figure)| (*heading, Self::series(rounds, figure).json()));
            let settled = Series::of(rounds.iter().map(|(_, seconds)| *seconds)).json();
            let figures = figures.chain([("settled s", settled)]).map(|(name, json)| (name.to_owned(), json));
            ((*name).to_owned(), figures.collect::<Map<_, _>>().into())
        });
        json!(crowds.collect::<Map<_, _>>())
    }
}
