//! What is measured over HTTP. Each case has one kind of answer, and every answer is checked to be of that kind.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use tokio::time::sleep;

use crate::live_pages::{self, Managers};
use crate::processes::{Meter, Process};
use crate::service::{Answers, Sale, Service};
use crate::wrk::{self, Buyers, Seen};

/// Units for sale in the case in which every buyer gets one.
pub const PLENTY: i64 = 5_000_000;
/// The service must finish the requests that wrk did not wait for within this time.
const TIMEOUT_MS: u64 = 5000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    Hello,
    SoldOut,
    RefusedByRedis,
    Winners,
    /// The same, while live pages of the sale are open.
    WatchedWinners,
}

impl Case {
    /// All cases, in the order of a round.
    pub const ALL: [Self; 5] = [Self::Hello, Self::SoldOut, Self::RefusedByRedis, Self::Winners, Self::WatchedWinners];

    pub fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::SoldOut => "sold_out",
            Self::RefusedByRedis => "refused_by_redis",
            Self::Winners => "winners",
            Self::WatchedWinners => "watched_winners",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Hello => "hello-world POST",
            Self::SoldOut => "sold out, from memory",
            Self::RefusedByRedis => "sold out, asking Redis",
            Self::Winners => "bought, durable in PostgreSQL",
            Self::WatchedWinners => "bought, beside ten live pages of the console",
        }
    }

    /// The code of the only answer that this case may get, in the service's metrics.
    fn code(self) -> &'static str {
        match self {
            Self::Hello => "",
            Self::SoldOut | Self::RefusedByRedis => "sold-out",
            Self::Winners | Self::WatchedWinners => "accepted",
        }
    }
}

/// The servers and buyers that the cases use. All servers stay up; those that are not measured are idle.
pub struct Stage<'a> {
    pub hello: Process,
    /// The service with its default settings.
    pub service: &'a Service,
    /// The service without the memory of "sold out".
    pub no_memory: Service,
    /// The processes whose CPU time is measured, besides the server that answers.
    pub behind: Vec<(&'static str, u32)>,
    pub buyers: Buyers,
    pub managers: Managers,
    /// Those who buy whatever is to be sold out, and take no part in the rounds.
    pub first: Vec<String>,
    /// A sale that is sold out.
    pub sold_out: Sale,
}

/// One case in one round.
pub struct Round {
    pub seen: Seen,
    /// Microseconds of CPU per request, by process.
    pub cpu_us: Vec<(&'static str, f64)>,
    pub during: Range<SystemTime>,
    /// Buyers in a call to Redis, and winners in a commit, on average; 0 where there was none.
    pub buyers_a_call: f64,
    pub winners_a_commit: f64,
}

impl Stage<'_> {
    /// A new sale that is sold out to these buyers.
    async fn sold_out_to(&self, buyers: &[String]) -> anyhow::Result<Sale> {
        let sale = self.service.sale(buyers.len().cast_signed() as i64).await?;
        sale.sell_out(self.service, buyers).await?;
        Ok(sale)
    }

    pub async fn play(&self, case: Case, connections: u64, seconds: u64) -> anyhow::Result<Round> {
        // In a sale that was just created, no buyer has a ticket or is counted by a limit.
        let (server, sale) = match case {
            Case::Hello => {
                let round = self.load(&self.hello, &self.sold_out, connections, seconds).await?;
                ensure!(round.seen.refused == 0, "hello-world refused {} requests", round.seen.refused);
                return Ok(round);
            }
            Case::SoldOut => (self.service, &self.sold_out_to(&self.first).await?),
            Case::RefusedByRedis => (&self.no_memory, &self.no_memory.sale(0).await?),
            Case::Winners | Case::WatchedWinners => (self.service, &self.service.sale(PLENTY).await?),
        };
        let pages = match case {
            Case::WatchedWinners => Some(self.managers.watch(server, sale).await?),
            _ => None,
        };
        let before = server.answers().await?;
        let mut round = self.load(&server.process, sale, connections, seconds).await?;
        if let Some(mut pages) = pages {
            ensure!(pages.len() == live_pages::PAGES && pages.try_join_next().is_none(), "a live page was closed");
        }
        let seen = &round.seen;
        let is_bought = matches!(case, Case::Winners | Case::WatchedWinners);
        let refused = if is_bought { 0 } else { seen.requests };
        ensure!(seen.refused == refused, "{case:?}: {} of {} were refused", seen.refused, seen.requests);
        let given = self.check(case, server, &before, seen).await?;
        let asked = given.asked.purchases;
        match case {
            // Each thread calls Redis again when its memory expires.
            Case::SoldOut => ensure!(asked < seen.requests / 10, "Redis was asked for {asked} of {}", seen.requests),
            _ => {
                ensure!(asked >= seen.requests, "Redis was asked for {asked} of {} only", seen.requests);
            }
        }
        if is_bought {
            let rows = server.purchases(sale.id).await?;
            ensure!(seen.is_all(rows), "{rows} purchases for {} answers of 202", seen.requests);
        }
        (round.buyers_a_call, round.winners_a_commit) = (given.asked.mean(), given.committed.mean());
        Ok(round)
    }

    /// Sends purchases in one sale, by one buyer after another.
    pub async fn load(&self, server: &Process, sale: &Sale, connections: u64, seconds: u64) -> anyhow::Result<Round> {
        let meter = Meter::start(server.pid, &self.behind)?;
        let begun = SystemTime::now();
        let seen = wrk::post(&self.buyers, server.address, (&sale.path, &sale.body), connections, seconds).await?;
        let during = begun..SystemTime::now();
        let cpu_us = meter.read(seen.requests)?;
        Ok(Round { seen, cpu_us, during, buyers_a_call: 0.0, winners_a_commit: 0.0 })
    }

    /// Checks by the service's metrics that all answers had the case's code. Returns what it gave.
    async fn check(&self, case: Case, server: &Service, before: &Answers, seen: &Seen) -> anyhow::Result<Answers> {
        let mut waited_ms = 0;
        loop {
            let given = server.answers().await?.since(before);
            if given.by_code.len() == 1 && given.by_code.get(case.code()).is_some_and(|n| seen.is_all(*n)) {
                return Ok(given);
            }
            ensure!(waited_ms < TIMEOUT_MS, "{case:?}: wrk has {} answers; the service gave {given:?}", seen.requests);
            waited_ms += 50;
            sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Round {
    pub fn cpu_us(&self, process: &str) -> f64 {
        self.cpu_us.iter().find(|(name, _)| *name == process).map_or(f64::NAN, |(_, us)| *us)
    }
}
