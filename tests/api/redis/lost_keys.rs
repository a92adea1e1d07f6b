//! Keys of sales that are deleted by others or evicted: the sale is closed and refilled, and no caller gets a wrong answer meanwhile
//! (protocol, rule 10).

use std::collections::BTreeSet;
use std::time::Duration;

use seckill_domain::sale::NewSale;
use seckill_domain::shards::ShardCount;
use seckill_harness::redis_cluster::RedisCluster;
use seckill_harness::{Sale, System, eventually, redis_at, terms, until, wait_until};

use crate::flow::callers_apart::{alarm, open_alarms};
use crate::redis::own_redis::OwnRedis;
use crate::redis::redis_cluster::{node_of, sale_elsewhere};

const SETTINGS: [(&str, &str); 4] = [
    ("SECKILL_PURCHASE__BUYER_LIMIT", "-1"),
    ("SECKILL_PURCHASE__ADDRESS_LIMIT", "-1"),
    ("SECKILL_ALARMS__INTERVAL_MS", "200"),
    ("SECKILL_ALARMS__CLEAR_AFTER_MS", "0"),
];

const EPOCH: &str = "SELECT coalesce(max(epoch), 0) FROM sale_epochs WHERE sale_id = $1 AND run_id IS NOT NULL";

async fn system_on(url: &str) -> System {
    System::start_with(&[&SETTINGS[..], &[("REDIS_URL", url)]].concat()).await
}

async fn refilled(system: &System, sale: &Sale, before: i64) {
    wait_until(|| system.count(EPOCH, sale), |&epoch| epoch > before).await;
}

async fn answers(system: &System, sale: &Sale, user: &str, code: &str) {
    until(code, || async { system.buy(sale, user).idempotent("k").send().await.code() }).await;
}

async fn readiness(system: &System) -> (u16, bool) {
    let (status, body) = system.get("/readyz", None).await;
    (status, body["redis"] == true)
}

/// The keys of a sale that do not expire.
async fn lasting_keys(redis: &OwnRedis, tag: &str) -> Vec<String> {
    let mut connection = redis_at(&redis.url()).await.unwrap();
    let all: Vec<String> = redis::cmd("KEYS").arg(format!("*{{{tag}}}:*")).query_async(&mut connection).await.unwrap();
    let mut lasting = Vec::new();
    for key in all {
        let expires_in: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut connection).await.unwrap();
        if expires_in < 0 {
            lasting.push(key);
        }
    }
    lasting
}

async fn sold_out(system: &System, terms: NewSale) -> Sale {
    let sale = system.create_sale(terms).await;
    answers(system, &sale, "ann", "202").await;
    answers(system, &sale, "eve", "409 sold-out").await;
    system.settled(&sale).await;
    sale
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_any_key_closes_the_sale_until_it_is_refilled() {
    let redis = OwnRedis::start().await;
    let system = system_on(&redis.url()).await;
    let shards = NewSale { shards: ShardCount::parse(2).unwrap(), ..terms(1) };
    let (plain, with_shards, other) =
        (sold_out(&system, terms(1)).await, sold_out(&system, shards).await, sold_out(&system, terms(1)).await);
    let mut kinds = BTreeSet::new();
    // Buyers ask for one sale immediately, and not at all for the other.
    for (sale, is_asked) in [(&plain, true), (&with_shards, false)] {
        let of = system.shards(sale).await;
        let mut keys = Vec::new();
        for shard in of.count.all() {
            keys.extend(lasting_keys(&redis, &of.tag(shard)).await);
        }
        assert_eq!(keys.len(), 8 * usize::from(of.count.get()), "{keys:?}");
        for key in &keys {
            kinds.insert(key.rsplit(':').next().unwrap().to_owned());
            let before = system.count(EPOCH, sale).await;
            redis.ask(&["DEL", key]).await.unwrap();
            if !is_asked {
                refilled(&system, sale, before).await;
            }
            for (user, right) in [("ann", "202"), ("eve", "409 sold-out")] {
                eventually(|| async {
                    let answer = system.buy(sale, user).idempotent("k").send().await.code();
                    assert!(answer == right || answer.starts_with("503"), "{user} without {key}: {answer}");
                    (answer == right).then_some(()).ok_or(answer)
                })
                .await;
            }
            refilled(&system, sale, before).await;
        }
        let told = "SELECT count(*) FROM audit_log WHERE action = 'keys-lost' AND subject = 'sale ' || $1";
        let told: i64 = sqlx::query_scalar(told).bind(sale.id.get()).fetch_one(&system.sql).await.unwrap();
        assert!(told >= 1, "nobody is told of sale {}", sale.id);
        alarm(&system, &format!("keys-lost sale {}", sale.id)).await;
        system.settled(sale).await;
        assert_eq!((system.orders(sale).await, system.available(sale).await), (1, Some(0)));
    }
    assert_eq!(kinds.len(), 8, "{kinds:?}");
    assert_eq!(system.count(EPOCH, &other).await, 1, "a sale that is whole is left alone");
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eviction_that_is_switched_on_while_it_runs_stops_selling_until_it_is_switched_off() {
    let redis = OwnRedis::start().await;
    let system = system_on(&redis.url()).await;
    let sales = [sold_out(&system, terms(1)).await, system.create_sale(terms(5)).await];
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let before = system.count(EPOCH, &sales[0]).await;
        redis.ask(&["CONFIG", "SET", "maxmemory-policy", policy]).await.unwrap();
        for user in ["ann", "ben"] {
            answers(&system, &sales[1], user, "503 temporarily-unavailable").await;
        }
        until((503, false), || readiness(&system)).await;
        alarm(&system, "keys-lost redis").await;
        redis.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await.unwrap();
        for sale in &sales {
            refilled(&system, sale, before).await;
        }
        answers(&system, &sales[0], "ann", "202").await;
        answers(&system, &sales[0], "eve", "409 sold-out").await;
        // They may already have bought.
        for user in ["ann", "ben"] {
            answers(&system, &sales[1], user, "202").await;
        }
        until((200, true), || readiness(&system)).await;
        wait_until(|| open_alarms(&system), |open| !open.contains(&"keys-lost redis".to_owned())).await;
    }
    system.all_settled(&sales).await;
    assert_eq!((system.orders(&sales[0]).await, system.orders(&sales[1]).await), (1, 2));
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_of_a_cluster_that_evicts_closes_its_own_sales_alone() {
    let cluster = RedisCluster::start(Duration::from_secs(600)).await;
    let system = system_on(&cluster.url()).await;
    let sick = system.create_sale(terms(5)).await;
    let node = node_of(&cluster, &system, &sick, 0).await;
    let well = sale_elsewhere(&cluster, &system, node).await;
    cluster.ask(node, &["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    answers(&system, &sick, "ann", "503 temporarily-unavailable").await;
    alarm(&system, "keys-lost redis").await;
    let buyers: Vec<String> = (0..5).map(|n| format!("u{n}")).collect();
    for user in &buyers {
        answers(&system, &well, user, "202").await;
        let code = system.buy(&sick, user).idempotent("k").send().await.code();
        assert_eq!(code, "503 temporarily-unavailable");
    }
    assert_eq!((readiness(&system).await, system.count(EPOCH, &well).await), ((200, true), 1));
    cluster.ask(node, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    answers(&system, &sick, "ann", "202").await;
    system.all_settled([&sick, &well]).await;
    assert_eq!((system.orders(&sick).await, system.orders(&well).await), (1, 5));
    system.finish().await;
}
