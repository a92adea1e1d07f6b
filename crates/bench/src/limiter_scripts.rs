//! The limiters' scripts alone, by redis-benchmark, in the same rounds as plain INCR: checks per second over one key and
//! over many keys. The calls are those that the library makes, as the program of crates/bench-limiters records them.

use anyhow::{Context, ensure};
use redis::{Connection, cmd};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::series::Series;
use crate::throttlecrab::{PLENTY, Throttlecrab};

const CONNECTIONS: u64 = 50;
/// redis-benchmark replaces this by a random number.
const RANDOM: &str = "__rand_int__";
/// About one second of work for a script. With pipelining, twice as many calls are made.
const CALLS: u64 = 20_000;

/// How a limiter is called: over how many keys (`None` for one), and with how many calls in flight on each connection.
pub const LOADS: [(Option<u64>, u64); 4] = [(None, 1), (None, 16), (Some(100_000), 1), (Some(100_000), 16)];

/// Prints the calls that the library makes (crates/bench-limiters). It lies beside this program.
const RECORDER: &str = "seckill-bench-limiters";

pub enum Target {
    /// Redis's own counter, to compare with.
    Incr,
    Limiter(Limiter),
    Throttlecrab,
}

/// What the library sends for one permit, with one key and with many.
pub struct Limiter {
    name: String,
    refuses: bool,
    one_key: Vec<String>,
    many_keys: Vec<String>,
}

#[derive(Deserialize)]
struct Recorded {
    name: String,
    refuses: bool,
    call: Vec<String>,
}

impl Target {
    /// All limiters, between what they are compared with.
    async fn all(url: &str) -> anyhow::Result<Vec<Self>> {
        let (one_key, many_keys) = (recorded(url, "k").await?, recorded(url, RANDOM).await?);
        let limiters = one_key.into_iter().zip(many_keys).map(|(one, many)| {
            Self::Limiter(Limiter { name: one.name, refuses: one.refuses, one_key: one.call, many_keys: many.call })
        });
        Ok(std::iter::once(Self::Incr).chain(limiters).chain([Self::Throttlecrab]).collect())
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Incr => "incr",
            Self::Limiter(limiter) => &limiter.name,
            Self::Throttlecrab => "throttlecrab",
        }
    }

    pub fn title(&self) -> &str {
        match self {
            Self::Incr => "INCR, to compare with",
            Self::Limiter(limiter) if limiter.refuses => "token-bucket of 1, refused",
            Self::Limiter(limiter) => &limiter.name,
            Self::Throttlecrab => "throttlecrab-server, `THROTTLE`: in its own memory, not in Redis",
        }
    }
}

/// The calls of all limiters with this key.
async fn recorded(url: &str, key: &str) -> anyhow::Result<Vec<Recorded>> {
    let program = std::env::current_exe()?.with_file_name(RECORDER);
    let done = Command::new(&program).args([url, key]).kill_on_drop(true).output().await;
    let done = done.with_context(|| format!("{} must be built", program.display()))?;
    ensure!(done.status.success(), "{RECORDER}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(serde_json::from_slice(&done.stdout)?)
}

/// The rates of one target, in the order of `LOADS`; none if throttlecrab-server is not installed.
pub struct Measured {
    pub target: Target,
    pub rates: Option<[Series; 4]>,
}

/// Measures all targets. Nothing else may use this Redis, and its data is lost.
pub async fn measure(url: &str, other: Option<&Throttlecrab>, rounds: usize) -> anyhow::Result<Vec<Measured>> {
    let mut redis = redis::Client::open(url)?.get_connection()?;
    let all = Target::all(url).await?;
    let mut rates = vec![[const { Vec::new() }; 4]; all.len()];
    for n in 1..=rounds {
        eprintln!("limiters in Redis: round {n} of {rounds}");
        for (target, rates) in all.iter().zip(&mut rates) {
            for ((keys, pipeline), rates) in LOADS.into_iter().zip(rates) {
                let rate = match (target, other) {
                    (Target::Throttlecrab, None) => None,
                    (Target::Throttlecrab, Some(other)) => Some(throttle(other, keys, pipeline).await?),
                    (Target::Incr | Target::Limiter(_), _) => {
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
    let calls = calls_with(pipeline);
    let (call, calls, keys) = match target {
        Target::Limiter(limiter) => {
            let call = if keys.is_some() { &limiter.many_keys } else { &limiter.one_key };
            // Each key grants once, so with fewer keys than calls nearly every call of one that refuses is refused.
            (call.clone(), calls, if limiter.refuses { keys.map(|_| CALLS / 100) } else { keys })
        }
        Target::Incr | Target::Throttlecrab => {
            let key = if keys.is_some() { RANDOM } else { "k" };
            (vec!["INCR".into(), format!("bench:{key}")], calls * 5, keys)
        }
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
        Target::Limiter(limiter) if limiter.refuses => (1..=keys.unwrap_or(1)).contains(&grants),
        Target::Limiter(_) => grants * 2 > calls && grants <= asked_redis,
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
