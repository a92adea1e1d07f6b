//! Faults of Redis, planted in private servers.

use seckill::app::stores;
use seckill::doctor::Verdict::{Fail, Pass, Unknown, Warn};
use seckill_harness::redis_group::RedisGroup;
use seckill_harness::{Environment, environment, quiet_environment, secret, terms};

use super::{Look, config, shows_in_time};
use crate::redis::own_redis::{Kind, OwnRedis};

/// The settings of a system with its sales on this server.
async fn system_on(redis: &OwnRedis) -> Environment {
    let mut environment = quiet_environment().await;
    environment.insert("REDIS_URL".to_owned(), redis.url());
    environment
}

/// A policy other than noeviction, no append-only file, and one that is not flushed.
#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_server_are_found() {
    let redis = OwnRedis::start().await;
    let environment = system_on(&redis).await;
    let look = async || Look::with(&environment, &[]).await;
    let healthy = look().await;
    for check in healthy.of("redis").filter(|check| check.name != "redis.memory") {
        assert_eq!(check.verdict, Pass, "{check:#?}");
    }
    for (setting, wrong, right, check, verdict) in [
        ("maxmemory-policy", "allkeys-lru", "noeviction", "redis.eviction", Fail),
        ("appendfsync", "no", "everysec", "redis.fsync", Warn),
        ("appendonly", "no", "yes", "redis.aof", Fail),
    ] {
        redis.ask(&["CONFIG", "SET", setting, wrong]).await.unwrap();
        look().await.shows(check, verdict, wrong);
        redis.ask(&["CONFIG", "SET", setting, right]).await.unwrap();
    }
}

/// An append-only file that cannot be written, or cannot be rewritten.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_only_file_that_fails_is_found() {
    let redis = OwnRedis::start_as(Kind::SmallFiles { kilobytes: 64 }).await;
    let environment = system_on(&redis).await;
    let value = "x".repeat(8 * 1024);
    let look = async || {
        // When the file is full, the server refuses to write.
        let _ = redis.ask(&["SET", "key", &value]).await;
        Look::with(&environment, &[]).await
    };
    shows_in_time(look, "redis.aof", Fail, "the last write of the append-only file: err").await;

    let redis = OwnRedis::start().await;
    let environment = system_on(&redis).await;
    redis.take_folder_away();
    // The server refuses immediately, or notices later.
    let _ = redis.ask(&["BGREWRITEAOF"]).await;
    shows_in_time(async || Look::with(&environment, &[]).await, "redis.aof", Warn, "last rewrite").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_little_memory_for_the_planned_sales_is_found() {
    let redis = OwnRedis::start().await;
    let environment = environment(&[("REDIS_URL", &redis.url())]).await;
    let stores = stores(&config(&environment, &[])).unwrap();
    let bound = async |maxmemory: &str| {
        redis.ask(&["CONFIG", "SET", "maxmemory", maxmemory]).await.unwrap();
        Look::with(&environment, &[]).await
    };
    bound("100mb").await.shows("redis.memory", Pass, "0 sales with 0 units");

    // Units of later waves count too. An unlimited sale is named.
    let mut waved = terms(100_000);
    waved.waves.push(seckill_domain::sale::Wave { after_ms: 60_000, units: 40_000 });
    for new in [waved, terms(-1)] {
        stores
            .ledger
            .sales
            .create_sale(&new.check().unwrap(), ["open", "waiting"].map(str::to_owned), None, "test")
            .await
            .unwrap();
    }
    let found = "2 sales with 100000 units to sell need about 300 MB; 1 unlimited not counted";
    bound("100mb").await.shows("redis.memory", Fail, found);
    bound("400mb").await.shows("redis.memory", Warn, found);
    bound("1gb").await.shows("redis.memory", Pass, found);
    let no_bound = bound("0").await;
    assert_ne!(no_bound.verdict("redis.memory"), Pass);
}

/// A replica in place of the master is a fault. A master with a replica is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_found() {
    let (master, replica) = (OwnRedis::start().await, OwnRedis::start().await);
    replica.follow(&master).await;
    let environment = system_on(&master).await;
    shows_in_time(async || Look::with(&environment, &[]).await, "redis.role", Pass, "a master with 1 replicas; ").await;
    let look = Look::with(&environment, &[("REDIS_URL", &replica.url())]).await;
    look.shows("redis.role", Fail, "not a master");
}

