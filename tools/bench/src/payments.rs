//! Whether payments slow down purchases: durable purchases without and with payments running, in turns.
//!
//! In both, the bank and `seckill work` are up: without payments, only the worker `ask` runs; with payments, `pay` too. The
//! bank takes payments from a backlog at its rate (`bank.rs`), and payments begin at the same rate (`payers.rs`).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::process::Child;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::bank::{Bank, RATE};
use crate::cases::{Case, Round, Stage};
use crate::payers::Payers;
use crate::processes::{self, Cpu, Meter};
use crate::series::{Cell, Series, Table, one_place, thousands, two_places, whole};
use crate::wrk::CONNECTIONS;
use crate::{Setup, settle};

/// Payments that a round must have, in percent of the bank's rate. The channel's margin (docs/delivery.md) leaves 92, and a
/// fully busy machine leaves less.
const LEAST_PERCENT: f64 = 75.0;
/// How many rounds that do not count are played again.
const SPARE_ROUNDS: u64 = 2;
/// Payments also run before and after the measurement, for at most this long.
const SPARE_S: u64 = 6;
/// A round is measured after this many of its payments have left.
const LEFT_BEFORE: u64 = 20;
const TIMEOUT: Duration = Duration::from_secs(30);
const WARM_UP_S: u64 = 1;

struct PaymentBench<'a> {
    stage: Stage<'a>,
    /// The processes whose CPU time is measured: the servers and the bank.
    behind: Vec<(&'static str, u32)>,
    payers: Payers,
    bank: Bank,
    work: Child,
    workers: &'static str,
    log: PathBuf,
}

/// The workers that run without payments, and with payments.
const RESTING: &str = "ask";
const PAYING: &str = "pay,ask";

const PROCESSES: [&str; 8] = ["server", "redis", "postgres", "wrk", "work", "bank", "rabbitmq", "bench"];

struct Pair {
    without: Round,
    with: PaymentRound,
}

/// A round of purchases with payments running.
struct PaymentRound {
    round: Round,
    /// Payments per second that the bank took, and that were begun.
    bank: f64,
    begun: f64,
    /// Cores that payments kept busy without purchases, by process.
    alone: Cpu,
}

/// One of the two rounds that are compared.
type Side = fn(&Pair) -> &Round;
const WITHOUT: Side = |pair| &pair.without;
const WITH: Side = |pair| &pair.with.round;
const SIDES: [(&str, Side); 2] = [("without payments", WITHOUT), ("with payments running", WITH)];

impl Pair {
    fn log(&self, what: &str) {
        for (title, side) in SIDES {
            let round = side(self);
            let cpu = round.cpu_us.list();
            let rate = thousands(round.seen.per_second());
            eprintln!("{what}: {}, {title}: {rate} a second; µs of CPU each: {cpu}", Case::Winners.title());
        }
        let PaymentRound { bank, begun, .. } = self.with;
        eprintln!("{what}: the bank took {bank:.0} payments a second, {begun:.0} began");
    }
}

/// Measures the payments part. It takes the stage, because it also measures the CPU time of more processes.
pub(crate) async fn measure(setup: &Setup, mut stage: Stage<'_>) -> anyhow::Result<Table> {
    let Setup { sql, logs, rounds, seconds, .. } = setup;
    let (rounds, seconds) = (*rounds, *seconds);
    let bank = Bank::open(&logs.join("bank.log"), stage.service.process.address).await?;
    let log = logs.join("pay.log");
    let orders = 2 * (payments_in(WARM_UP_S) + (rounds + SPARE_ROUNDS) * payments_in(seconds));
    let payers = Payers::prepare(&stage, sql, &log, orders).await?;
    let work = processes::work(&log, Some(PAYING))?;
    let behind = [&setup.servers[..], &[("bank", bank.process.pid)]].concat();
    stage.behind.clear();
    let mut bench = PaymentBench { stage, behind, payers, bank, work, workers: PAYING, log };

    bench.pair(true, WARM_UP_S, "warm-up").await?;
    let (mut pairs, mut too_slow) = (Vec::new(), 0);
    for n in 1.. {
        // In alternating order, because the tables grow.
        let pair = bench.pair(n % 2 == 0, seconds, &format!("round {n}")).await?;
        if let Err(why) = pair.with.counts() {
            too_slow += 1;
            ensure!(too_slow <= SPARE_ROUNDS, "{why}: too many rounds do not count");
            eprintln!("round {n} does not count: {why}");
            continue;
        }
        pairs.push(pair);
        if pairs.len() as u64 == rounds {
            break;
        }
    }
    bench.run_workers(RESTING).await?;
    bench.payers.settle(&bench.log).await?;
    settle::audit(&["--channel", "--sale", &bench.payers.sale.to_string()]).await?;
    Ok(table(&pairs, seconds, too_slow))
}

