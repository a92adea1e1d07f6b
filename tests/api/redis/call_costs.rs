//! The highest cost of one call, whatever its caller asks for, counted in commands, elements and bytes of a private Redis.

use futures_util::future::join_all;
use redis::{FromRedisValue, RedisResult};
use seckill_domain::limiter::{Algorithm, AlgorithmKind, ParameterSet, Parameters, SlotKey};
use seckill_harness::quiet_environment;
use seckill_redis::limiter::{Limiter, Take};
use uuid::Uuid;

use crate::redis::own_redis::OwnRedis;

/// The most policies of one call.
const POLICIES: usize = 9;
/// The most commands that the scripts of one call may send to Redis.
const COMMANDS_MAX: i64 = 1_500;
/// The keys of nine limiters with one grant each.
const BYTES_MAX: i64 = 9_000;
/// The greatest limit of the kinds that keep each grant.
const LISTED: i64 = 10_000;
const DAWN: i64 = 1_767_225_600_000_000;
const WINDOW_US: i64 = 60_000_000;

fn algorithm(kind: AlgorithmKind) -> Algorithm {
    let (most, ms) = (Some(LISTED), Some(WINDOW_US / 1000));
    let none = Parameters::default();
    let given = match kind.parameter_set() {
        ParameterSet::Window => Parameters { limit: most, window_ms: ms, ..none },
        ParameterSet::Bucket => Parameters { capacity: most, rate: most, window_ms: ms, ..none },
        ParameterSet::Leases => Parameters { limit: most, lease_ms: ms, ..none },
    };
    Algorithm::new(kind, &given).unwrap()
}

/// Nine limiters of one kind, at a private server.
struct Limiters {
    redis: OwnRedis,
    limiter: Limiter,
    slots: Vec<SlotKey>,
    algorithm: Algorithm,
}

impl Limiters {
    /// Asks all of them for permits, and gives them back if told. Returns whether they were granted, and the number of commands.
    async fn ask(&self, at: i64, permits: i64, gives_back: bool) -> (bool, i64) {
        let before = self.commands().await;
        let limiter = self.limiter.at(at);
        let takes: Vec<Take<'_>> = self.slots.iter().map(|slot| self.take(slot, permits)).collect();
        let reply = limiter.acquire(&takes).await.unwrap();
        if gives_back {
            limiter.give_back(&takes, &reply).await.unwrap();
        }
        (reply.granted, self.commands().await - before)
    }

    fn take<'a>(&'a self, slot: &'a SlotKey, permits: i64) -> Take<'a> {
        let permits = u32::try_from(permits).unwrap();
        Take { slot, algorithm: &self.algorithm, permits, lease: Some(Uuid::new_v4()), has_line: false }
    }

    /// The number of commands that scripts have called so far.
    async fn commands(&self) -> i64 {
        let stats: String = self.get(&["INFO", "commandstats"]).await.unwrap();
        let of_scripts = |line: &&str| {
            ["INFO", "EVAL", "SCRIPT", "HELLO", "CLIENT", "KEYS", "MEMORY", "ZCARD"]
                .iter()
                .all(|own| !line.to_uppercase().starts_with(&format!("CMDSTAT_{own}")))
        };
        let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<i64>().ok();
        stats.lines().filter(of_scripts).filter_map(calls).sum()
    }

    async fn get<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        Ok(T::from_redis_value(self.redis.query(words).await?)?)
    }

    /// The result of this command for each key.
    async fn of_keys(&self, command: &[&str]) -> Vec<i64> {
        let keys: Vec<String> = self.get(&["KEYS", "*"]).await.unwrap();
        let mut numbers = Vec::new();
        for key in keys {
            // Some keys are not sorted sets.
            numbers.push(self.get(&[command, &[&key]].concat()).await.unwrap_or(0));
        }
        numbers
    }

    async fn bytes(&self) -> i64 {
        self.of_keys(&["MEMORY", "USAGE"]).await.iter().sum()
    }

    /// The budget of an application counts at least Redis's memory: here for this number of grants of the first slot.
    async fn keep_to_what_is_counted(&self, grants: i64) {
        let (algorithm, slots) = (&self.algorithm, &self.slots);
        let (bytes, most) = algorithm.grant_bytes(1);
        let counted = slots.iter().map(|slot| algorithm.key_bytes(slot) + bytes).sum::<u64>();
        let counted = counted + bytes * most.min(grants.unsigned_abs());
        let kept = self.bytes().await.unsigned_abs();
        assert!(kept <= counted, "{:?}: {kept} bytes are counted as {counted}", algorithm.kind());
        let lives_ms = self.of_keys(&["PTTL"]).await.into_iter().max().unwrap_or(0).unsigned_abs();
        assert!(lives_ms <= algorithm.life_ms(), "{:?}: {lives_ms} ms, counted for less", algorithm.kind());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_costs_the_same_however_many_permits_it_asks_for() {
    for kind in AlgorithmKind::ALL {
        let redis = OwnRedis::start().await;
        let mut environment = quiet_environment().await;
        environment.insert("REDIS_URL".to_owned(), redis.url());
        let mut config = seckill_config::Config::read(&environment).unwrap();
        config.flow.timeout_ms = 30_000;
        let limiter = Limiter::new(&config.redis, &config.flow).unwrap();
        let slots = (0..POLICIES).map(|n| SlotKey::new("greedy", &n.to_string(), "k", false)).collect();
        let limiters = Limiters { redis, limiter, slots, algorithm: algorithm(*kind) };
        for permits in [1, 100, LISTED] {
            let (granted, commands) = limiters.ask(DAWN, permits, true).await;
            assert!(granted && commands <= COMMANDS_MAX, "{kind:?}: {permits} permits cost {commands} commands");
        }
        assert!(limiters.ask(DAWN, LISTED, false).await.0, "{kind:?}: what was given back is free");
        let bytes = limiters.bytes().await;
        assert!(bytes < BYTES_MAX, "{kind:?}: {LISTED} permits of one grant take {bytes} bytes");
        let (granted, commands) = limiters.ask(DAWN + 1, LISTED, false).await;
        assert!(!granted && commands <= COMMANDS_MAX, "{kind:?}: a refusal costs {commands} commands");

        // First one grant for each permit. Then the largest call: it is refused, and granted when all have expired.
        let begun = DAWN + 10 * WINDOW_US;
        for from in (0..LISTED).step_by(500) {
            let singles = (from..from + 500).map(async |n| {
                let takes = [limiters.take(&limiters.slots[0], 1)];
                limiters.limiter.at(begun + n).acquire(&takes).await.unwrap().granted
            });
            assert!(join_all(singles).await.into_iter().all(|granted| granted), "{kind:?}: from {from}");
            limiters.keep_to_what_is_counted(from + 500).await;
        }
        for permits in [1, LISTED] {
            let (granted, commands) = limiters.ask(begun + LISTED, permits, false).await;
            assert!(permits == 1 || !granted, "{kind:?}: {permits} permits of a limiter that is full");
            assert!(commands <= COMMANDS_MAX, "{kind:?}: refusing {permits} costs {commands} commands");
        }
        let elements = async || limiters.of_keys(&["ZCARD"]).await.into_iter().max().unwrap_or(0);
        let before = elements().await;
        let (_, commands) = limiters.ask(begun + LISTED + 2 * WINDOW_US, LISTED, false).await;
        let removed = before - elements().await;
        assert!(commands <= COMMANDS_MAX && removed <= 200, "{kind:?}: {commands} commands remove {removed} elements");
    }
}
