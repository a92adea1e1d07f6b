//! The README's rush, with everything running: `serve`, `work` with all its queues, and `seckill load`, on the same processors.
//!
//! A wait counts from the moment at which the buyer was due. `seckill load` may be late itself: how late it sent stands beside it.

use std::time::{Duration, SystemTime};

use anyhow::ensure;
use serde_json::Value;

use crate::processes;
use crate::series::{Cell, Series, Table, one_place, whole};
use crate::{Setup, settle};

/// One round says little: the first second is short.
const ROUNDS_MIN: u64 = 3;
/// All units must be sold and settled within this time.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);
type Crowd = (&'static str, i64, &'static [&'static str]);
/// In ten seconds, 60 % of the buyers wait for the start with the page open. Name, units, arguments.
const CROWDS: [Crowd; 2] = [
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

pub(crate) async fn measure(setup: &Setup) -> anyhow::Result<Table> {
    let rounds = setup.rounds.max(ROUNDS_MIN);
    let mut work = processes::work(&setup.logs.join("work.log"), None)?;
    // By crowd: the reports of `seckill load`, and the seconds until all orders were settled.
    let mut all = CROWDS.map(|_| Vec::new());
    eprintln!("rush: warm-up");
    play(setup, CROWDS[0].1, CROWDS[0].2).await?;
    for n in 1..=rounds {
        for ((name, units, words), played) in CROWDS.iter().zip(&mut all) {
            let (report, settled_s) = play(setup, *units, words).await?;
            eprintln!("round {n} of {rounds}: {name}: {}; settled after {settled_s:.1} s", report["first_second"]);
            played.push((report, settled_s));
        }
        ensure!(work.try_wait()?.is_none(), "the workers ended unexpectedly");
    }
    processes::stop(&mut work).await?;
    settle::audit(&[]).await?;
    let row = |((name, ..), rounds): (&Crowd, &Vec<(Value, f64)>)| {
        let figure = |(column, figure): (&str, &str)| {
            let ms =
                rounds.iter().map(|(report, _)| report.pointer(figure).and_then(Value::as_f64).unwrap_or(f64::NAN));
            Cell::range(column, &Series::of(ms), whole)
        };
        let settled = Series::of(rounds.iter().map(|(_, seconds)| *seconds));
        let settled = Cell::range("all settled, s after the command", &settled, one_place);
        ((*name).to_owned(), FIGURES.map(figure).into_iter().chain([settled]).collect())
    };
    Ok(Table {
        above: "The first second of a rush of ten, with `serve`, `work` and `seckill load` on the same processors:"
            .to_owned(),
        heading: "rush",
        rows: CROWDS.iter().zip(&all).map(row).collect(),
        below: String::new(),
    })
}

async fn play(setup: &Setup, units: i64, words: &[&str]) -> anyhow::Result<(Value, f64)> {
    let sale = setup.service.sale(units).await?.id;
    let begun = SystemTime::now();
    // `seckill load` also waits for the auditor, so the units are watched meanwhile.
    let settled = settle::all_settled(&setup.sql, sale, units, SETTLED_WITHIN);
    let (report, settled) = tokio::try_join!(setup.service.rush(sale, words), settled)?;
    Ok((report, settled.duration_since(begun)?.as_secs_f64()))
}
