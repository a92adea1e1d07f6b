//! A sale of 100,000 units to a million buyers, and smaller sales to smaller crowds, with `serve`, `work` and all queues running.
//!
//! Every unit must be sold once, and the audit must hold. A request must cost the same whether ten thousand came or a million. So
//! all crowds arrive at one rate, which the machine can serve: a crowd is as long as it is large.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};
use sqlx::PgPool;
use tokio::time::sleep;

use crate::TOKENS;
use crate::arrivals::{self, Crowd, LATE_MAX, Seen, Slot};
use crate::chart::{Axis, Chart};
use crate::processes::{self, Meter, seckill};
use crate::series::{Series, thousands, two_places};
use crate::service::{Sale, Service};
use crate::settle;
use crate::timeline::{self, Bucket, Waits};
use crate::wrk::{Buyers, BuyersWriter};

/// Arrivals a second: by docs/speed.md, two processors serve so many winners and settle them, with the generator beside them.
pub const RATE: u64 = 5_000;
const BUYERS: usize = 1_000_000;
/// The crowds, and how often each is played in a round: one of 10,000 takes too little time to be measured alone.
const CROWDS: [(usize, usize); 4] = [(10_000, 5), (100_000, 1), (300_000, 1), (BUYERS, 1)];
/// Of so many buyers one gets a unit.
const BUYERS_A_UNIT: usize = 10;
/// A round takes about five minutes at the default rate, and less than ten at the lowest.
const ROUNDS_MAX: u64 = 3;
/// Tokens that are in memory at a time.
const TOKENS_AT_ONCE: usize = 50_000;
/// All units must be settled, and their expiries relayed, so soon after the last arrival.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// The processes whose CPU time a request takes, and the generator.
const PROCESSES: [(&str, &str); 5] = [
    ("server", "server"),
    ("redis", "Redis"),
    ("postgres", "PostgreSQL"),
    ("work", "`work`"),
    ("rabbitmq", "RabbitMQ"),
];
const GENERATOR: &str = "bench";
/// Places along a chart.
const COLUMNS: usize = 40;

pub struct Results {
    rate: u64,
    /// By round, then by crowd.
    rounds: Vec<Vec<Played>>,
}

/// The crowds of one size in one round.
struct Played {
    of_winners: Waits,
    of_all: Waits,
    /// Answers with status 503, and arrivals without an answer.
    unavailable: u64,
    lost: u64,
    /// Until all units were settled, in seconds from the beginning: the longest.
    settled_s: f64,
    /// How late the generator was with one in a hundred requests, and with the latest.
    late: (Duration, Duration),
    /// Microseconds of CPU a request, by process.
    cpu_us: Vec<(&'static str, f64)>,
    /// The answers of the last crowd, over time.
    slots: Vec<Slot>,
}

struct Bench<'a> {
    service: &'a Service,
    /// The servers and the workers.
    behind: Vec<(&'static str, u32)>,
    sql: &'a PgPool,
    buyers: Buyers,
    /// Where the generator runs. It shares this processor with the others.
    processor: usize,
    rate: f64,
}

/// # Errors
/// A unit was not sold, or was sold twice, or an audit failed.
pub async fn measure(
    service: &Service,
    servers: &[(&'static str, u32)],
    sql: &PgPool,
    logs: &Path,
    rounds: u64,
    rate: u64,
) -> anyhow::Result<Results> {
    let rounds = rounds.min(ROUNDS_MAX);
    eprintln!("issuing the tokens of a million buyers");
    let buyers = buyers().await?;
    let log = logs.join("work.log");
    let mut work = processes::work(&log, None)?;
    let mut behind = servers.to_vec();
    behind.push(("work", work.id().context("the workers have ended")?));
    let processor = std::thread::available_parallelism()?.get() - 1;
    let bench = Bench { service, behind, sql, buyers, processor, rate: rate as f64 };
    bench.play(CROWDS[0].0, 1).await?;
    let mut results = Results { rate, rounds: Vec::new() };
    for n in 1..=rounds {
        let mut round = Vec::new();
        for (buyers, times) in CROWDS {
            let played = bench.play(buyers, times).await?;
            let (cost, p99) = (played.cost_us(), played.of_winners.p99_ms);
            let buyers = thousands(buyers as f64);
            eprintln!("round {n} of {rounds}: {buyers} buyers: {cost:.0} µs of CPU each, p99 of winners {p99:.0} ms");
            round.push(played);
        }
        ensure!(work.try_wait()?.is_none(), "the workers ended unexpectedly; see {}", log.display());
        results.rounds.push(round);
    }
    processes::stop(&mut work).await?;
    Ok(results)
}

/// The records of a million buyers. Their tokens are made in parts, all of which have equally long names.
async fn buyers() -> anyhow::Result<Buyers> {
    let mut writer = BuyersWriter::create(PathBuf::from(".dev/bench/million"))?;
    let count = TOKENS_AT_ONCE.to_string();
    for part in 0..BUYERS / TOKENS_AT_ONCE {
        let prefix = format!("m{part:02}-");
        seckill(&["token", "--count", &count, "--prefix", &prefix, "--out", TOKENS]).await?;
        let tokens = std::fs::read_to_string(TOKENS)?;
        let tokens: Vec<&str> = tokens.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
        writer.add(&tokens)?;
    }
    writer.finish()
}

impl Bench<'_> {
    /// Plays crowds of so many buyers, one after the other, each at a sale of its own.
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
            let (seen, settled) = tokio::try_join!(self.arrive(sale, buyers), self.settle(sale, buyers, units))?;
            settled_s = settled_s.max(settled.duration_since(begun).unwrap_or_default().as_secs_f64());
            all_seen.push(seen);
        }
        relayed(self.sql).await?;
        let cpu_us = meter.read((buyers * times) as u64)?;
        for (sale, seen) in sales.iter().zip(&all_seen) {
            check(self.sql, sale, units, seen).await?;
        }
        Ok(Played::of(all_seen, settled_s, cpu_us))
    }

