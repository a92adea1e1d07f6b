//! A Redis that has lost data sells nothing until it has been refilled from the ledger.

use seckill_harness::{System, terms, until};

use crate::redis::own_redis::OwnRedis;

async fn system_on(redis: &OwnRedis) -> System {
    System::start_with(&[("REDIS_URL", &redis.url())]).await
}

/// Buys for many, one after the other, until each has a definite answer. Returns the winners.
async fn all_buy(system: &System, sale: &seckill_harness::Sale, users: std::ops::Range<usize>) -> Vec<usize> {
    let mut winners = Vec::new();
    for n in users {
        let (user, from) = (format!("u{n}"), format!("10.1.{}.{}", n / 250, n % 250));
        let answer = system.buy(sale, &user).idempotent("k").from(&from).answered().await;
        match answer.code().as_str() {
            "202" => winners.push(n),
            "409 sold-out" => {}
            other => panic!("{other}"),
        }
    }
    winners
}

#[tokio::test(flavor = "multi_thread")]
async fn flushall_and_script_flush_close_the_sale_until_it_is_filled() {
    let redis = OwnRedis::start().await;
    let system = system_on(&redis).await;
    let sale = system.create_sale(terms(30)).await;
    let mut winners = all_buy(&system, &sale, 0..10).await;
    redis.ask(&["SCRIPT", "FLUSH"]).await.unwrap();
    winners.extend(all_buy(&system, &sale, 10..20).await);
    redis.ask(&["FLUSHALL"]).await.unwrap();
    winners.extend(all_buy(&system, &sale, 20..40).await);
    assert_eq!(winners.len(), 30);
    system.settled(&sale).await;
    assert_eq!(
        (system.orders(&sale).await, system.stock(&sale).await, system.available(&sale).await),
        (30, 0, Some(0))
    );
    // Earlier tickets are known afterwards.
    assert_eq!(system.buy(&sale, "u3").idempotent("k").send().await.code(), "202");
    system.finish().await;
}

/// F5 in small.
#[tokio::test(flavor = "multi_thread")]
async fn lost_writes_are_not_sold_again() {
    let mut redis = OwnRedis::start().await;
    let system = system_on(&redis).await;
    let sale = system.create_sale(terms(60)).await;
    let mut winners = all_buy(&system, &sale, 0..40).await;
    assert_eq!(winners.len(), 40);
    redis.lose_last_writes(0.5).await;
    // The truncated log shows more stock than there is, but no buyer sees it.
    winners.extend(all_buy(&system, &sale, 40..80).await);
    assert_eq!(winners.len(), 60);
    system.settled(&sale).await;
    let rejected = system.count("SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'rejected'", &sale).await;
    assert_eq!((system.orders(&sale).await, rejected, system.stock(&sale).await), (60, 0, 0));
    let epochs = system.count("SELECT epoch FROM sale_epochs WHERE sale_id = $1", &sale).await;
    assert!(epochs >= 2, "it was filled anew");
    system.finish().await;
}

/// A stock figure is written into Redis by hand: the service notices, raises an alarm, and refills the sale.
#[tokio::test(flavor = "multi_thread")]
async fn a_stock_that_does_not_add_up_is_found_and_filled_anew() {
    let redis = OwnRedis::start().await;
    let settings = [("REDIS_URL", redis.url())];
    let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
    let system = System::start_with(&[settings[0], ("SECKILL_RECONCILE__DRIFT_INTERVAL_MS", "50")]).await;
    let sale = system.create_sale(terms(30)).await;
    assert_eq!(all_buy(&system, &sale, 0..10).await.len(), 10);
    system.settled(&sale).await;
    let key = format!("{}{{{}}}:sale", system.config.redis.prefix, sale.id);
    redis.ask(&["HSET", &key, "stock", "25"]).await.unwrap();
    until(Some(20), || system.available(&sale)).await;
    system.settled(&sale).await;
    let alarms = system.number("SELECT count(*) FROM audit_log WHERE action = 'drift'").await;
    assert_eq!(alarms, 1);
    system.finish().await;
}

/// A server that was demoted and promoted again still has the script in its cache, and the data of a server that had missed the last sales.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_comes_back_is_filled_before_it_sells() {
    let (redis, replica) = (OwnRedis::start().await, OwnRedis::start().await);
    let system = system_on(&redis).await;
    let sale = system.create_sale(terms(30)).await;
    assert_eq!(all_buy(&system, &sale, 0..10).await.len(), 10);
    system.settled(&sale).await;
    // The replica has all of this, and is then cut off.
    replica.follow(&redis).await;
    replica.ask(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    assert_eq!(all_buy(&system, &sale, 10..25).await.len(), 15);
    system.settled(&sale).await;
    let epoch = "SELECT epoch FROM sale_epochs WHERE sale_id = $1";
    let before = system.count(epoch, &sale).await;
    redis.follow(&replica).await;
    redis.ask(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    assert_eq!(all_buy(&system, &sale, 25..60).await.len(), 5);
    system.settled(&sale).await;
    let rejected = system.count("SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'rejected'", &sale).await;
    assert_eq!((system.orders(&sale).await, rejected), (30, 0));
    assert!(system.count(epoch, &sale).await > before, "filled anew");
    system.finish().await;
}
