//! Whether payments slow down purchases: durable purchases without and with payments running, in turns.
//!
//! In both, the bank and `seckill work` are up: without payments, only the worker `ask` runs; with payments, `pay` too. The
//! bank takes payments from a backlog at its rate (`bank.rs`), and payments begin at the same rate (`payers.rs`). A round with far fewer
//! payments does not count, and is played again. The bench fails if that happens too often, or if a round without payments has any.
//!
//! All processes share the machine's processors. To tell their CPU time from a slower purchase path, the CPU time of
//! payments without purchases is measured too.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sqlx::PgPool;
use tokio::process::Child;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::bank::{Bank, RATE};
use crate::cases::{self, Case, Stage};
use crate::payers::Payers;
use crate::payments_table::{Pair, PaymentRound, Results};
use crate::processes::{self, Cpu, Meter};
use crate::settle;
use crate::wrk::CONNECTIONS;

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
    /// What `work` runs.
    workers: &'static str,
    log: PathBuf,
}

/// The workers that run without payments, and with payments.
const RESTING: &str = "ask";
const PAYING: &str = "pay,ask";

/// Measures the payments part. It takes the stage, because it also measures the CPU time of more processes.
pub async fn measure(
    mut stage: Stage<'_>,
    servers: &[(&'static str, u32)],
    sql: &PgPool,
    logs: &Path,
    rounds: u64,
    seconds: u64,
) -> anyhow::Result<Results> {
    let bank = Bank::open(&logs.join("bank.log"), stage.service.process.address).await?;
    let log = logs.join("pay.log");
    let orders = 2 * (payments_in(WARM_UP_S) + (rounds + SPARE_ROUNDS) * payments_in(seconds));
    let payers = Payers::prepare(&stage, sql, &log, orders).await?;
    let work = processes::work(&log, Some(PAYING))?;
    let mut behind = servers.to_vec();
    behind.push(("bank", bank.process.pid));
    stage.behind.clear();
    let mut bench = PaymentBench { stage, behind, payers, bank, work, workers: PAYING, log };

    bench.pair(true, WARM_UP_S, "warm-up").await?;
    let mut results = Results { seconds, rounds: Vec::new(), too_slow: 0 };
    for n in 1.. {
        // In alternating order, because the tables grow.
        let pair = bench.pair(n % 2 == 0, seconds, &format!("round {n}")).await?;
        if let Err(why) = pair.with.counts() {
            results.too_slow += 1;
            ensure!(results.too_slow <= SPARE_ROUNDS, "{why}: too many rounds do not count");
            eprintln!("round {n} does not count: {why}");
            continue;
        }
        results.rounds.push(pair);
        if results.rounds.len() as u64 == rounds {
            break;
        }
    }
    bench.run_workers(RESTING).await?;
    bench.payers.settle(&bench.log).await?;
    settle::audit(&["--channel", "--sale", &bench.payers.sale.to_string()]).await?;
    Ok(results)
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

/// Number of payments of a round, with and without purchases.
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

    async fn without(&mut self, seconds: u64) -> anyhow::Result<cases::Round> {
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
    async fn measure_alone_and_with_purchases(&self, seconds: u64) -> anyhow::Result<(Cpu, cases::Round)> {
        let meter = Meter::start(self.stage.service.process.pid, &self.stage.behind)?;
        let begun = Instant::now();
        sleep(Duration::from_secs(seconds)).await;
        let alone = meter.read(begun.elapsed().as_micros() as u64)?;
        Ok((alone, self.stage.play(Case::Winners, CONNECTIONS, seconds).await?))
    }
}