    async fn arrive(&self, sale: &Sale, count: usize) -> anyhow::Result<Seen> {
        let crowd = Crowd { buyers: &self.buyers, count, rate: self.rate };
        arrivals::play(self.processor, self.service.process.address, sale, &crowd).await
    }

    async fn settle(&self, sale: &Sale, count: usize, units: i64) -> anyhow::Result<SystemTime> {
        let within = Duration::from_secs_f64(count as f64 / self.rate) + SETTLED_WITHIN;
        let settled = settle::all_settled(self.sql, sale.id, units, within).await;
        settled.context("this machine may need fewer arrivals a second: --rate")
    }
}

/// Waits until the outbox has nothing to relay, so that the work for all orders is in their cost.
async fn relayed(sql: &PgPool) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let pending: i64 =
            sqlx::query_scalar("SELECT count(*) FROM outbox WHERE status = 'pending'").fetch_one(sql).await?;
        if pending == 0 {
            return Ok(());
        }
        ensure!(begun.elapsed() < SETTLED_WITHIN, "{pending} rows of the outbox are not relayed");
        sleep(Duration::from_millis(50)).await;
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
    fn of(mut all: Vec<Seen>, settled_s: f64, cpu_us: Vec<(&'static str, f64)>) -> Self {
        let waits = |of: fn(&Slot) -> [&[u32]; 2]| {
            let slots = all.iter().flat_map(|seen| &seen.slots);
            Waits::of(slots.flat_map(of).flatten().copied().collect())
        };
        Self {
            of_winners: waits(|slot| [slot.accepted_us.as_slice(), &[]]),
            of_all: waits(|slot| [slot.accepted_us.as_slice(), slot.others_us.as_slice()]),
            unavailable: all.iter().map(|seen| seen.of_status(503)).sum(),
            lost: all.iter().map(|seen| seen.lost).sum(),
            settled_s,
            late: (
                all.iter().map(|seen| seen.late.0).max().unwrap_or_default(),
                all.iter().map(|seen| seen.late.1).max().unwrap_or_default(),
            ),
            cpu_us,
            slots: all.pop().map(|last| last.slots).unwrap_or_default(),
        }
    }

    fn cpu_us(&self, process: &str) -> f64 {
        self.cpu_us.iter().find(|(name, _)| *name == process).map_or(f64::NAN, |(_, us)| *us)
    }

    /// What a request costs all processes but the generator.
    fn cost_us(&self) -> f64 {
        PROCESSES.iter().map(|(process, _)| self.cpu_us(process)).sum()
    }

    fn json(&self) -> Value {
        let cpu: Map<_, _> = self.cpu_us.iter().map(|(name, us)| ((*name).to_owned(), json!(us))).collect();
        json!({
            "winners": self.of_winners.json(), "all": self.of_all.json(),
            "unavailable": self.unavailable, "lost": self.lost, "settled_s": self.settled_s,
            "cpu_us": cpu, "cost_us": self.cost_us(),
            "sent_late": { "p99_ms": self.late.0.as_secs_f64() * 1e3, "longest_ms": self.late.1.as_secs_f64() * 1e3 },
        })
    }
}

impl Results {
    fn of(&self, crowd: usize, figure: impl Fn(&Played) -> f64) -> Series {
        Series::of(self.rounds.iter().filter_map(|round| round.get(crowd)).map(figure))
    }

    fn cost(&self, crowd: usize) -> Series {
        self.of(crowd, Played::cost_us)
    }

