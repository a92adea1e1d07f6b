//! The README's rush, with everything running: `serve`, `work` with all its queues, and `seckill load`, all on the same processors.
//!
//! A wait counts from the moment at which the buyer was due. `seckill load` may be late itself: how late it sent, and how much of that was
//! its own doing, stands beside it.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sqlx::PgPool;

use crate::crowds::{self, Rush};
use crate::processes::{self, Meter};
use crate::series::{Series, thousands};
use crate::service::Service;
use crate::settle;

/// One round says little: the first second is short.
const ROUNDS_MIN: u64 = 3;
/// All units must be sold and settled within this time.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);
const MICROS: u64 = 1_000_000;

/// A crowd that rushes at a sale. In ten seconds, 60 % of its buyers wait for the start with the page open.
struct Crowd {
    name: &'static str,
    title: &'static str,
    units: i64,
    words: &'static [&'static str],
}

const CROWDS: [Crowd; 2] = [
    Crowd {
        name: "readme",
        title: "20,000 buyers and 1,000 bots, 500 units",
        units: 500,
        words: &["--buyers", "20000", "--bots", "1000"],
    },
    Crowd { name: "winners", title: "20,000 buyers, 10,000 units", units: 10_000, words: &["--buyers", "20000"] },
];

pub struct Results {
    /// By crowd.
    rounds: [Vec<Round>; 2],
}

/// A latency of the report.
#[derive(Debug, Clone, Copy)]
struct Latency {
    arrivals: f64,
    p50_ms: f64,
    p99_ms: f64,
    longest_ms: f64,
}

/// How late the requests of the first second were sent.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
struct Lag {
    p99_ms: f64,
    longest_ms: f64,
    /// The part of it in which a connection was free: the client's own.
    own_p99_ms: f64,
    own_longest_ms: f64,
    /// More than one in a hundred was sent over 50 ms late.
    fell_behind: bool,
}

struct Round {
    /// Of all who were due in the first second, from then on.
    first_second: Latency,
    /// How late they were sent.
    lag: Lag,
    winners_a_second: f64,
    /// From the beginning until the last unit was promised, and until all were settled.
    sold_out_s: f64,
    settled_s: f64,
    unavailable: u64,
    unanswered: u64,
    /// Seconds of CPU, by process.
    cpu_s: Vec<(&'static str, f64)>,
}

impl Latency {
    fn read(report: &Value, name: &str) -> Option<Self> {
        let of = &report[name];
        let number = |figure: &str| of[figure].as_f64();
        Some(Self {
            arrivals: number("arrivals")?,
            p50_ms: number("p50_ms")?,
            p99_ms: number("p99_ms")?,
            longest_ms: number("max_ms")?,
        })
    }

