//! A limiter of a test's own, and the keys under it.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;
use seckill::config::Config;
use seckill::domain::limiter::{Algorithm, AlgorithmKind, Parameters, SlotKey};
use seckill::gate::limiter::{Limiter, Take};
use uuid::Uuid;

/// A moment that tests begin at: some day in 2026, in microseconds.
pub const DAWN: i64 = 1_767_225_600_000_000;

pub struct Bench {
    pub limiter: Limiter,
    pub redis: MultiplexedConnection,
    pub prefix: String,
}

impl Bench {
    pub async fn new() -> Self {
        Self::under(&format!("t{}:", &Uuid::new_v4().simple().to_string()[..12])).await
    }

    /// A limiter that is handed its prefix, so that several processes can share one.
    pub async fn under(prefix: &str) -> Self {
        let url = std::env::var("REDIS_URL").expect("run the tests by ./dev test");
        let client = redis::Client::open(url.as_str()).unwrap();
        Self {
            limiter: limiter(&url, prefix, "1000"), // a busy machine is not what is tested
            redis: client.get_multiplexed_async_connection().await.unwrap(),
            prefix: prefix.to_owned(),
        }
    }

    pub async fn keys(&self) -> Vec<String> {
        let pattern = format!("{}*", self.prefix);
        let mut keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut self.redis.clone()).await.unwrap();
        keys.sort();
        keys
    }

    /// Everything there is, byte for byte.
    pub async fn dump(&self) -> Vec<(String, Vec<u8>)> {
        let mut dump = Vec::new();
        for key in self.keys().await {
            let value: Vec<u8> = redis::cmd("DUMP").arg(&key).query_async(&mut self.redis.clone()).await.unwrap();
            dump.push((key, value));
        }
        dump
    }

    pub async fn clear(&self) {
        for key in self.keys().await {
            let _: i64 = redis::cmd("UNLINK").arg(key).query_async(&mut self.redis.clone()).await.unwrap();
        }
    }
}

/// A limiter over the Redis at an address, configured like the service's.
pub fn limiter(url: &str, prefix: &str, timeout_ms: &str) -> Limiter {
    let environment: HashMap<String, String> = [
        ("REDIS_URL", url),
        ("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none"),
        ("AMQP_URL", "amqp://127.0.0.1:1/%2f"),
        ("SECKILL_DEV", "1"),
        ("SECKILL_REDIS__PREFIX", prefix),
        ("SECKILL_FLOW__TIMEOUT_MS", timeout_ms),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    let config = Config::read(&environment).unwrap();
    Limiter::new(&config.redis, &config.flow).unwrap()
}

pub fn slot(policy: &str, key: &str) -> SlotKey {
    SlotKey::new("test", policy, key, false).unwrap()
}

pub fn window(kind: AlgorithmKind, limit: i64, window_ms: i64) -> Algorithm {
    let given = Parameters { limit: Some(limit), window_ms: Some(window_ms), ..Parameters::default() };
    Algorithm::new(kind, &given).unwrap()
}

pub fn bucket(kind: AlgorithmKind, capacity: i64, rate: i64, period_ms: i64) -> Algorithm {
    let given =
        Parameters { capacity: Some(capacity), rate: Some(rate), window_ms: Some(period_ms), ..Parameters::default() };
    Algorithm::new(kind, &given).unwrap()
}

pub fn leases(limit: i64, lease_ms: i64) -> Algorithm {
    let given = Parameters { limit: Some(limit), lease_ms: Some(lease_ms), ..Parameters::default() };
    Algorithm::new(AlgorithmKind::Concurrency, &given).unwrap()
}

/// One of each kind, that lets four permits through and then no more for a while.
pub fn one_of_each() -> [Algorithm; 6] {
    [
        window(AlgorithmKind::FixedWindow, 4, 60_000),
        window(AlgorithmKind::SlidingLog, 4, 60_000),
        window(AlgorithmKind::SlidingCounter, 4, 60_000),
        bucket(AlgorithmKind::TokenBucket, 4, 1, 60_000),
        bucket(AlgorithmKind::LeakyBucket, 4, 1, 60_000),
        leases(4, 60_000),
    ]
}

pub fn take<'a>(slot: &'a SlotKey, algorithm: &'a Algorithm, permits: u32) -> Take<'a> {
    Take { slot, algorithm, permits, lease: Some(Uuid::new_v4()) }
}
