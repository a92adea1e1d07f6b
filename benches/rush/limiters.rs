//! The limiters' scripts alone, by redis-benchmark, in the same rounds as plain INCR on the same server: checks a second
//! over one key and over many. The calls are the library's own, overheard on their way to Redis.

use std::time::Duration;

use anyhow::{Context, ensure};
use redis::{Connection, Value as Reply, cmd};
use seckill::config::Config;
use seckill::domain::limiter::{Algorithm, AlgorithmKind, Parameters, SlotKey};
use seckill::gate::limiter::{Limiter, Take};
use serde_json::{Value, json};
use tokio::process::Command;
use uuid::Uuid;

use crate::medians::Series;
use crate::throttlecrab::{PLENTY, Throttlecrab};

const CONNECTIONS: u64 = 50;
/// What redis-benchmark puts a number for.
const DRAWN: &str = "__rand_int__";
/// About a second of a script's work, with one call under way on each connection; of those under way together, twice.
const CALLS: u64 = 20_000;

/// How a limiter is asked: over how many keys, and with how many calls under way on each connection.
pub const WAYS: [(Option<u64>, u64); 4] = [(None, 1), (None, 16), (Some(100_000), 1), (Some(100_000), 16)];

pub enum Asked {
    /// Redis's own counter, to compare with.
    Incr,
    Granted(Algorithm),
    Refused(Algorithm),
    Throttlecrab,
}

impl Asked {
    /// One limiter of each kind, so wide that (nearly) all is granted, and one that refuses.
    pub fn all() -> anyhow::Result<Vec<Self>> {
        let bucket = |capacity, rate, window_ms| Parameters {
            capacity: Some(capacity),
            rate: Some(rate),
            window_ms: Some(window_ms),
            ..Parameters::default()
        };
        let mut all = vec![Self::Incr];
        for &kind in AlgorithmKind::ALL {
            let window = |limit, window_ms| (Some(limit), Some(window_ms), None);
            // Of what is listed one by one, ten thousand are the most: at 100 ms, a hundred thousand a second.
            let (limit, window_ms, lease_ms) = match kind {
                AlgorithmKind::FixedWindow | AlgorithmKind::SlidingCounter => window(1_000_000_000, 1000),
                AlgorithmKind::SlidingLog => window(10_000, 100),
                AlgorithmKind::Concurrency => (Some(10_000), None, Some(100)),
                AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket => (None, None, None),
            };
            let given = match kind {
                AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket => bucket(1_000_000, 1_000_000, 1000),
                _ => Parameters { limit, window_ms, lease_ms, ..Parameters::default() },
            };
            all.push(Self::Granted(Algorithm::new(kind, &given)?));
        }
        all.push(Self::Refused(Algorithm::new(AlgorithmKind::TokenBucket, &bucket(1, 1, 3_600_000))?));
        all.push(Self::Throttlecrab);
        Ok(all)
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Incr => "incr",
            Self::Granted(algorithm) => algorithm.kind().as_str(),
            Self::Refused(_) => "refused",
            Self::Throttlecrab => "throttlecrab",
        }
    }

    pub fn title(&self) -> &'static str {
        match self {
            Self::Incr => "INCR, to compare with",
            Self::Granted(algorithm) => algorithm.kind().as_str(),
            Self::Refused(_) => "token-bucket of 1, refused",
            Self::Throttlecrab => "throttlecrab-server, `THROTTLE`: in its own memory, not in Redis",
        }
    }
}

/// What was measured of one, by `WAYS`; nothing, where there is no such server.
pub struct Measured {
    pub asked: Asked,
    pub rates: Option<[Series; 4]>,
}

/// Redis to itself: nobody else may be asking it, and what is in it goes.
pub async fn measure(url: &str, other: Option<&Throttlecrab>, rounds: usize) -> anyhow::Result<Vec<Measured>> {
    let mut redis = redis::Client::open(url)?.get_connection()?;
    let all = Asked::all()?;
    let mut rates = vec![[const { Vec::new() }; 4]; all.len()];
    for n in 1..=rounds {
        eprintln!("limiters in Redis: round {n} of {rounds}");
        for (asked, rates) in all.iter().zip(&mut rates) {
            for ((keys, pipeline), rates) in WAYS.into_iter().zip(rates) {
                let rate = match (asked, other) {
                    (Asked::Throttlecrab, None) => None,
                    (Asked::Throttlecrab, Some(other)) => Some(throttle(other, keys, pipeline).await?),
                    _ => Some(check(&mut redis, url, asked, keys, pipeline).await?),
                };
                rates.extend(rate);
            }
        }
    }
    let series = |rates: [Vec<f64>; 4]| rates.iter().all(|r| !r.is_empty()).then(|| rates.map(Series::of));
    Ok(all.into_iter().zip(rates).map(|(asked, rates)| Measured { asked, rates: series(rates) }).collect())
}