    fn json(&self) -> Value {
        let Self { arrivals, p50_ms, p99_ms, longest_ms } = self;
        json!({ "arrivals": arrivals, "p50_ms": p50_ms, "p99_ms": p99_ms, "longest_ms": longest_ms })
    }
}

/// # Errors
/// A rush does not sell all its units, or the books do not hold.
pub async fn measure(
    service: &Service,
    servers: &[(&'static str, u32)],
    sql: &PgPool,
    logs: &Path,
    rounds: u64,
) -> anyhow::Result<Results> {
    let rounds = rounds.max(ROUNDS_MIN);
    let log = logs.join("work.log");
    let mut work = processes::work(&log, None)?;
    let mut behind = servers.to_vec();
    behind.push(("work", work.id().context("the workers have ended")?));
    let mut results = Results { rounds: [Vec::new(), Vec::new()] };
    eprintln!("rush: warm-up");
    play(service, &behind, sql, &CROWDS[0]).await?;
    for n in 1..=rounds {
        for (crowd, played) in CROWDS.iter().zip(&mut results.rounds) {
            let round = play(service, &behind, sql, crowd).await?;
            let Latency { p50_ms, p99_ms, longest_ms, .. } = round.first_second;
            eprintln!(
                "round {n} of {rounds}: {}: p50, p99 and longest of the first second {p50_ms:.0}, {p99_ms:.0}, \
                 {longest_ms:.0} ms; settled after {:.1} s",
                crowd.title, round.settled_s
            );
            played.push(round);
        }
        ensure!(work.try_wait()?.is_none(), "the workers ended unexpectedly; see {}", log.display());
    }
    processes::stop(&mut work).await?;
    settle::audit(&[]).await?;
    Ok(results)
}

async fn play(service: &Service, behind: &[(&'static str, u32)], sql: &PgPool, crowd: &Crowd) -> anyhow::Result<Round> {
    let sale = service.sale(crowd.units).await?;
    let meter = Meter::start(service.process.pid, behind)?;
    // `seckill load` also waits for the auditor, so the units are watched meanwhile.
    let (report, settled) = tokio::try_join!(
        crowds::load(service, &sale, crowd.words),
        settle::all_settled(sql, sale.id, crowd.units, SETTLED_WITHIN)
    )?;
    let cpu_s = meter.read(MICROS)?;
    Round::read(&report, crowd.units, settled, cpu_s)
}

impl Round {
    fn read(report: &Value, units: i64, settled: SystemTime, cpu_s: Vec<(&'static str, f64)>) -> anyhow::Result<Self> {
        let began =
            DateTime::<Utc>::deserialize(&report["began_at"]).context("the report does not say when it began")?;
        let rush = Rush::read(report)?;
        // The bench's only child that ended meanwhile is `seckill load`, not wrk.
        let named = |(name, seconds): (&'static str, f64)| (if name == "wrk" { "load" } else { name }, seconds);
        Ok(Self {
            first_second: Latency::read(report, "first_second").context("the report has no first second")?,
            lag: Lag::deserialize(&report["first_second_lag"]).context("the report has no lag of the first second")?,
            winners_a_second: rush.winners_a_second,
            // A bot that lost its 202 does not ask for it again, so all may be sold and not all be known.
            sold_out_s: sold_out_s(report, units).unwrap_or(f64::NAN),
            settled_s: settled.duration_since(began.into()).unwrap_or_default().as_secs_f64(),
            unavailable: rush.unavailable,
            unanswered: report["unanswered"].as_u64().unwrap_or_default(),
            cpu_s: cpu_s.into_iter().map(named).collect(),
        })
    }

    fn json(&self) -> Value {
        let cpu: Map<_, _> = self.cpu_s.iter().map(|(name, seconds)| ((*name).to_owned(), json!(seconds))).collect();
        json!({
            "first_second": self.first_second.json(),
            "first_second_lag": self.lag,
            "winners_a_second": self.winners_a_second,
            "sold_out_s": self.sold_out_s,
            "settled_s": self.settled_s,
            "unavailable": self.unavailable,
            "unanswered": self.unanswered,
            "cpu_s": cpu,
        })
    }
}

/// When the last unit was promised: the end of the first step of a timeline in which as many orders were promised as there are units.
fn sold_out_s(report: &Value, units: i64) -> Option<f64> {
    let end_of = |timeline: &str, width: &str| {
        let all = |step: &&Value| step["orders_so_far"].as_i64().is_some_and(|orders| orders >= units);
        let from_ms = report[timeline].as_array()?.iter().find(all)?["from_ms"].as_f64()?;
        Some((from_ms + report[width].as_f64()?) / 1000.0)
    };
    end_of("first_second_timeline", "first_second_bucket_ms").or_else(|| end_of("timeline", "bucket_ms"))
}

impl Results {
    pub fn markdown(&self, text: &mut String) {
        let rounds = self.rounds[0].len();
        let _ = writeln!(
            text,
            "A rush of ten seconds, with `serve`, `work` and `seckill load` on the same processors; {rounds} rounds:\n\n\
             | rush | arrivals in the first second | p50 ms | p99 ms | longest ms | sent late: p99, longest ms | of that the \
             client's own | winners a second | sold out after s | all settled after s | 503 or no answer |\n\
             |---|---|---|---|---|---|---|---|---|---|---|"
        );
        for (crowd, rounds) in CROWDS.iter().zip(&self.rounds) {
            let of = |figure: &dyn Fn(&Round) -> f64| Series::of(rounds.iter().map(figure));
            let ms = |figure: &dyn Fn(&Round) -> f64| of(figure).with_range(|ms| format!("{ms:.0}"));
            let seconds = |figure: &dyn Fn(&Round) -> f64| of(figure).with_range(|s| format!("{s:.1}"));
            let pair = |one: &dyn Fn(&Round) -> f64, other: &dyn Fn(&Round) -> f64| {
                format!("{:.0}, {:.0}", of(one).median(), of(other).median())
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                crowd.title,
                thousands(of(&|round| round.first_second.arrivals).median()),
                ms(&|round| round.first_second.p50_ms),
                ms(&|round| round.first_second.p99_ms),
                ms(&|round| round.first_second.longest_ms),
                pair(&|round| round.lag.p99_ms, &|round| round.lag.longest_ms),
                pair(&|round| round.lag.own_p99_ms, &|round| round.lag.own_longest_ms),
                of(&|round| round.winners_a_second).with_range(thousands),
                seconds(&|round| round.sold_out_s),
                seconds(&|round| round.settled_s),
                rounds.iter().map(|round| round.unavailable).sum::<u64>(),
            );
        }
        text.push('\n');
        self.cpu(text);
        self.warnings(text);
    }

    /// What the processes used, so that the client's share of the processors is seen.
    fn cpu(&self, text: &mut String) {
        for (crowd, rounds) in CROWDS.iter().zip(&self.rounds) {
            let names = rounds.first().map(|round| round.cpu_s.iter().map(|(name, _)| *name));
            let used = names.into_iter().flatten().map(|name| {
                let of = |round: &Round| round.cpu_s.iter().filter(|(of, _)| *of == name).map(|(_, s)| s).sum::<f64>();
                format!("{name} {:.1}", Series::of(rounds.iter().map(of)).median())
            });
            let _ = writeln!(text, "Seconds of CPU, {}: {}.\n", crowd.title, used.collect::<Vec<_>>().join(", "));
        }
    }

    fn warnings(&self, text: &mut String) {
        let all = || self.rounds.iter().flatten();
        let behind = all().filter(|round| round.lag.fell_behind).count();
        if behind > 0 {
            let _ = writeln!(
                text,
                "In {behind} of {} rounds more than one request in a hundred was sent over 50 ms late: their waits are the client's \
                 as much as the server's.\n",
                all().count()
            );
        }
        let unanswered: u64 = all().map(|round| round.unanswered).sum();
        if unanswered > 0 {
            let _ = writeln!(text, "{unanswered} buyers never got a definite answer.\n");
        }
    }

    pub fn json(&self) -> Value {
        let crowds = CROWDS.iter().zip(&self.rounds).map(|(crowd, rounds)| {
            let rounds: Vec<Value> = rounds.iter().map(Round::json).collect();
            (crowd.name.to_owned(), json!({ "title": crowd.title, "units": crowd.units, "rounds": rounds }))
        });
        crowds.collect::<Map<_, _>>().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last unit is promised in the first second or later, and a report without it says so.
    #[test]
    fn the_end_of_the_stock_is_found_in_either_timeline() {
        let step = |from_ms: u64, orders: u64| json!({ "from_ms": from_ms, "orders_so_far": orders });
        let report = json!({
            "first_second_bucket_ms": 25, "first_second_timeline": [step(0, 0), step(25, 7)],
            "bucket_ms": 200, "timeline": [step(0, 7), step(200, 9)],
        });
        assert_eq!(sold_out_s(&report, 7), Some(0.05));
        assert_eq!(sold_out_s(&report, 9), Some(0.4));
        assert_eq!(sold_out_s(&report, 10), None);
    }
}
