//! F26: an event without data loss closes no sale: a new replica, a backup, an expired backlog, a clock that is set back. An event with
//! data loss closes all of the server's sales, even if nothing watched it.

use std::collections::HashMap;

use seckill::app::Service;
use seckill_domain::limiter::{Algorithm, AlgorithmKind, ParameterSet, Parameters};
use seckill_harness::{Sale, System, terms, until, wait_until};
use serde_json::json;

use crate::flow::permits_and_policies::{Caller, patient, policy, set};
use crate::redis::own_redis::{Kind, OwnRedis};
use crate::sales::sales_apart::sells;

/// Five sales on a private server, served by one instance.
struct World {
    system: System,
    redis: OwnRedis,
    sales: Vec<Sale>,
    buyers: usize,
}

impl World {
    async fn on(redis: OwnRedis, settings: &[(&str, &str)]) -> Self {
        let url = redis.url();
        let settings: Vec<_> = settings.iter().copied().chain([("REDIS_URL", url.as_str())]).collect();
        let system = patient(&settings).await;
        let mut sales = Vec::new();
        for _ in 0..5 {
            sales.push(system.create_sale(terms(50)).await);
        }
        Self { system, redis, sales, buyers: 0 }
    }

    async fn buy_everywhere(&mut self) -> Vec<String> {
        let mut answers = Vec::new();
        self.buyers += 1;
        let (user, from) = (format!("u{}", self.buyers), format!("10.2.0.{}", self.buyers));
        for sale in &self.sales {
            answers.push(self.system.buy(sale, &user).from(&from).send().await.code());
        }
        answers
    }

    async fn epochs(&self) -> HashMap<i64, i64> {
        let epochs: Vec<(i64, i64)> =
            sqlx::query_as("SELECT sale_id, epoch FROM sale_epochs").fetch_all(&self.system.sql).await.unwrap();
        epochs.into_iter().collect()
    }

    /// Nothing is oversold or lost, and Redis and the ledger agree.
    async fn settle(self) {
        self.system.all_settled(&self.sales).await;
        self.system.finish().await;
    }
}

const ALL_BOUGHT: [&str; 5] = ["202"; 5];

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_a_backup_and_an_expired_backlog_close_no_sale() {
    let mut world = World::on(OwnRedis::start().await, &[]).await;
    assert_eq!(world.buy_everywhere().await, ALL_BOUGHT);
    let (before, mut ids) = (world.epochs().await, vec![world.redis.info("replication", "master_replid").await]);

    let replica = OwnRedis::start().await;
    replica.follow(&world.redis).await;
    ids.push(world.redis.info("replication", "master_replid").await);
    assert_eq!(world.buy_everywhere().await, ALL_BOUGHT);

    drop(replica);
    world.redis.ask(&["CONFIG", "SET", "repl-backlog-ttl", "1"]).await.unwrap();
    wait_until(|| world.redis.info("replication", "master_replid"), |id| *id != ids[1]).await;
    ids.push(world.redis.info("replication", "master_replid").await);
    assert_eq!(world.buy_everywhere().await, ALL_BOUGHT);

    let file = std::env::temp_dir().join(format!("seckill-backup-{}", uuid::Uuid::new_v4().simple()));
    let backup = std::process::Command::new("redis-cli").args(["-u", &world.redis.url(), "--rdb"]).arg(&file).output();
    assert!(backup.unwrap().status.success());
    std::fs::remove_file(file).unwrap();
    ids.push(world.redis.info("replication", "master_replid").await);
    assert_eq!(world.buy_everywhere().await, ALL_BOUGHT);

    ids.dedup();
    assert_eq!(ids.len(), 4, "each event has changed the server's replication id");
    assert_eq!(world.epochs().await, before, "no sale was refilled");
    world.settle().await;
}

