//! A limiter for one test, under a key prefix of its own.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;
use seckill_config::Config;
use seckill_domain::limiter::{Algorithm, AlgorithmKind, ParameterSet, Parameters, SlotKey};
use seckill_harness::{redis_at, server};
use seckill_redis::limiter::{AcquireReply, Limiter, Take};
use uuid::Uuid;

/// The time at which tests begin: a whole minute in 2026, in microseconds.
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

    /// A limiter under a given prefix, so that several processes can share it.
    pub async fn under(prefix: &str) -> Self {
        let url = server("REDIS_URL");
        Self { limiter: limiter(&url, prefix), redis: redis_at(&url).await.unwrap(), prefix: prefix.to_owned() }
    }

    /// Asks at a time after `DAWN`, in microseconds.
    pub async fn acquire(&self, us: i64, takes: &[Take<'_>]) -> AcquireReply {
        self.limiter.at(DAWN + us).acquire(takes).await.unwrap()
    }

    pub async fn grants(&self, us: i64, takes: &[Take<'_>]) -> bool {
        self.acquire(us, takes).await.granted
    }

    pub async fn keys(&self) -> Vec<String> {
        let pattern = format!("{}*", self.prefix);
        let mut keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut self.redis.clone()).await.unwrap();
        keys.sort();
        keys
    }

    /// All keys and values, byte for byte.
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

/// A limiter configured like the service's except for the time-out.
fn limiter(url: &str, prefix: &str) -> Limiter {
    let environment: HashMap<String, String> = [
        ("REDIS_URL", url),
        ("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none"),
        ("AMQP_URL", "amqp://127.0.0.1:1/%2f"),
        ("SECKILL_DEV", "1"),
        ("SECKILL_REDIS__PREFIX", prefix),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    let mut config = Config::read(&environment).unwrap();
    config.flow.timeout_ms = 30_000; // a busy machine must not fail a test
    Limiter::new(&config.redis, &config.flow).unwrap()
}

pub fn slot(policy: &str, key: &str) -> SlotKey {
    SlotKey::new("test", policy, key, false)
}

const NONE: Parameters = Parameters { limit: None, window_ms: None, rate: None, capacity: None, lease_ms: None };

pub fn window(kind: AlgorithmKind, limit: i64, window_ms: i64) -> Algorithm {
    Algorithm::new(kind, &Parameters { limit: Some(limit), window_ms: Some(window_ms), ..NONE }).unwrap()
}

pub fn bucket(kind: AlgorithmKind, capacity: i64, rate: i64, period_ms: i64) -> Algorithm {
    let (capacity, rate, window_ms) = (Some(capacity), Some(rate), Some(period_ms));
    Algorithm::new(kind, &Parameters { capacity, rate, window_ms, ..NONE }).unwrap()
}

pub fn leases(limit: i64, lease_ms: i64) -> Algorithm {
    let given = Parameters { limit: Some(limit), lease_ms: Some(lease_ms), ..NONE };
    Algorithm::new(AlgorithmKind::Concurrency, &given).unwrap()
}

/// One limiter of each kind, which grants four permits and then none for a minute.
pub fn one_of_each() -> Vec<Algorithm> {
    AlgorithmKind::ALL.iter().map(|kind| of_kind(*kind)).collect()
}

pub fn of_kind(kind: AlgorithmKind) -> Algorithm {
    match kind.parameter_set() {
        ParameterSet::Window => window(kind, 4, 60_000),
        ParameterSet::Bucket => bucket(kind, 4, 1, 60_000),
        ParameterSet::Leases => leases(4, 60_000),
    }
}

pub fn take<'a>(slot: &'a SlotKey, algorithm: &'a Algorithm, permits: u32) -> Take<'a> {
    Take { slot, algorithm, permits, lease: Some(Uuid::new_v4()), has_line: false }
}
