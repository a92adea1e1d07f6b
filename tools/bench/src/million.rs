//! A sale of 100,000 units to a million buyers, and smaller sales to smaller crowds, with `serve`, `work` and all queues running. All crowds
//! arrive at one rate, which the machine can serve: a larger crowd takes longer.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use sqlx::PgPool;

use crate::arrivals::{self, Seen, waits};
use crate::processes::{self, Cpu, Meter};
use crate::series::{Cell, Series, Table, one_place, percentile_ms, thousands, two_places};
use crate::service::{self, Sale, Service};
use crate::wrk::{RecordFile, RecordWriter};
use crate::{Setup, settle};

/// Arrivals a second: two processors serve and settle this many, with the generator beside them (docs/speed.md).
pub(crate) const RATE: u64 = 5_000;
const BUYERS: usize = 1_000_000;
/// The crowds, and how often each is played in a round: a single one of 10,000 would be too short to measure.
const CROWDS: [(usize, usize); 4] = [(10_000, 5), (100_000, 1), (300_000, 1), (BUYERS, 1)];
/// One in this many buyers gets a unit.
const BUYERS_A_UNIT: usize = 10;
/// A round takes about five minutes at the default rate, and less than ten at the lowest.
const ROUNDS_MAX: u64 = 3;
/// Tokens in memory at a time.
const TOKENS_AT_ONCE: usize = 50_000;
/// From the last arrival until all units are settled and their expiries relayed.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// The processes that serve a request, and the generator.
const PROCESSES: [(&str, &str); 5] = [
    ("server", "server"),
    ("redis", "Redis"),
    ("postgres", "PostgreSQL"),
    ("work", "`work`"),
    ("rabbitmq", "RabbitMQ"),
];
const GENERATOR: &str = "bench";

/// The crowds of one size in one round.
struct Played {
    /// p50, p99 and longest wait, in ms.
    of_winners: [f64; 3],
    of_all: [f64; 3],
    /// Answers with status 503, and arrivals without an answer.
    unavailable: u64,
    lost: u64,
    /// Until all units were settled, in seconds from the beginning: the longest.
    settled_s: f64,
    is_late: bool,
    cpu_us: Cpu,
}

struct Bench<'a> {
    service: &'a Service,
    /// The servers and the workers.
    behind: Vec<(&'static str, u32)>,
    sql: &'a PgPool,
    buyers: RecordFile,
    /// Where the generator runs. It shares this processor with the others.
    processor: usize,
    rate: f64,
}

pub(crate) async fn measure(setup: &Setup, rate: u64) -> anyhow::Result<Table> {
    let Setup { service, sql, .. } = setup;
    let rounds = setup.rounds.min(ROUNDS_MAX);
    eprintln!("issuing the tokens of a million buyers");
    let buyers = all_buyers().await?;
    let log = setup.logs.join("work.log");
    let mut work = processes::work(&log, None)?;
    let behind = [&setup.servers[..], &[("work", work.id().context("the workers have ended")?)]].concat();
    let processor = std::thread::available_parallelism()?.get() - 1;
    let bench = Bench { service, behind, sql, buyers, processor, rate: rate as f64 };
    bench.play(CROWDS[0].0, 1).await?;
    let mut all = Vec::new();
    for n in 1..=rounds {
        let mut round = Vec::new();
        for (buyers, times) in CROWDS {
            let played = bench.play(buyers, times).await?;
            let (cost, p99) = (played.cost_us(), played.of_winners[1]);
            let buyers = thousands(buyers as f64);
            eprintln!("round {n} of {rounds}: {buyers} buyers: {cost:.0} µs of CPU each, p99 of winners {p99:.0} ms");
            round.push(played);
        }
        ensure!(work.try_wait()?.is_none(), "the workers ended unexpectedly; see {}", log.display());
        all.push(round);
    }
    processes::stop(&mut work).await?;
    Ok(table(&all, rate))
}

fn table(rounds: &[Vec<Played>], rate: u64) -> Table {
    let row = |(crowd, (buyers, _)): (usize, &(usize, usize))| {
        let at = |crowd: usize, figure: &dyn Fn(&Played) -> f64| {
            Series::of(rounds.iter().filter_map(|round| round.get(crowd)).map(figure))
        };
        let ms = |column: &str, figure: fn(&Played) -> f64| Cell::median(column, &at(crowd, &figure), one_place);
        let unavailable = at(crowd, &|played| (played.unavailable + played.lost) as f64);
        let cpu = |column: &str, process: &str| {
            Cell::median(column, &at(crowd, &|played| played.cpu_us.of(process)), one_place)
        };
        let cost = at(crowd, &Played::cost_us);
        let mut cells = vec![
            ms("winners: p50 ms", |played| played.of_winners[0]),
            ms("p99", |played| played.of_winners[1]),
            ms("longest", |played| played.of_winners[2]),
            ms("all: p99 ms", |played| played.of_all[1]),
            ms("longest of all", |played| played.of_all[2]),
            Cell::range("503 or no answer", &unavailable, thousands),
            ms("settled after s", |played| played.settled_s),
        ];
        cells.extend(PROCESSES.map(|(process, column)| cpu(column, process)));
        cells.extend([
            Cell::range("all of these", &cost, one_place),
            Cell::range("of the smallest crowd's", &cost.over(&at(0, &Played::cost_us)), two_places),
            cpu("generator", GENERATOR),
        ]);
        (thousands(*buyers as f64), cells)
    };
    let late = rounds.iter().flatten().filter(|played| played.is_late).count();
    Table {
        above: format!(
            "A unit for every {BUYERS_A_UNIT} buyers, who arrive evenly, {} a second, and do not try again; `serve`, `work` and \
             the generator on the same processors; rounds: {}. Every unit was sold once, and the audits held.",
            thousands(rate as f64),
            rounds.len()
        ),
        heading: "buyers",
        rows: CROWDS.iter().enumerate().map(row).collect(),
        below: format!(
            "By process: microseconds of CPU a request, until all orders are settled and their expiries relayed. Crowds in which \
             the generator was late, so that the waits are too long: {late}."
        ),
    }
}

