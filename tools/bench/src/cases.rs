//! The cases that wrk plays. Each case has one kind of answer, and every answer is checked to be of that kind.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use tokio::time::sleep;

use crate::processes::{Cpu, Meter, Process};
use crate::service::{Answers, Buyer, Sale, Service};
use crate::wrk::{RecordFile, Seen};

/// Units for sale in the case in which every buyer gets one.
pub(crate) const PLENTY: i64 = 5_000_000;
/// The service must finish the requests that wrk did not wait for within this time.
const TIMEOUT_MS: u64 = 5000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Case {
    Hello,
    SoldOut,
    RefusedByRedis,
    Winners,
}

impl Case {
    /// All cases, in the order of a round.
    pub(crate) const ALL: [Self; 4] = [Self::Hello, Self::SoldOut, Self::RefusedByRedis, Self::Winners];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Hello => "hello-world POST",
            Self::SoldOut => "sold out, from memory",
            Self::RefusedByRedis => "sold out, asking Redis",
            Self::Winners => "bought, durable in PostgreSQL",
        }
    }

    /// The code of the only answer that this case may get, in the service's metrics.
    fn code(self) -> &'static str {
        match self {
            Self::Hello => "",
            Self::SoldOut | Self::RefusedByRedis => "sold-out",
            Self::Winners => "accepted",
        }
    }
}

/// The servers and buyers that the cases use. All servers stay up; the others are idle while one is measured.
pub(crate) struct Stage<'a> {
    pub hello: Process,
    /// The service with its default settings.
    pub service: &'a Service,
    /// The service without the memory of "sold out".
    pub no_memory: Service,
    /// The processes whose CPU time is measured, without the server that answers.
    pub behind: Vec<(&'static str, u32)>,
    /// Buyers of the rounds, and the file of their requests.
    pub buyers: Vec<Buyer>,
    pub records: RecordFile,
    /// Buyers who make sales sold out, and take no part in the rounds.
    pub first: Vec<Buyer>,
}

pub(crate) struct Round {
    pub seen: Seen,
    pub cpu_us: Cpu,
    pub during: Range<SystemTime>,
}

impl Stage<'_> {
    async fn sold_out(&self) -> anyhow::Result<Sale> {
        let sale = self.service.sale(self.first.len().cast_signed() as i64).await?;
        sale.sell_out(self.service, &self.first).await?;
        Ok(sale)
    }

    pub(crate) async fn play(&self, case: Case, connections: u64, seconds: u64) -> anyhow::Result<Round> {
        // In a sale that was just created, no buyer has a ticket or is counted by a limit.
        let (server, sale) = match case {
            Case::Hello => {
                let round = self.load(&self.hello, &self.service.sale(0).await?, connections, seconds).await?;
                ensure!(round.seen.refused == 0, "hello-world refused {} requests", round.seen.refused);
                return Ok(round);
            }
            Case::SoldOut => (self.service, &self.sold_out().await?),
            Case::RefusedByRedis => (&self.no_memory, &self.no_memory.sale(0).await?),
            Case::Winners => (self.service, &self.service.sale(PLENTY).await?),
        };
        let before = server.answers().await?;
        let round = self.load(&server.process, sale, connections, seconds).await?;
        let seen = &round.seen;
        let is_bought = case == Case::Winners;
        let refused = if is_bought { 0 } else { seen.requests };
        ensure!(seen.refused == refused, "{case:?}: {} of {} were refused", seen.refused, seen.requests);
        let asked = self.check(case, server, &before, seen).await?.asked;
        // From memory: each thread calls Redis again when its memory expires.
        let as_meant = if case == Case::SoldOut { asked < seen.requests / 10 } else { asked >= seen.requests };
        ensure!(as_meant, "{case:?}: Redis was asked for {asked} of {}", seen.requests);
        if is_bought {
            let rows = server.purchases(sale.id).await?;
            ensure!(seen.is_all(rows), "{rows} purchases for {} answers of 202", seen.requests);
        }
        Ok(round)
    }

    /// Sends purchases in one sale, by one buyer after another.
    pub(crate) async fn load(
        &self,
        server: &Process,
        sale: &Sale,
        connections: u64,
        seconds: u64,
    ) -> anyhow::Result<Round> {
        let meter = Meter::start(server.pid, &self.behind)?;
        let begun = SystemTime::now();
        let seen = self.records.post(server.address, (&sale.path, &sale.body), connections, seconds).await?;
        let during = begun..SystemTime::now();
        let cpu_us = meter.read(seen.requests)?;
        Ok(Round { seen, cpu_us, during })
    }

    /// Checks by the service's metrics that all answers had the case's code. Returns those answers.
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
