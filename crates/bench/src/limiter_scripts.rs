//! The limiters' scripts alone, by redis-benchmark, in the same rounds as plain INCR: checks per second over one key and
//! over many keys. The calls are those that the library makes, recorded with MONITOR.

use std::time::Duration;

use anyhow::{Context, ensure};
use redis::{Connection, Value as Reply, cmd};
use seckill::config::Config;
use seckill::domain::limiter::{Algorithm, AlgorithmKind, Parameters, SlotKey};
use seckill::gate::limiter::{Limiter, Take};
use serde_json::{Value, json};
use tokio::process::Command;
use uuid::Uuid;

use crate::series::Series;
use crate::throttlecrab::{PLENTY, Throttlecrab};

const CONNECTIONS: u64 = 50;
/// redis-benchmark replaces this by a random number.
const RANDOM: &str = "__rand_int__";
/// About one second of work for a script. With pipelining, twice as many calls are made.
const CALLS: u64 = 20_000;

/// How a limiter is called: over how many keys (`None` for one), and with how many calls in flight on each connection.
pub const LOADS: [(Option<u64>, u64); 4] = [(None, 1), (None, 16), (Some(100_000), 1), (Some(100_000), 16)];

pub enum Target {
    /// Redis's own counter, to compare with.
    Incr,
    Granted(Algorithm),
    Refused(Algorithm),
    Throttlecrab,
}