/// The records of a million buyers. Their tokens are issued in parts, whose names are equally long.
async fn all_buyers() -> anyhow::Result<RecordFile> {
    let mut writer = RecordWriter::create(PathBuf::from(".dev/bench/million"))?;
    for part in 0..BUYERS / TOKENS_AT_ONCE {
        writer.add(&service::buyers(TOKENS_AT_ONCE as u64, &format!("m{part:02}-")).await?)?;
    }
    writer.finish()
}

impl Bench<'_> {
    /// Plays several crowds of this size, one after the other, each at a sale of its own.
    async fn play(&self, buyers: usize, times: usize) -> anyhow::Result<Played> {
        let units = (buyers / BUYERS_A_UNIT).cast_signed() as i64;
        let mut sales = Vec::new();
        for _ in 0..times {
            sales.push(self.service.sale(units).await?);
        }
        let meter = Meter::start(self.service.process.pid, &self.behind)?;
        let (mut all_seen, mut settled_s) = (Vec::new(), 0f64);
        for sale in &sales {
            let begun = SystemTime::now();
            let to = self.service.process.address;
            let arriving = arrivals::play(self.processor, to, sale, &self.buyers, buyers, self.rate);
            let within = Duration::from_secs_f64(buyers as f64 / self.rate) + SETTLED_WITHIN;
            let settling = async {
                let settled = settle::all_settled(self.sql, sale.id, units, within).await;
                settled.context("this machine may need fewer arrivals a second: --rate")
            };
            let (seen, settled) = tokio::try_join!(arriving, settling)?;
            settled_s = settled_s.max(settled.duration_since(begun).unwrap_or_default().as_secs_f64());
            all_seen.push(seen);
        }
        // The work for all orders is in their cost.
        let pending = "SELECT count(*) FROM outbox WHERE status = 'pending'";
        settle::wait_for(self.sql, pending, None, 0, SETTLED_WITHIN).await?;
        let cpu_us = meter.read((buyers * times) as u64)?;
        for (sale, seen) in sales.iter().zip(&all_seen) {
            check(self.sql, sale, units, seen).await?;
        }
        Ok(Played::of(&all_seen, settled_s, cpu_us))
    }
}

/// Checks that every unit was sold once, each to another buyer, and that each 202 has its order.
async fn check(sql: &PgPool, sale: &Sale, units: i64, seen: &Seen) -> anyhow::Result<()> {
    let count = sqlx::query_as(
        "SELECT count(*), count(DISTINCT user_id), coalesce(sum(quantity), 0)::bigint FROM orders WHERE sale_id = $1",
    );
    let sold: (i64, i64, i64) = count.bind(sale.id).fetch_one(sql).await?;
    ensure!(sold == (units, units, units), "{units} units: orders, buyers and units sold are {sold:?}");
    // A buyer without an answer, or with a 503, may have an order.
    let (promised, units) = (seen.of_status(202), units.unsigned_abs());
    let unsure = seen.lost + seen.of_status(503);
    ensure!(
        promised <= units && promised + unsure >= units,
        "{units} units, {promised} answers of 202, {unsure} arrivals with a 503 or without an answer"
    );
    settle::audit(&["--sale", &sale.id.to_string()]).await
}

impl Played {
    fn of(all: &[Seen], settled_s: f64, cpu_us: Cpu) -> Self {
        let answers = || all.iter().flat_map(|seen| &seen.answers);
        let figures = |waits: Vec<u32>| [0.5, 0.99, 1.0].map(|share| percentile_ms(&waits, share));
        Self {
            of_winners: figures(waits(answers().filter(|answer| answer.status == 202))),
            of_all: figures(waits(answers())),
            unavailable: all.iter().map(|seen| seen.of_status(503)).sum(),
            lost: all.iter().map(|seen| seen.lost).sum(),
            settled_s,
            is_late: all.iter().any(Seen::is_late),
            cpu_us,
        }
    }

    /// The cost of a request in all processes but the generator.
    fn cost_us(&self) -> f64 {
        PROCESSES.iter().map(|(process, _)| self.cpu_us.of(process)).sum()
    }
}