/// `too_slow`: rounds that were played again, because too few payments ran in them.
fn table(pairs: &[Pair], seconds: u64, too_slow: u64) -> Table {
    let of = |figure: &dyn Fn(&Pair) -> f64| Series::of(pairs.iter().map(figure));
    let rate = |side: Side| of(&|pair| side(pair).seen.per_second());
    let by_process = |cpu: &dyn Fn(&Pair) -> &Cpu| {
        PROCESSES.map(|process| Cell::median(process, &of(&|pair| cpu(pair).of(process)), two_places))
    };
    let cores = |series: Series| Cell::median("cores, all", &series, two_places);
    let row = |(title, side): (&str, Side)| {
        let ms = |column, figure: fn(&Round) -> u64| {
            Cell::median(column, &of(&|pair| figure(side(pair)) as f64 / 1000.0), one_place)
        };
        let busy = of(&|pair| side(pair).cpu_us.sum() * side(pair).seen.per_second() / 1e6);
        let cells = [
            Cell::range("a second", &rate(side), thousands),
            Cell::range("of that without", &rate(side).over(&rate(WITHOUT)), two_places),
            ms("p50 ms", |round| round.seen.p50_us),
            ms("p99 ms", |round| round.seen.p99_us),
        ];
        (
            title.to_owned(),
            cells.into_iter().chain(by_process(&|pair| &side(pair).cpu_us)).chain([cores(busy)]).collect(),
        )
    };
    let alone = by_process(&|pair| &pair.with.alone).into_iter().chain([cores(of(&|pair| pair.with.alone.sum()))]);
    Table {
        above: format!("{} rounds of {seconds} s.", pairs.len()),
        heading: "bought, durable",
        rows: vec![row(SIDES[0]), row(SIDES[1]), ("payments alone, in cores".to_owned(), alone.collect())],
        below: format!(
            "By process: microseconds of CPU a purchase. Payments running: each second the bank ({RATE} a second) takes {} of a \
             backlog and tells the service of each, and {} more begin. The last row is the cost of payments while nobody buys. \
             Rounds that did not count, because fewer payments ran than three quarters of the bank's rate: {too_slow}.",
            of(&|pair| pair.with.bank).with_range(whole),
            of(&|pair| pair.with.begun).with_range(whole),
        ),
    }
}

impl PaymentRound {
    /// Whether payments ran at about the bank's rate.
    fn counts(&self) -> anyhow::Result<()> {
        let (bank, begun, least) = (self.bank, self.begun, RATE as f64 * LEAST_PERCENT / 100.0);
        ensure!(bank >= least, "the bank took {bank:.0} payments a second, of {RATE}");
        ensure!(begun >= least, "{begun:.0} payments a second began, of {RATE}");
        Ok(())
    }
}

fn payments_in(seconds: u64) -> u64 {
    RATE * (2 * seconds + SPARE_S)
}

impl PaymentBench<'_> {
    async fn pair(&mut self, with_first: bool, seconds: u64, what: &str) -> anyhow::Result<Pair> {
        let pair = if with_first {
            let with = self.with(seconds).await?;
            Pair { without: self.without(seconds).await?, with }
        } else {
            Pair { without: self.without(seconds).await?, with: self.with(seconds).await? }
        };
        pair.log(what);
        Ok(pair)
    }

    /// Stops the workers and starts these.
    async fn run_workers(&mut self, workers: &'static str) -> anyhow::Result<()> {
        ensure!(self.work.try_wait()?.is_none(), "the workers ended unexpectedly; see {}", self.log.display());
        // The first of them have only just been started, and would not stop cleanly.
        if self.workers != workers {
            processes::stop(&mut self.work).await?;
            self.work = processes::work(&self.log, Some(workers))?;
            self.workers = workers;
        }
        self.stage.behind.clone_from(&self.behind);
        self.stage.behind.push(("work", self.work.id().context("the workers have ended")?));
        Ok(())
    }

    async fn without(&mut self, seconds: u64) -> anyhow::Result<Round> {
        self.run_workers(RESTING).await?;
        self.payers.wait_for_outcomes().await?;
        let round = self.stage.play(Case::Winners, CONNECTIONS, seconds).await?;
        let took = self.bank.payments_taken(&round.during).await?;
        ensure!(took == 0, "the bank took {took} payments where none should be sent");
        Ok(round)
    }

    async fn with(&mut self, seconds: u64) -> anyhow::Result<PaymentRound> {
        let due = self.payers.take(payments_in(seconds));
        self.start_paying().await?;
        let stop = CancellationToken::new();
        let play = async {
            let played = self.measure_alone_and_with_purchases(seconds).await;
            stop.cancel();
            played
        };
        let (played, begun) = tokio::join!(play, self.payers.pay(due, &stop));
        let ((alone, round), begun) = (played?, begun?);
        ensure!(self.payers.backlog().await? > 0, "there were too few payments for {seconds} s");
        let took = self.bank.payments_taken(&round.during).await?;
        let begun = begun.iter().filter(|at| round.during.contains(*at)).count();
        let measured_s = round.during.end.duration_since(round.during.start)?.as_secs_f64();
        let (bank, begun) = (took as f64 / measured_s, begun as f64 / measured_s);
        Ok(PaymentRound { round, bank, begun, alone })
    }

    /// Starts payments and waits until the first have left.
    async fn start_paying(&mut self) -> anyhow::Result<()> {
        let before = self.payers.departed().await?;
        self.run_workers(PAYING).await?;
        let begun = Instant::now();
        while self.payers.departed().await? < before + LEFT_BEFORE {
            ensure!(begun.elapsed() < TIMEOUT, "no payment leaves for the bank; see .dev/log/bench/pay.log");
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// While payments run: measures the cores that they keep busy, by process, then purchases.
    async fn measure_alone_and_with_purchases(&self, seconds: u64) -> anyhow::Result<(Cpu, Round)> {
        let meter = Meter::start(self.stage.service.process.pid, &self.stage.behind)?;
        let begun = Instant::now();
        sleep(Duration::from_secs(seconds)).await;
        let alone = meter.read(begun.elapsed().as_micros() as u64)?;
        Ok((alone, self.stage.play(Case::Winners, CONNECTIONS, seconds).await?))
    }
}