impl Target {
    /// One limiter of each kind, so large that nearly every call is granted, and one that refuses.
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
            // These list their permits one by one, at most 10,000 of them; with 100 ms, that is 100,000 per second.
            let (limit, window_ms, lease_ms) = match kind {
                AlgorithmKind::FixedWindow | AlgorithmKind::SlidingCounter => window(1_000_000_000, 1000),
                AlgorithmKind::SlidingLog => window(10_000, 100),
                AlgorithmKind::Concurrency => (Some(10_000), None, Some(100)),
                AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket => (None, None, None),
            };
            let given = match kind {
                AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket => bucket(1_000_000, 1_000_000, 1000),
                AlgorithmKind::FixedWindow
                | AlgorithmKind::SlidingCounter
                | AlgorithmKind::SlidingLog
                | AlgorithmKind::Concurrency => Parameters { limit, window_ms, lease_ms, ..Parameters::default() },
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

/// The rates of one target, in the order of `LOADS`; none if throttlecrab-server is not installed.
pub struct Measured {
    pub target: Target,
    pub rates: Option<[Series; 4]>,
}

/// Measures all targets. Nothing else may use this Redis, and its data is lost.
pub async fn measure(url: &str, other: Option<&Throttlecrab>, rounds: usize) -> anyhow::Result<Vec<Measured>> {
    let mut redis = redis::Client::open(url)?.get_connection()?;
    let all = Target::all()?;
    let mut rates = vec![[const { Vec::new() }; 4]; all.len()];
    for n in 1..=rounds {
        eprintln!("limiters in Redis: round {n} of {rounds}");
        for (target, rates) in all.iter().zip(&mut rates) {
            for ((keys, pipeline), rates) in LOADS.into_iter().zip(rates) {
                let rate = match (target, other) {
                    (Target::Throttlecrab, None) => None,
                    (Target::Throttlecrab, Some(other)) => Some(throttle(other, keys, pipeline).await?),
                    (Target::Incr | Target::Granted(_) | Target::Refused(_), _) => {
                        Some(check(&mut redis, url, target, keys, pipeline).await?)
                    }
                };
                rates.extend(rate);
            }
        }
    }
    let series = |rates: [Vec<f64>; 4]| rates.iter().all(|r| !r.is_empty()).then(|| rates.map(Series::of));
    Ok(all.into_iter().zip(rates).map(|(target, rates)| Measured { target, rates: series(rates) }).collect())
}

async fn check(
    redis: &mut Connection,
    url: &str,
    target: &Target,
    keys: Option<u64>,
    pipeline: u64,
) -> anyhow::Result<f64> {
    cmd("FLUSHALL").query::<()>(redis)?;
    let (key, calls) = (if keys.is_some() { RANDOM } else { "k" }, calls_with(pipeline));
    let (call, calls, keys) = match target {
        Target::Granted(algorithm) => (record_call(url, algorithm, key).await?, calls, keys),
        // Each key grants once, so with fewer keys than calls nearly every call is refused.
        Target::Refused(algorithm) => (record_call(url, algorithm, key).await?, calls, keys.map(|_| CALLS / 100)),
        Target::Incr | Target::Throttlecrab => (vec!["INCR".into(), format!("bench:{key}")], calls * 5, keys),
    };
    cmd("FLUSHALL").query::<()>(redis)?;
    cmd("CONFIG").arg("RESETSTAT").query::<()>(redis)?;
    let rate = benchmark(&["-u", url], &call, calls, keys, pipeline).await?;

    // A grant makes one of these writes; a refusal writes nothing.
    let asked_redis = calls_of(redis, if matches!(target, Target::Incr) { "incr" } else { "evalsha" })?;
    let grants = ["set", "zadd", "hincrby"].map(|command| calls_of(redis, command));
    let grants: u64 = grants.into_iter().sum::<anyhow::Result<u64>>()?;
    let (name, used) = (target.name(), cmd("DBSIZE").query::<u64>(redis)?);
    ensure!(asked_redis.abs_diff(calls) <= CONNECTIONS * pipeline, "{name}: Redis counts {asked_redis} calls");
    let as_expected = match target {
        Target::Granted(_) => grants * 2 > calls && grants <= asked_redis,
        Target::Refused(_) => (1..=keys.unwrap_or(1)).contains(&grants),
        Target::Incr | Target::Throttlecrab => grants == 0,
    };
    ensure!(as_expected, "{name}: {grants} of {calls} calls were granted");
    ensure!(used * 10 >= keys.map_or(10, |keys| keys.min(calls)), "{name}: only {used} keys were written");
    Ok(rate)
}

fn calls_with(pipeline: u64) -> u64 {
    if pipeline > 1 { CALLS * 2 } else { CALLS }
}

async fn throttle(other: &Throttlecrab, keys: Option<u64>, pipeline: u64) -> anyhow::Result<f64> {
    let (before, calls) = (other.allowed().await?, calls_with(pipeline));
    let key = if keys.is_some() { RANDOM } else { "k" };
    let plenty = PLENTY.to_string();
    let call = ["THROTTLE", key, &plenty, &plenty, "1"].map(str::to_owned);
    let at = ["-h", &other.resp.ip().to_string(), "-p", &other.resp.port().to_string()];
    let rate = benchmark(&at, &call, calls, keys, pipeline).await?;
    let allowed = other.allowed().await? - before;
    ensure!(allowed.abs_diff(calls) <= CONNECTIONS * pipeline, "throttlecrab-server allowed {allowed} of {calls}");
    Ok(rate)
}

/// Runs redis-benchmark and returns calls per second.
async fn benchmark(at: &[&str], call: &[String], calls: u64, keys: Option<u64>, pipeline: u64) -> anyhow::Result<f64> {
    let mut benchmark = Command::new("redis-benchmark");
    benchmark.args(at).args([
        "--csv",
        "-c",
        &CONNECTIONS.to_string(),
        "-P",
        &pipeline.to_string(),
        "-n",
        &calls.to_string(),
    ]);
    // A lease is a random number too, and must be unique: this is the largest range that redis-benchmark takes.
    benchmark.args(["-r", &keys.unwrap_or(2_147_483_647).to_string()]).args(call);
    let done = benchmark.kill_on_drop(true).output().await.context("redis-benchmark")?;
    let output = String::from_utf8_lossy(&done.stdout);
    let rate = output.lines().last().and_then(|line| line.split("\",\"").nth(1)?.parse().ok());
    rate.with_context(|| format!("redis-benchmark printed: {output}{}", String::from_utf8_lossy(&done.stderr)))
}

/// Records the call that the library makes for one permit of this key, and makes its lease random. Loads the script, too.
async fn record_call(url: &str, algorithm: &Algorithm, key: &str) -> anyhow::Result<Vec<String>> {
    let mut monitor = redis::Client::open(url)?.get_connection()?;
    monitor.set_read_timeout(Some(Duration::from_secs(5)))?;
    cmd("MONITOR").query::<()>(&mut monitor)?;
    let mut config = Config::load()?;
    config.flow.timeout_ms = 5000;
    let slot = SlotKey::new("bench", "limiter", key, false)?;
    let lease = (algorithm.kind() == AlgorithmKind::Concurrency).then(Uuid::new_v4);
    let take = Take { slot: &slot, algorithm, permits: 1, lease, has_line: false };
    let answer = Limiter::new(&config.redis, &config.flow)?.acquire(&[take]).await?;
    ensure!(answer.granted, "a first permit was refused");
    loop {
        let Reply::SimpleString(line) = monitor.recv_response()? else { continue };
        // 1700000000.000000 [0 127.0.0.1:50000] "EVALSHA" "…" "1" "key" …
        let Some((_, words)) = line.split_once("] \"EVALSHA\" \"") else { continue };
        let mut call = vec!["EVALSHA".to_owned()];
        call.extend(words.strip_suffix('"').unwrap_or(words).split("\" \"").map(|word| match lease {
            Some(lease) if word == lease.to_string() => word.replace(&word[24..], RANDOM),
            _ => word.to_owned(),
        }));
        return Ok(call);
    }
}

/// How often Redis has executed a command since the last CONFIG RESETSTAT, by scripts or directly.
pub fn calls_of(redis: &mut Connection, command: &str) -> anyhow::Result<u64> {
    let stats: String = cmd("INFO").arg("commandstats").query(redis)?;
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    Ok(line.and_then(|line| line.split(',').next()).map_or(Ok(0), str::parse)?)
}

pub fn json(measured: &[Measured]) -> Value {
    let row = |m: &Measured| {
        let names = ["one_key", "one_key_pipelined", "many_keys", "many_keys_pipelined"];
        let rates = m.rates.iter().flat_map(|rates| names.into_iter().zip(rates));
        let rates = rates.map(|(name, rate)| (name.to_owned(), rate.json())).collect::<serde_json::Map<_, _>>();
        (m.target.name().to_owned(), json!(rates))
    };
    measured.iter().map(row).collect::<serde_json::Map<_, _>>().into()
}