/// As after a backup, the second replication id is empty. But this server has loaded another server's data.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_demoted_while_nobody_watched_sells_nothing_from_what_it_read() {
    let mut world = World::on(OwnRedis::start().await, &[]).await;
    assert_eq!(world.buy_everywhere().await, ALL_BOUGHT);
    world.system.all_settled(&world.sales).await;
    let other = OwnRedis::start().await;
    other.follow(&world.redis).await;
    other.ask(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    // These purchases are missing at the other server.
    assert_eq!(world.buy_everywhere().await, ALL_BOUGHT);
    world.system.all_settled(&world.sales).await;
    let before = world.epochs().await;
    world.system.stop().await;
    world.redis.ask(&["CONFIG", "SET", "repl-backlog-ttl", "1"]).await.unwrap();
    world.redis.follow(&other).await;
    world.redis.ask(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    let second = "0".repeat(40);
    until(second, || world.redis.info("replication", "master_replid2")).await;

    world.system.serve(true).await;
    sells(&world.system, &world.sales[0]).await;
    world.system.all_settled(&world.sales).await;
    let after = world.epochs().await;
    assert!(after.iter().all(|(sale, epoch)| *epoch > before[sale]), "{before:?}, {after:?}");
    world.settle().await;
}

/// Returned units, limits and unconfirmed holds continue by the database's time.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_back_an_hour_stops_nothing() {
    let settings = [
        ("SECKILL_PURCHASE__BUYER_LIMIT", "3"),
        ("SECKILL_PURCHASE__BUYER_WINDOW_MS", "2000"),
        ("SECKILL_RECONCILE__UNCONFIRMED_AFTER_MS", "500"),
    ];
    let mut world = World::on(OwnRedis::start_as(Kind::OwnClock).await, &settings).await;
    assert_eq!(world.buy_everywhere().await, ALL_BOUGHT);
    let one = world.system.create_sale(terms(1)).await;
    let bought = world.system.buy(&one, "ann").send().await;
    assert_eq!(bought.code(), "202");
    // "Sold out" is remembered, so a returned unit is kept aside.
    assert_eq!(world.system.buy(&one, "ben").send().await.code(), "409 sold-out");
    world.system.settled(&one).await;
    let caller = Caller::new(&world.system, "shop").await;
    for kind in AlgorithmKind::ALL {
        let (one, two_s, none) = (Some(1), Some(2_000), Parameters::default());
        let parameters = match kind.parameter_set() {
            ParameterSet::Window => Parameters { limit: one, window_ms: two_s, ..none },
            ParameterSet::Bucket => Parameters { capacity: one, rate: one, window_ms: two_s, ..none },
            ParameterSet::Leases => Parameters { limit: one, lease_ms: two_s, ..none },
        };
        set(&world.system, policy("shop", kind.as_str(), Algorithm::new(*kind, &parameters).unwrap())).await;
        assert_eq!(caller.code(json!({ "app": "shop", "policy": kind.as_str() })).await, 1, "{kind:?}");
    }
    let before = world.epochs().await;
    world.redis.set_clock(-3600).await;

    let (status, _) = world.system.post(&format!("/api/v1/orders/{}/cancel", bought.order_id()), "ann").await;
    assert_eq!(status, 200);
    until("202", || async { world.system.buy(&one, "cid").idempotent("k").send().await.code() }).await;

    // The limiters of policies: a place taken earlier is free again after its window or lease.
    for kind in AlgorithmKind::ALL {
        until(1, || caller.code(json!({ "app": "shop", "policy": kind.as_str() }))).await;
    }

    // A limit of three in two seconds: refused, and admitted again.
    let ask = || async { world.system.buy(&world.sales[0], "eve").idempotent("k").send().await.status };
    until(429, ask).await;
    until(202, ask).await;

    // A hold of a process that died before it wrote the row. The test takes it by a direct call of the script.
    let key = |name: &str| format!("{}{{{}}}:{name}", world.system.config.redis.prefix, world.sales[1].id);
    let lost = uuid::Uuid::now_v7().to_string();
    let clock_ms: String =
        redis::FromRedisValue::from_redis_value(world.redis.query(&["HGET", &key("sale"), "clock_ms"]).await.unwrap())
            .unwrap();
    world.redis.ask(&["HSET", &key("tickets"), &lost, "h|1|lost"]).await.unwrap();
    world.redis.ask(&["HSET", &key("buyers"), "lost", &format!("1|{lost}")]).await.unwrap();
    world.redis.ask(&["HINCRBY", &key("sale"), "stock", "-1"]).await.unwrap();
    world.redis.ask(&["RPUSH", &key("holders"), "lost"]).await.unwrap();
    world.redis.ask(&["ZADD", &key("unconfirmed"), &clock_ms, &lost]).await.unwrap();
    until(200, || async { world.system.get(&format!("/api/v1/orders/{lost}"), Some("lost")).await.0 }).await;

    // The clock is corrected: nothing ends an hour early.
    world.redis.set_clock(0).await;
    assert_eq!(world.buy_everywhere().await, ALL_BOUGHT);
    assert_eq!(world.epochs().await, before, "no sale was refilled");
    world.system.settled(&one).await;
    world.settle().await;
}

/// A supervisor that read a sale's old status, before a pause or close, does not set it back.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_supervisor_does_not_undo_a_pause() {
    use seckill_domain::sale::SaleStatus::{Closed, Open, Paused};

    let system = System::shared().await;
    let (stores, sale) = (&system.stores, &system.create_sale(terms(50)).await);
    for status in [Paused, Closed] {
        let before = stores.ledger.sales.epoch(sale.id).await.unwrap().unwrap();
        assert!(stores.set_sale_status(sale.id, status, "test").await.unwrap());
        assert!(!stores.gate.set_sale_state(before.shards, before.epoch, before.status, before.version).await.unwrap());
        let code = system.buy(sale, "ann").send().await.status;
        assert_eq!(code, if status == Paused { 503 } else { 403 }, "{status}");
    }
    let row = stores.ledger.sales.epoch(sale.id).await.unwrap().unwrap();
    assert!(
        stores.gate.set_sale_state(row.shards, row.epoch, Open, row.version).await.unwrap(),
        "a newer version counts"
    );
    system.settled(sale).await;
}

/// A server that evicts keys when its memory is full would lose tickets and stock: the service refuses to start on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_evicts_keys_is_refused() {
    let redis = OwnRedis::start().await;
    redis.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await.unwrap();
    let mut system = System::prepare(&[("REDIS_URL", &redis.url())]).await;
    let refused = Service::bind(system.config.clone(), false).await.err().expect("the service does not start");
    let message = format!("{refused:#}");
    assert!(message.contains("maxmemory-policy noeviction") && message.contains("allkeys-lru"), "{message}");
    redis.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await.unwrap();
    system.serve(false).await;
    system.finish().await;
}
