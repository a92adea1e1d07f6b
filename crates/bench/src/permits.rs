//! Checks per second over HTTP, by parallel callers: `POST /api/v1/flow/acquire`, and a public limiter server.

use std::time::Duration;

use anyhow::{Context, ensure};
use redis::Connection;
use serde_json::{Value, json};

use crate::limiter_scripts::calls_of;
use crate::processes::{Meter, seckill};
use crate::series::Series;
use crate::service::Service;
use crate::throttlecrab::{PLENTY, Throttlecrab};
use crate::wrk::{self, Seen};

/// Numbers of parallel callers. Each sends its next request after the last answer.
pub const CALLERS: [u64; 4] = [1, 10, 100, 256];
const MANY_KEYS: u64 = 10_000;
/// A server must count the requests that wrk did not wait for within this time.
const TIMEOUT_MS: u64 = 5000;

/// Which server is called, and over how many keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    OneKey,
    ManyKeys,
    /// A caller who was refused and does not wait is refused from memory.
    FromMemory,
    Other,
    OtherManyKeys,
}

impl Scenario {
    pub const ALL: [Self; 5] = [Self::OneKey, Self::ManyKeys, Self::FromMemory, Self::Other, Self::OtherManyKeys];

    pub fn title(self) -> &'static str {
        match self {
            Self::OneKey => "token bucket in Redis, one key",
            Self::ManyKeys => "token bucket in Redis, 10,000 keys",
            Self::FromMemory => "refused from memory",
            Self::Other => "throttlecrab-server, in its own memory, one key",
            Self::OtherManyKeys => "throttlecrab-server, in its own memory, 10,000 keys",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::OneKey => "one_key",
            Self::ManyKeys => "many_keys",
            Self::FromMemory => "refused_from_memory",
            Self::Other => "throttlecrab_one_key",
            Self::OtherManyKeys => "throttlecrab_many_keys",
        }
    }

    /// The policy that is used, and the only answer that it may give.
    fn policy(self) -> (&'static str, &'static str) {
        if self == Self::FromMemory { ("none", "refused") } else { ("plenty", "granted") }
    }

    fn is_other(self) -> bool {
        matches!(self, Self::Other | Self::OtherManyKeys)
    }
}

/// One measurement of a scenario.
pub struct Round {
    pub seen: Seen,
    /// Microseconds of CPU per check, by process.
    pub cpu_us: Vec<(&'static str, f64)>,
}

/// The service with its policies, and the other server.
pub struct Servers<'a> {
    service: &'a Service,
    servers: &'a [(&'static str, u32)],
    other: Option<&'a Throttlecrab>,
    token: String,
    redis: Connection,
}

