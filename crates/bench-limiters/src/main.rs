//! The calls that the library makes for the limiters: `seckill-bench-limiters REDIS_URL KEY`. `./dev bench` repeats them by
//! redis-benchmark.
//!
//! It prints a JSON list of `{name, refuses, call}`, where `call` has the words of the command for one permit of the key, as MONITOR
//! saw it. A random lease is replaced by what redis-benchmark replaces by a random number. The scripts stay loaded. Nothing else may
//! use this Redis meanwhile, and its data is lost.

use std::time::Duration;

use anyhow::{Context, ensure};
use redis::{Value as Reply, cmd};
use seckill::config::Config;
use seckill::domain::limiter::{Algorithm, AlgorithmKind, Parameters, SlotKey};
use seckill::gate::limiter::{Limiter, Take};
use serde_json::{Value, json};
use uuid::Uuid;

/// redis-benchmark replaces this by a random number.
const RANDOM: &str = "__rand_int__";
/// The library must make its call within this time.
const TIMEOUT: Duration = Duration::from_secs(5);

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let (Some(url), Some(key), None) = (words.next(), words.next(), words.next()) else {
        anyhow::bail!("usage: seckill-bench-limiters REDIS_URL KEY");
    };
    println!("{}", tokio::runtime::Runtime::new()?.block_on(record_all(&url, &key))?);
    Ok(())
}

async fn record_all(url: &str, key: &str) -> anyhow::Result<Value> {
    let mut redis = redis::Client::open(url)?.get_connection()?;
    let mut calls = Vec::new();
    for (name, refuses, algorithm) in limiters()? {
        // What another limiter has left under this key would be taken for its own.
        cmd("FLUSHALL").query::<()>(&mut redis)?;
        calls.push(json!({ "name": name, "refuses": refuses, "call": record(url, &algorithm, key).await? }));
    }
    Ok(calls.into())
}

/// One limiter of each kind, so large that nearly every call is granted, and one that refuses.
fn limiters() -> anyhow::Result<Vec<(&'static str, bool, Algorithm)>> {
    let bucket = |capacity, rate, window_ms| Parameters {
        capacity: Some(capacity),
        rate: Some(rate),
        window_ms: Some(window_ms),
        ..Parameters::default()
    };
    let mut all = Vec::new();
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
        all.push((kind.as_str(), false, Algorithm::new(kind, &given)?));
    }
    all.push(("refused", true, Algorithm::new(AlgorithmKind::TokenBucket, &bucket(1, 1, 3_600_000))?));
    Ok(all)
}

/// The words of the call that the library makes for one permit of this key.
async fn record(url: &str, algorithm: &Algorithm, key: &str) -> anyhow::Result<Vec<String>> {
    let mut monitor = redis::Client::open(url)?.get_connection()?;
    monitor.set_read_timeout(Some(TIMEOUT))?;
    cmd("MONITOR").query::<()>(&mut monitor)?;
    let mut config = Config::load()?;
    config.flow.timeout_ms = u64::try_from(TIMEOUT.as_millis())?;
    let slot = SlotKey::new("bench", "limiter", key, false)?;
    let lease = (algorithm.kind() == AlgorithmKind::Concurrency).then(Uuid::new_v4);
    let take = Take { slot: &slot, algorithm, permits: 1, lease, has_line: false };
    let answer = Limiter::new(&config.redis, &config.flow)?.acquire(&[take]).await?;
    ensure!(answer.granted, "a first permit was refused");
    loop {
        let Reply::SimpleString(line) = monitor.recv_response().context("MONITOR shows no call")? else { continue };
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