async fn check(
    redis: &mut Connection,
    url: &str,
    asked: &Asked,
    keys: Option<u64>,
    pipeline: u64,
) -> anyhow::Result<f64> {
    cmd("FLUSHALL").query::<()>(redis)?;
    let (key, calls) = (if keys.is_some() { DRAWN } else { "k" }, calls_with(pipeline));
    let (call, calls, keys) = match asked {
        Asked::Granted(algorithm) => (overhear(url, algorithm, key).await?, calls, keys),
        // Each key grants once: over fewer keys than calls, nearly all is refused.
        Asked::Refused(algorithm) => (overhear(url, algorithm, key).await?, calls, keys.map(|_| CALLS / 100)),
        _ => (vec!["INCR".into(), format!("bench:{key}")], calls * 5, keys),
    };
    cmd("FLUSHALL").query::<()>(redis)?;
    cmd("CONFIG").arg("RESETSTAT").query::<()>(redis)?;
    let rate = benchmark(&["-u", url], &call, calls, keys, pipeline).await?;

    // A grant writes once, by one of these commands; a refusal writes nothing.
    let asked_redis = calls_of(redis, if matches!(asked, Asked::Incr) { "incr" } else { "evalsha" })?;
    let grants = ["set", "zadd", "hincrby"].map(|command| calls_of(redis, command));
    let grants: u64 = grants.into_iter().sum::<anyhow::Result<u64>>()?;
    let (name, used) = (asked.name(), cmd("DBSIZE").query::<u64>(redis)?);
    ensure!(asked_redis.abs_diff(calls) <= CONNECTIONS * pipeline, "{name}: Redis counts {asked_redis} calls");
    let as_told = match asked {
        Asked::Granted(_) => grants * 2 > calls && grants <= asked_redis,
        Asked::Refused(_) => (1..=keys.unwrap_or(1)).contains(&grants),
        _ => grants == 0,
    };
    ensure!(as_told, "{name}: {grants} of {calls} calls were granted");
    ensure!(used * 10 >= keys.map_or(10, |keys| keys.min(calls)), "{name}: only {used} keys were written");
    Ok(rate)
}

fn calls_with(pipeline: u64) -> u64 {
    if pipeline > 1 { CALLS * 2 } else { CALLS }
}

async fn throttle(other: &Throttlecrab, keys: Option<u64>, pipeline: u64) -> anyhow::Result<f64> {
    let (before, calls) = (other.allowed().await?, calls_with(pipeline));
    let key = if keys.is_some() { DRAWN } else { "k" };
    let plenty = PLENTY.to_string();
    let call = ["THROTTLE", key, &plenty, &plenty, "1"].map(str::to_owned);
    let at = ["-h", &other.resp.ip().to_string(), "-p", &other.resp.port().to_string()];
    let rate = benchmark(&at, &call, calls, keys, pipeline).await?;
    let allowed = other.allowed().await? - before;
    ensure!(allowed.abs_diff(calls) <= CONNECTIONS * pipeline, "throttlecrab-server allowed {allowed} of {calls}");
    Ok(rate)
}

/// Calls a second.
async fn benchmark(at: &[&str], call: &[String], calls: u64, keys: Option<u64>, of: u64) -> anyhow::Result<f64> {
    let mut benchmark = Command::new("redis-benchmark");
    benchmark.args(at).args(["--csv", "-c", &CONNECTIONS.to_string(), "-P", &of.to_string(), "-n", &calls.to_string()]);
    // A lease is drawn too, and no two may be the same: redis-benchmark draws from so many at the most.
    benchmark.args(["-r", &keys.unwrap_or(2_147_483_647).to_string()]).args(call);
    let done = benchmark.kill_on_drop(true).output().await.context("redis-benchmark")?;
    let said = String::from_utf8_lossy(&done.stdout);
    let rate = said.lines().last().and_then(|line| line.split("\",\"").nth(1)?.parse().ok());
    rate.with_context(|| format!("redis-benchmark said: {said}{}", String::from_utf8_lossy(&done.stderr)))
}

/// The very call that the library makes for one permit of this key, with a lease to be drawn; its script is loaded.
async fn overhear(url: &str, algorithm: &Algorithm, key: &str) -> anyhow::Result<Vec<String>> {
    let mut spy = redis::Client::open(url)?.get_connection()?;
    spy.set_read_timeout(Some(Duration::from_secs(5)))?;
    cmd("MONITOR").query::<()>(&mut spy)?;
    let mut config = Config::load()?;
    config.flow.timeout_ms = 5000;
    let slot = SlotKey::new("bench", "limiter", key, false)?;
    let lease = (algorithm.kind() == AlgorithmKind::Concurrency).then(Uuid::new_v4);
    let take = Take { slot: &slot, algorithm, permits: 1, lease };
    let answer = Limiter::new(&config.redis, &config.flow)?.acquire(&[take]).await?;
    ensure!(answer.granted, "a first permit was refused");
    loop {
        let Reply::SimpleString(line) = spy.recv_response()? else { continue };
        // 1700000000.000000 [0 127.0.0.1:50000] "EVALSHA" "…" "1" "key" …
        let Some((_, words)) = line.split_once("] \"EVALSHA\" \"") else { continue };
        let mut call = vec!["EVALSHA".to_owned()];
        call.extend(words.strip_suffix('"').unwrap_or(words).split("\" \"").map(|word| match lease {
            Some(lease) if word == lease.to_string() => word.replace(&word[24..], DRAWN),
            _ => word.to_owned(),
        }));
        return Ok(call);
    }
}

/// How often Redis has carried out a command since it was told to forget, by scripts or without.
pub fn calls_of(redis: &mut Connection, command: &str) -> anyhow::Result<u64> {
    let said: String = cmd("INFO").arg("commandstats").query(redis)?;
    let line = said.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    Ok(line.and_then(|line| line.split(',').next()).map_or(Ok(0), str::parse)?)
}

pub fn json(measured: &[Measured]) -> Value {
    let row = |m: &Measured| {
        let names = ["one_key", "one_key_pipelined", "many_keys", "many_keys_pipelined"];
        let rates = m.rates.iter().flat_map(|rates| names.into_iter().zip(rates));
        let rates = rates.map(|(name, rate)| (name.to_owned(), rate.json())).collect::<serde_json::Map<_, _>>();
        (m.asked.name().to_owned(), json!(rates))
    };
    measured.iter().map(row).collect::<serde_json::Map<_, _>>().into()
}