/// A user whose scripts may not ask for the run id and the replication id.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_does_not_see_the_server_is_found() {
    let redis = OwnRedis::start().await;
    let environment = system_on(&redis).await;
    let password = secret();
    let with_password = format!(">{password}");
    redis.ask(&["ACL", "SETUSER", "limited", "on", &with_password, "~*", "&*", "+@all", "-info"]).await.unwrap();
    let limited = redis.url().replace("redis://", &format!("redis://limited:{password}@"));
    let look = Look::with(&environment, &[("REDIS_URL", &limited)]).await;
    look.shows("redis.script", Fail, "the script failed");
    assert!(!look.checks["redis.script"].found.contains(&password));
    look.shows("redis.eviction", Unknown, "");
    // CONFIG alone may be forbidden, as hosted servers do.
    redis.ask(&["ACL", "SETUSER", "limited", "+info", "-config"]).await.unwrap();
    let look = Look::with(&environment, &[("REDIS_URL", &limited)]).await;
    look.shows("redis.fsync", Unknown, "");
    assert_eq!((look.verdict("redis.script"), look.verdict("redis.eviction"), look.verdict), (Pass, Pass, Unknown));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_is_found() {
    let redis = OwnRedis::start_as(Kind::ClusterNode).await;
    let environment = system_on(&redis).await;
    Look::with(&environment, &[]).await.shows("redis.cluster", Fail, "Redis Cluster");
}

/// A clock that is slightly wrong, and one so wrong that scripts use PostgreSQL's.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_off_is_found() {
    let redis = OwnRedis::start_as(Kind::OwnClock).await;
    let environment = system_on(&redis).await;
    for (offset_s, verdict, direction) in [(3, Warn, "ahead of"), (3600, Fail, "ahead of"), (-3600, Fail, "behind")] {
        redis.set_clock(offset_s).await;
        shows_in_time(async || Look::with(&environment, &[]).await, "redis.clock", verdict, direction).await;
    }
}

/// Lock servers that are away, not independent, or without persistence.
#[tokio::test(flavor = "multi_thread")]
async fn lock_servers_that_keep_no_locks_are_found() {
    let (one, two, three) = (OwnRedis::start().await, OwnRedis::start().await, OwnRedis::start().await);
    let environment = quiet_environment().await;
    let gone = "redis://127.0.0.1:1/";
    let (a, b, c) = (one.url(), two.url(), three.url());
    let with = async |urls: &[&str]| Look::with(&environment, &[("SECKILL_REDIS__LOCK_URLS", &urls.join(","))]).await;
    with(&[&a, &b, &c]).await.shows("redis.locks", Pass, "3 of 3");
    with(&[&a, &b, gone]).await.shows("redis.locks", Warn, "2 of 3");
    with(&[&a, gone, gone]).await.shows("redis.locks", Unknown, "no majority");
    with(&[&a, &b]).await.shows("redis.locks", Warn, "2 of 2");
    with(&[&a, &b, &a]).await.shows("redis.locks", Fail, "the same server");
    two.ask(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]).await.unwrap();
    with(&[&a, &b, &c]).await.shows("redis.locks", Fail, "volatile-ttl");
    two.follow(&one).await;
    two.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await.unwrap();
    with(&[&a, &b, &c]).await.shows("redis.locks", Fail, "is a slave");
}

/// Sentinels with a password, without the one that they want, and of which one is dead.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_do_not_answer_are_found_with_their_reason() {
    let mut group = RedisGroup::start().await;
    let environment = environment(&[("REDIS_URL", &group.url())]).await;
    Look::with(&environment, &[]).await.shows("redis.named", Pass, "3 of 3 servers");
    let without = group.url_without_password();
    let wrong = format!("{without}?sentinel_password={}", secret());
    for (url, why) in [
        (&without, "NOAUTH"),
        (&wrong, "authentication failed"),
        (&group.url().replace("/shop", "/other"), "No such master"),
    ] {
        let look = Look::with(&environment, &[("REDIS_URL", url), ("SECKILL_REDIS__CONNECT_TIMEOUT_MS", "500")]).await;
        look.shows("redis.named", Unknown, why);
        // The checks that need the master say why there is none.
        look.shows("redis.role", Unknown, why);
    }
    group.kill_sentinel();
    let look = Look::with(&environment, &[]).await;
    look.shows("redis.named", Warn, "2 of 3 servers");
    look.shows("redis.role", Pass, "a master");
}