impl<'a> Servers<'a> {
    /// Creates the application and the policies.
    pub async fn prepare(
        service: &'a Service,
        servers: &'a [(&'static str, u32)],
        other: Option<&'a Throttlecrab>,
        redis: &str,
    ) -> anyhow::Result<Self> {
        let token = seckill(&["app", "create", "bench"]).await?["token"].as_str().context("no token")?.to_owned();
        let set = ["policy", "set", "--app", "bench", "--name"];
        let plenty = PLENTY.to_string();
        let plenty = ["plenty", "--algorithm", "token-bucket", "--rate", &plenty, "--capacity", &plenty];
        let none = ["none", "--algorithm", "fixed-window", "--limit", "1", "--window-ms", "86400000"];
        seckill(&[&set[..], &plenty].concat()).await?;
        seckill(&[&set[..], &none].concat()).await?;
        let redis = redis::Client::open(redis)?.get_connection()?;
        Ok(Self { service, servers, other, token, redis })
    }

    /// Returns `None` if the scenario needs the other server and there is none.
    pub async fn measure(&mut self, scenario: Scenario, callers: u64, seconds: u64) -> anyhow::Result<Option<Round>> {
        let (process, path, head, body) = match (scenario.is_other(), self.other) {
            (true, None) => return Ok(None),
            (true, Some(other)) => (&other.process, "/throttle", String::new(), Throttlecrab::body()),
            (false, _) => {
                let head = format!("Authorization: Bearer {}\\n", self.token);
                let body = json!({ "app": "bench", "policy": scenario.policy().0, "key": "%s" });
                (&self.service.process, "/api/v1/flow/acquire", head, body)
            }
        };
        let keys = if matches!(scenario, Scenario::ManyKeys | Scenario::OtherManyKeys) { MANY_KEYS } else { 1 };
        let counted_before = self.counted(scenario).await?;
        let asked_before = calls_of(&mut self.redis, "evalsha")?;
        let meter = Meter::start(process.pid, self.servers)?;
        let arguments = [path, &head, &body.to_string(), &keys.to_string()];
        let seen = wrk::run("permits.lua", process.address, callers, &arguments, seconds).await?;
        let cpu_us = meter.read(seen.requests)?;
        let asked = calls_of(&mut self.redis, "evalsha")? - asked_before;
        ensure!(seen.refused == 0, "{scenario:?}: {} answers from 400 on", seen.refused);
        self.check_answers(scenario, counted_before, &seen, callers).await?;
        match scenario {
            Scenario::OneKey | Scenario::ManyKeys => {
                ensure!(asked >= seen.requests, "{scenario:?}: Redis was asked {asked} times");
            }
            Scenario::FromMemory | Scenario::Other | Scenario::OtherManyKeys => {
                ensure!(asked <= 100 + seen.requests / 10, "{scenario:?}: Redis was asked {asked} times");
            }
        }
        Ok(Some(Round { seen, cpu_us }))
    }

    /// Checks by the server's metrics that every answer was the scenario's.
    async fn check_answers(&self, scenario: Scenario, before: u64, seen: &Seen, callers: u64) -> anyhow::Result<()> {
        let mut waited_ms = 0;
        loop {
            let counted = self.counted(scenario).await? - before;
            // The first request is the only one granted. At the end, wrk closes its connections without waiting.
            if counted + 1 >= seen.requests && counted <= seen.requests + callers {
                return Ok(());
            }
            ensure!(
                waited_ms < TIMEOUT_MS,
                "{scenario:?}: wrk has {} answers; the server counts {counted}",
                seen.requests
            );
            waited_ms += 50;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn counted(&self, scenario: Scenario) -> anyhow::Result<u64> {
        if let (true, Some(other)) = (scenario.is_other(), self.other) {
            return other.allowed().await;
        }
        let (policy, answer) = scenario.policy();
        let url = format!("http://{}/metrics", self.service.process.address);
        let metrics = self.service.client.get(url).send().await?.text().await?;
        let name = format!("seckill_permits_total{{policy=\"{policy}\",answer=\"{answer}\"}} ");
        Ok(metrics.lines().find_map(|line| line.strip_prefix(&name)).map_or(Ok(0), str::parse)?)
    }
}

/// A scenario with this many callers.
pub struct Measured {
    pub scenario: Scenario,
    pub callers: u64,
    pub rounds: Vec<Round>,
}

impl Measured {
    pub fn series(&self, figure: impl Fn(&Round) -> f64) -> Series {
        Series::of(self.rounds.iter().map(figure))
    }

    pub fn rate(&self) -> Series {
        self.series(|round| round.seen.per_second())
    }

    pub fn cpu_us(&self, process: &str) -> Series {
        let of = |round: &Round| round.cpu_us.iter().find(|(name, _)| *name == process).map(|(_, us)| *us);
        self.series(|round| of(round).unwrap_or(f64::NAN))
    }

    fn json(&self) -> Value {
        let processes = self.rounds.first().map(|round| round.cpu_us.iter().map(|(name, _)| *name));
        let cpu = processes.into_iter().flatten().map(|name| (name.to_owned(), self.cpu_us(name).json()));
        json!({
            "way": self.scenario.name(),
            "callers": self.callers,
            "per_second": self.rate().json(),
            "p50_us": self.series(|round| round.seen.p50_us as f64).json(),
            "p99_us": self.series(|round| round.seen.p99_us as f64).json(),
            "cpu_us": cpu.collect::<serde_json::Map<_, _>>(),
        })
    }
}

/// Measures each scenario with each number of callers, once per round.
pub async fn measure(mut compared: Servers<'_>, rounds: usize, seconds: u64) -> anyhow::Result<Vec<Measured>> {
    let pairs = Scenario::ALL.into_iter().flat_map(|scenario| CALLERS.map(|callers| (scenario, callers)));
    let mut all: Vec<_> = pairs.map(|(scenario, callers)| Measured { scenario, callers, rounds: Vec::new() }).collect();
    for n in 1..=rounds {
        eprintln!("checks over HTTP: round {n} of {rounds}");
        for Measured { scenario, callers, rounds } in &mut all {
            rounds.extend(compared.measure(*scenario, *callers, seconds).await?);
        }
    }
    Ok(all)
}

pub fn json(measured: &[Measured]) -> Value {
    measured.iter().filter(|m| !m.rounds.is_empty()).map(Measured::json).collect::<Vec<_>>().into()
}
