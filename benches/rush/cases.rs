//! What is measured over HTTP: one kind of answer a case, and proof that every answer was of that kind.

use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use tokio::time::sleep;

use crate::processes::{Process, cpu_us};
use crate::service::{Codes, Service};
use crate::wrk::{self, Buyers, CONNECTIONS, Seen};

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
pub struct Stage {
    pub hello: Process,
    /// As it comes.
    pub service: Service,
    /// The same without its memory of "sold out".
    pub forgetful: Service,
    pub servers: Vec<(&'static str, u32)>,
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
}

impl Stage {
    pub async fn play(&self, case: Case, seconds: u64) -> anyhow::Result<Round> {
        // New buyers are new in every round: nobody has a ticket, or a count in a limit, of a sale that was just made.
        let (server, sale) = match case {
            Case::Hello => return self.load(&self.hello, &self.sold_out, seconds).await,
            Case::SoldOut => (&self.service, &self.sold_out),
            Case::RefusedByRedis => (&self.forgetful, &self.forgetful.sale(0).await?),
            Case::Winners => (&self.service, &self.service.sale(PLENTY).await?),
        };
        let before = server.codes().await?;
        let round = self.load(&server.process, sale, seconds).await?;
        let refused = if case == Case::Winners { 0 } else { round.seen.requests };
        ensure!(round.seen.refused == refused, "{case:?}: {} of {:?} were refused", round.seen.refused, round.seen);
        self.check(case, server, &before, &round.seen).await?;
        if case == Case::Winners {
            let rows = server.purchase_rows(sale.id).await?;
            let all = round.seen.requests..=round.seen.requests + CONNECTIONS;
            ensure!(all.contains(&rows), "{rows} purchase rows stand for {} answers of 202", round.seen.requests);
        }
        Ok(round)
    }

    async fn load(&self, server: &Process, sale: &Sale, seconds: u64) -> anyhow::Result<Round> {
        let mut processes = vec![("server", server.pid), ("wrk", std::process::id())];
        processes.extend(self.servers.iter().filter(|(name, _)| *name != "rabbitmq"));
        let before = cpu_us(&processes)?;
        let seen = wrk::post(&self.buyers, server.address, &sale.path, &sale.body, seconds).await?;
        let after = cpu_us(&processes)?;
        let used = before.iter().zip(after).map(|((name, from), (_, to))| (*name, to.saturating_sub(*from)));
        let cpu_us = used.map(|(name, us)| (name, us as f64 / seen.requests as f64)).collect();
        Ok(Round { seen, cpu_us })
    }

    /// Every answer had the one code, by the service's own count; wrk hangs up on some that it no longer waits for.
    async fn check(&self, case: Case, server: &Service, before: &Codes, seen: &Seen) -> anyhow::Result<()> {
        let mut waited_ms = 0;
        let given = loop {
            let given = server.codes().await?.since(before);
            if given.0.get(case.code()).is_some_and(|n| *n >= seen.requests) || waited_ms > PATIENCE_MS {
                break given;
            }
            waited_ms += 50;
            sleep(Duration::from_millis(50)).await;
        };
        let right = given.0.get(case.code()).copied().unwrap_or_default();
        let only = given.0.len() == 1 && (seen.requests..=seen.requests + CONNECTIONS).contains(&right);
        ensure!(only, "{case:?}: wrk has {} answers; the service gave {given:?}", seen.requests);
        Ok(())
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
