//! Purchases at many sales, and at many instances.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use futures_util::future::try_join_all;
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use crate::processes::Meter;
use crate::series::Series;
use crate::service::{Answers, Service};
use crate::wrk::{self, Buyers, CONNECTIONS};

/// Connections with which no purchase waits for others, so that none goes together with others.
pub const ALONE: u64 = 4;
/// Buyers that all rounds take in turn.
pub const BUYERS: u64 = 400_000;
/// The service must finish the requests that wrk did not wait for within this time.
const TIMEOUT_MS: u64 = 5000;
const UNAVAILABLE: &str = "temporarily-unavailable";
/// The processes whose CPU time is told.
pub const PROCESSES: [&str; 4] = ["server", "redis", "postgres", "wrk"];

/// What all requests of a play are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// 202, over many connections.
    Bought,
    /// 202, over few.
    BoughtAlone,
    /// 409, from memory as often as the sales are asked for. In a sale with shards a few are 503: some of its shards may not be empty.
    SoldOut,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Bought, Self::BoughtAlone, Self::SoldOut];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bought => "bought",
            Self::BoughtAlone => "bought_alone",
            Self::SoldOut => "sold_out",
        }
    }

    fn code(self) -> &'static str {
        match self {
            Self::Bought | Self::BoughtAlone => "accepted",
            Self::SoldOut => "sold-out",
        }
    }

    fn is_given(self, code: &str) -> bool {
        code == self.code() || self == Self::SoldOut && code == UNAVAILABLE
    }

    fn connections(self) -> u64 {
        match self {
            Self::Bought | Self::SoldOut => CONNECTIONS,
            Self::BoughtAlone => ALONE,
        }
    }
}

/// One play.
#[derive(Debug)]
pub struct Played {
    per_second: f64,
    /// Of the instance that was slowest.
    p50_us: f64,
    p99_us: f64,
    /// Microseconds of CPU a request, by process; of all instances together.
    cpu_us: BTreeMap<&'static str, f64>,
    /// The share for which Redis was asked; buyers in a call; winners in a commit.
    asked: f64,
    /// The share that was answered 503.
    unavailable: f64,
    buyers_a_call: f64,
    winners_a_commit: f64,
}

/// The rounds of one kind.
#[derive(Debug, Default)]
pub struct Rounds(pub Vec<Played>);

impl Rounds {
    fn of(&self, figure: impl Fn(&Played) -> f64) -> Series {
        Series::of(self.0.iter().map(figure))
    }

    pub fn per_second(&self) -> Series {
        self.of(|played| played.per_second)
    }

    pub fn cpu_us(&self, process: &str) -> Series {
        self.of(|played| played.cpu_us.get(process).copied().unwrap_or_default())
    }

    pub fn unavailable(&self) -> Series {
        self.of(|played| played.unavailable)
    }

    pub fn buyers_a_call(&self) -> Series {
        self.of(|played| played.buyers_a_call)
    }

    pub fn json(&self) -> Value {
        let cpu: Map<_, _> = PROCESSES.iter().map(|name| ((*name).to_owned(), self.cpu_us(name).json())).collect();
        json!({
            "requests_per_second": self.per_second().json(),
            "p50_us": self.of(|played| played.p50_us).json(),
            "p99_us": self.of(|played| played.p99_us).json(),
            "cpu_us": cpu,
            "asked_share": self.of(|played| played.asked).json(),
            "unavailable_share": self.unavailable().json(),
            "buyers_a_call": self.buyers_a_call().json(),
            "winners_a_commit": self.of(|played| played.winners_a_commit).json(),
        })
    }
}

/// Plays purchases at instances, which share the connections.
pub struct Player<'a> {
    buyers: &'a Buyers,
    /// The servers behind the service.
    behind: &'a [(&'static str, u32)],
    seconds: u64,
    /// The next buyer of those who win, and of those who hear "sold out": each play goes on where the last one ended, so that no buyer
    /// meets the limit per minute. The latter are many more, and would lead back to the same winners too soon.
    next_winner: u64,
    next_loser: u64,
}

impl<'a> Player<'a> {
    pub fn new(buyers: &'a Buyers, behind: &'a [(&'static str, u32)], seconds: u64) -> Self {
        Self { buyers, behind, seconds, next_winner: 0, next_loser: 0 }
    }

    pub async fn play(&mut self, kind: Kind, services: &[&Service], sales: &Path) -> anyhow::Result<Played> {
        let mut before = Vec::new();
        for service in services {
            before.push(service.answers().await?);
        }
        let others = services.iter().skip(1).map(|service| ("server", service.process.pid));
        let behind: Vec<(&'static str, u32)> = self.behind.iter().copied().chain(others).collect();
        let meter = Meter::start(services[0].process.pid, &behind)?;
        let connections = kind.connections() / services.len() as u64;
        let next = if kind == Kind::SoldOut { &mut self.next_loser } else { &mut self.next_winner };
        let from = *next;
        let plays = services.iter().enumerate().map(|(n, service)| {
            // The instances' generators begin far from each other, so that they send different buyers.
            let first = (from + n as u64 * BUYERS / services.len() as u64) % BUYERS;
            wrk::post_spread(self.buyers, first, service.process.address, sales, connections, self.seconds)
        });
        let seen = try_join_all(plays).await?;
        let requests = seen.iter().map(|seen| seen.requests).sum::<u64>();
        *next = (from + requests / services.len() as u64) % BUYERS;
        let mut cpu_us = BTreeMap::new();
        for (process, us) in meter.read(requests)? {
            *cpu_us.entry(process).or_default() += us;
        }
        let mut given = Vec::new();
        for ((service, before), seen) in services.iter().zip(&before).zip(&seen) {
            given.push(answered(kind, service, before, seen).await?);
        }
        let asked = given
            .iter()
            .fold((0, 0), |(buyers, calls), given| (buyers + given.asked.purchases, calls + given.asked.batches));
        let unavailable = given.iter().filter_map(|given| given.by_code.get(UNAVAILABLE)).sum::<u64>();
        let committed = given.iter().fold((0, 0), |(winners, commits), given| {
            (winners + given.committed.purchases, commits + given.committed.batches)
        });
        let mean = |(members, batches): (u64, u64)| members as f64 / batches.max(1) as f64;
        let slowest = |figure: fn(&wrk::Seen) -> u64| seen.iter().map(figure).max().unwrap_or_default() as f64;
        Ok(Played {
            per_second: seen.iter().map(wrk::Seen::per_second).sum(),
            p50_us: slowest(|seen| seen.p50_us),
            p99_us: slowest(|seen| seen.p99_us),
            cpu_us,
            asked: asked.0 as f64 / requests as f64,
            unavailable: unavailable as f64 / requests as f64,
            buyers_a_call: mean(asked),
            winners_a_commit: mean(committed),
        })
    }
}

/// What an instance gave, all of it of this kind. Waits until it gives no more: the last answers would count in the next play.
async fn answered(kind: Kind, service: &Service, before: &Answers, seen: &wrk::Seen) -> anyhow::Result<Answers> {
    let (mut waited_ms, mut last) = (0, 0);
    loop {
        let given = service.answers().await?.since(before);
        let sum = given.by_code.values().sum();
        if sum == last && seen.is_all(sum) && given.by_code.keys().all(|code| kind.is_given(code)) {
            return Ok(given);
        }
        ensure!(waited_ms < TIMEOUT_MS, "{kind:?}: wrk has {} answers; the service gave {given:?}", seen.requests);
        last = sum;
        waited_ms += 100;
        sleep(Duration::from_millis(100)).await;
    }
}
