//! Whether payments slow the purchase path: durable purchases without and with payments running, in turns.
//!
//! In both, the bank is open and `seckill work` is up: in the one with `ask` alone, in the other with `pay` too, and the bank
//! takes what it can (`bank.rs`), out of a backlog, while as many payments begin (`payers.rs`). A round in which payments did
//! not go on at about the bank's rate, or went on where they should rest, fails the bench.
//!
//! Everything shares the machine's processors. So that one can tell what this costs from what the path itself loses, it is
//! also measured what payments take while nobody buys.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sqlx::PgPool;
use tokio::process::Child;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::bank::{Bank, RATE};
use crate::beside::{Found, Pair, PayOutcome};
use crate::cases::{self, Case, Stage};
use crate::payers::Payers;
use crate::processes::{self, Meter};
use crate::settle;

/// What must go on, in percent of the bank's rate. The channel's margin (docs/outflow.md) leaves 92, and late threads of a
/// machine that is all busy leave less.
const LEAST_PERCENT: f64 = 75.0;
/// Payments run before and after what is measured, too: so long at the most.
const SPARE_S: u64 = 6;
/// Payments of a round that have gone before it is measured.
const RUN_UP: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(30);
const WARM_UP_S: u64 = 1;

struct Stores<'a> {
    stage: Stage<'a>,
    /// The servers, and the bank.
    behind: Vec<(&'static str, u32)>,
    payers: Payers,
    bank: Bank,
    work: Child,
    log: PathBuf,
}

/// Who asks what became of payments, and who sends them, too.
const RESTING: &str = "ask";
const PAYING: &str = "pay,ask";

/// The last to use the stage: CPU time is that of more processes now.
pub async fn measure(
    mut stage: Stage<'_>,
    servers: &[(&'static str, u32)],
    sql: &PgPool,
    logs: &Path,
    rounds: u64,
    seconds: u64,
) -> anyhow::Result<Found> {
    let bank = Bank::open(&logs.join("bank.log"), stage.service.process.address).await?;
    let log = logs.join("pay.log");
    let orders = 2 * (payments_in(WARM_UP_S) + rounds * payments_in(seconds));
    let payers = Payers::prepare(&stage, sql, &log, orders).await?;
    let work = processes::work(&log, Some(RESTING))?;
    let mut behind = servers.to_vec();
    behind.push(("bank", bank.process.pid));
    stage.behind.clear();
    let mut shop = Stores { stage, behind, payers, bank, work, log };

    shop.pair(true, WARM_UP_S, "warm-up").await?;
    let mut found = Found { seconds, rounds: Vec::new() };
    for n in 1..=rounds {
        // Not always the same one on tables that grow.
        found.rounds.push(shop.pair(n % 2 == 0, seconds, &format!("round {n} of {rounds}")).await?);
    }
    shop.work_at(RESTING).await?;
    shop.payers.settle(&shop.log).await?;
    settle::audit(&["--channel", "--sale", &shop.payers.sale.to_string()]).await?;
    Ok(found)
}

/// Payments of a round: alone, and beside purchases.
fn payments_in(seconds: u64) -> u64 {
    RATE * (2 * seconds + SPARE_S)
}

impl Stores<'_> {
    async fn pair(&mut self, with_first: bool, seconds: u64, what: &str) -> anyhow::Result<Pair> {
        let pair = if with_first {
            let with = self.with(seconds).await?;
            Pair { without: self.without(seconds).await?, with }
        } else {
            Pair { without: self.without(seconds).await?, with: self.with(seconds).await? }
        };
        pair.tell(what);
        Ok(pair)
    }

    /// Ends the workers in good order, and starts these.
    async fn work_at(&mut self, workers: &'static str) -> anyhow::Result<()> {
        ensure!(self.work.try_wait()?.is_none(), "the workers ended by themselves; see {}", self.log.display());
        processes::end(&mut self.work).await?;
        self.work = processes::work(&self.log, Some(workers))?;
        self.stage.behind.clone_from(&self.behind);
        self.stage.behind.push(("work", self.work.id().context("the workers have ended")?));
        Ok(())
    }

    async fn without(&mut self, seconds: u64) -> anyhow::Result<cases::Round> {
        self.work_at(RESTING).await?;
        self.payers.wait_for_outcomes().await?;
        let round = self.stage.play(Case::Winners, seconds).await?;
        let took = self.bank.took(&round.during).await?;
        ensure!(took == 0, "the bank took {took} payments, and nobody should send any");
        Ok(round)
    }

    async fn with(&mut self, seconds: u64) -> anyhow::Result<PayOutcome> {
        let due = self.payers.take(payments_in(seconds));
        self.start_paying().await?;
        let stop = CancellationToken::new();
        let play = async {
            let played = self.alone_and_bought(seconds).await;
            stop.cancel();
            played
        };
        let (played, begun) = tokio::join!(play, self.payers.pay(due, &stop));
        let ((alone, round), begun) = (played?, begun?);
        ensure!(self.payers.backlog().await? > 0, "there were too few payments for {seconds} s");
        let took = self.bank.took(&round.during).await?;
        let begun = begun.iter().filter(|at| round.during.contains(*at)).count();
        let measured_s = round.during.end.duration_since(round.during.start)?.as_secs_f64();
        let (bank, begun) = (took as f64 / measured_s, begun as f64 / measured_s);
        let least = RATE as f64 * LEAST_PERCENT / 100.0;
        ensure!(bank >= least, "the bank took {bank:.0} payments a second, of {RATE}: the round does not count");
        ensure!(begun >= least, "{begun:.0} payments a second began, of {RATE}: the round does not count");
        Ok(PayOutcome { round, bank, begun, alone })
    }

    /// Until some have gone.
    async fn start_paying(&mut self) -> anyhow::Result<()> {
        let gone = self.payers.gone().await?;
        self.work_at(PAYING).await?;
        let begun = Instant::now();
        while self.payers.gone().await? < gone + RUN_UP {
            ensure!(begun.elapsed() < PATIENCE, "no payment leaves for the bank; see .dev/log/bench/pay.log");
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// While payments run: the cores that they keep busy, by process; then purchases beside them.
    async fn alone_and_bought(&self, seconds: u64) -> anyhow::Result<(Vec<(&'static str, f64)>, cases::Round)> {
        let meter = Meter::start(self.stage.service.process.pid, &self.stage.behind)?;
        let begun = Instant::now();
        sleep(Duration::from_secs(seconds)).await;
        let alone = meter.read(begun.elapsed().as_micros() as u64)?;
        Ok((alone, self.stage.play(Case::Winners, seconds).await?))
    }
}
