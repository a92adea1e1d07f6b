//! What is measured over HTTP: one kind of answer a case, and proof that every answer was of that kind.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use serde_json::json;
use tokio::time::sleep;

use crate::processes::{Meter, Process};
use crate::service::{Answers, Service};
use crate::wrk::{self, Buyers, Seen};

/// Units for sale where everybody is to win.
const PLENTY: i64 = 5_000_000;
/// How long the service may take to finish what wrk did not wait for.
const PATIENCE_MS: u64 = 5000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    Hello,
    SoldOut,
    RefusedByRedis,
    Winners,
}

impl Case {
    /// In the order of a round.
    pub const ALL: [Self; 4] = [Self::Hello, Self::SoldOut, Self::RefusedByRedis, Self::Winners];

    pub fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::SoldOut => "sold_out",
            Self::RefusedByRedis => "refused_by_redis",
            Self::Winners => "winners",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Hello => "hello-world POST",
            Self::SoldOut => "sold out, from memory",
            Self::RefusedByRedis => "sold out, asking Redis",
            Self::Winners => "bought, durable in PostgreSQL",
        }
    }

    /// The service's word for the only answer that this case may get.
    fn code(self) -> &'static str {
        match self {
            Self::Hello => "",
            Self::SoldOut | Self::RefusedByRedis => "sold-out",
            Self::Winners => "accepted",
        }
    }
}

/// Everything that cases are played with. All of it stays up; what is not measured is idle.
pub struct Stage<'a> {
    pub hello: Process,
    /// As it comes.
    pub service: &'a Service,
    /// The same without its memory of "sold out".
    pub forgetful: Service,
    /// Whose CPU time is looked at, beside that of the server that answers.
    pub behind: Vec<(&'static str, u32)>,
    pub buyers: Buyers,
    /// A sale of which nothing is left.
    pub sold_out: Sale,
}

pub struct Sale {
    pub id: i64,
    path: String,
    body: String,
}

/// One case in one round.
pub struct Round {
    pub seen: Seen,
    /// Microseconds a request, by process.
    pub cpu_us: Vec<(&'static str, f64)>,
    pub during: Range<SystemTime>,
}

impl Stage<'_> {
    pub async fn play(&self, case: Case, seconds: u64) -> anyhow::Result<Round> {
        // New buyers are new in every round: nobody has a ticket, or a count in a limit, of a sale that was just made.
        let (server, sale) = match case {
            Case::Hello => {
                let round = self.load(&self.hello, &self.sold_out, seconds).await?;
                ensure!(round.seen.refused == 0, "hello-world refused {} requests", round.seen.refused);
                return Ok(round);
            }
            Case::SoldOut => (self.service, &self.sold_out),
            Case::RefusedByRedis => (&self.forgetful, &self.forgetful.sale(0).await?),
            Case::Winners => (self.service, &self.service.sale(PLENTY).await?),
        };
        let before = server.answers().await?;
        let round = self.load(&server.process, sale, seconds).await?;
        let seen = &round.seen;
        let refused = if case == Case::Winners { 0 } else { seen.requests };
        ensure!(seen.refused == refused, "{case:?}: {} of {} were refused", seen.refused, seen.requests);
        let asked = self.check(case, server, &before, seen).await?;
        match case {
            // Each thread asks again when its memory lapses, for those who come before the reply.
            Case::SoldOut => ensure!(asked < seen.requests / 10, "Redis was asked for {asked} of {}", seen.requests),
            _ => ensure!(asked >= seen.requests, "Redis was asked for {asked} of {} only", seen.requests),
        }
        if case == Case::Winners {
            let rows = server.purchase_rows(sale.id).await?;
            ensure!(seen.is_all(rows), "{rows} purchase rows stand for {} answers of 202", seen.requests);
        }
        Ok(round)
    }

    /// All buyers, one after another, on one sale.
    pub async fn load(&self, server: &Process, sale: &Sale, seconds: u64) -> anyhow::Result<Round> {
        let meter = Meter::start(server.pid, &self.behind)?;
        let begun = SystemTime::now();
        let seen = wrk::post(&self.buyers, server.address, &sale.path, &sale.body, seconds).await?;
        let during = begun..SystemTime::now();
        let cpu_us = meter.read(seen.requests)?;
        Ok(Round { seen, cpu_us, during })
    }

    /// Every answer had the one code, by the service's own count. Says for how many buyers it asked Redis.
    async fn check(&self, case: Case, server: &Service, before: &Answers, seen: &Seen) -> anyhow::Result<u64> {
        let mut waited_ms = 0;
        loop {
            let given = server.answers().await?.since(before);
            if given.by_code.len() == 1 && given.by_code.get(case.code()).is_some_and(|n| seen.is_all(*n)) {
                return Ok(given.asked_redis);
            }
            ensure!(waited_ms < PATIENCE_MS, "{case:?}: wrk has {} answers; the service gave {given:?}", seen.requests);
            waited_ms += 50;
            sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Sale {
    pub fn new(id: i64, key: &str) -> Self {
        Self { id, path: format!("/api/v1/sales/{id}/purchases"), body: json!({ "key": key }).to_string() }
    }

    /// Sells all that is left of it to these buyers.
    pub async fn sell_out(&self, service: &Service, tokens: &[&str]) -> anyhow::Result<()> {
        for token in tokens {
            let url = format!("http://{}{}", service.process.address, self.path);
            let purchase = service.client.post(url).bearer_auth(token);
            let answer = purchase.body(self.body.clone()).send().await?;
            ensure!(answer.status().as_u16() == 202, "a first buyer got {}", answer.text().await?);
        }
        Ok(())
    }
}

impl Round {
    pub fn cpu_us(&self, process: &str) -> f64 {
        self.cpu_us.iter().find(|(name, _)| *name == process).map_or(f64::NAN, |(_, us)| *us)
    }
}