    pub fn markdown(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "A unit for every {BUYERS_A_UNIT} buyers, who arrive evenly, {} a second, and do not try again; `serve`, `work` and the \
             generator on the same processors; rounds: {}. Every unit was sold once, and the audits held.\n",
            thousands(self.rate as f64),
            self.rounds.len()
        );
        text.push_str(
            "| buyers | winners: p50, p99, longest ms | all: p99, longest ms | 503 or no answer | settled after s",
        );
        PROCESSES.iter().for_each(|(_, title)| _ = write!(text, " | {title}"));
        text.push_str(" | all of these | of the smallest crowd's | generator |\n|---|---|---|---|---");
        text.push_str(&"|---".repeat(PROCESSES.len() + 3));
        text.push_str("|\n");
        for (crowd, (buyers, _)) in CROWDS.iter().enumerate() {
            self.row(text, crowd, *buyers);
        }
        text.push_str(
            "\nBy process: microseconds of CPU a request, until all orders are settled and their expiries relayed.\n\n",
        );
        let late = self.rounds.iter().flatten().filter(|played| played.late.0 > LATE_MAX).count();
        if late > 0 {
            let _ =
                writeln!(text, "The generator was late in {late} crowds: their waits are too long, never too short.\n");
        }
        text.push_str("The million buyers of the last round over time, and the time in which they bought:\n");
        charts(self.last_million()).iter().for_each(|chart| _ = write!(text, "\n{chart}"));
        text.push('\n');
    }

    /// The answers to the million of the last round, over time.
    fn last_million(&self) -> &[Slot] {
        self.rounds.last().and_then(|round| round.last()).map(|last| last.slots.as_slice()).unwrap_or_default()
    }

    fn row(&self, text: &mut String, crowd: usize, buyers: usize) {
        let ms = |figure: &dyn Fn(&Played) -> f64| format!("{:.1}", self.of(crowd, figure).median());
        let _ = write!(
            text,
            "| {} | {}, {}, {} | {}, {} | {} | {:.1}",
            thousands(buyers as f64),
            ms(&|played| played.of_winners.p50_ms),
            ms(&|played| played.of_winners.p99_ms),
            ms(&|played| played.of_winners.longest_ms),
            ms(&|played| played.of_all.p99_ms),
            ms(&|played| played.of_all.longest_ms),
            self.of(crowd, |played| (played.unavailable + played.lost) as f64).with_range(thousands),
            self.of(crowd, |played| played.settled_s).median(),
        );
        for (process, _) in PROCESSES {
            let _ = write!(text, " | {:.1}", self.of(crowd, |played| played.cpu_us(process)).median());
        }
        let (cost, ratio) = (self.cost(crowd), self.cost(crowd).over(&self.cost(0)));
        let generator = self.of(crowd, |played| played.cpu_us(GENERATOR)).median();
        let (cost, ratio) = (cost.with_range(|us| format!("{us:.1}")), ratio.with_range(two_places));
        let _ = writeln!(text, " | {cost} | {ratio} | {generator:.1} |");
    }

    pub fn json(&self) -> Value {
        let crowds = CROWDS.iter().enumerate().map(|(crowd, (buyers, times))| {
            let played = self.rounds.iter().filter_map(|round| round.get(crowd));
            let rounds: Vec<Value> = played.map(Played::json).collect();
            json!({
                "buyers": buyers, "units": buyers / BUYERS_A_UNIT, "times": times, "rounds": rounds,
                "cost_us": self.cost(crowd).json(), "of_the_smallest": self.cost(crowd).over(&self.cost(0)).json(),
            })
        });
        let crowds: Vec<Value> = crowds.collect();
        let slots = self.last_million();
        json!({
            "rate": self.rate,
            "crowds": crowds,
            // By the second, and finer while units were left.
            "over_time": timeline::json(&timeline::buckets(slots, 1000 / arrivals::SLOT_MS)),
            "while_selling": timeline::json(&narrow(timeline::selling(slots)).0),
        })
    }
}

/// What a chart shows of a bucket, if it shows it.
type Figure = Option<fn(&Bucket) -> f64>;

/// As many buckets as a chart has places, and their length in seconds all together.
fn narrow(slots: &[Slot]) -> (Vec<Bucket>, f64) {
    let width = slots.len().div_ceil(COLUMNS).max(1);
    let buckets = timeline::buckets(slots, width);
    let seconds = (buckets.len() * width * arrivals::SLOT_MS) as f64 / 1000.0;
    (buckets, seconds)
}

fn charts(slots: &[Slot]) -> [Chart; 4] {
    let chart = |title: &str, y, (buckets, seconds): &(Vec<Bucket>, f64), figures: [Figure; 2]| {
        let [bars, line] = figures.map(|figure| figure.map(|of| buckets.iter().map(of).collect()).unwrap_or_default());
        Chart { title: title.to_owned(), x: Axis::Numbers("seconds", *seconds), y, bars, line }
    };
    let (whole, selling) = (narrow(slots), narrow(timeline::selling(slots)));
    let answers: [Figure; 2] = [Some(|bucket| bucket.answers), Some(|bucket| bucket.winners)];
    [
        chart("Answers a second (bars), and winners (line)", "a second", &whole, answers),
        chart("How long answers took: p99", "ms", &whole, [None, Some(|bucket| bucket.of_all.p99_ms)]),
        chart("Winners a second, while units are left", "a second", &selling, [Some(|bucket| bucket.winners), None]),
        chart("How long winners waited: p99", "ms", &selling, [None, Some(|bucket| bucket.of_winners.p99_ms)]),
    ]
}
