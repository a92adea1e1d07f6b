//! Sales on a Redis Cluster: their shards are on all masters. A dead or silent master affects only its own keys (protocol, rule 15).

use std::time::Duration;

use futures_util::future::join_all;
use seckill_domain::ids::Shard;
use seckill_domain::sale::NewSale;
use seckill_domain::shards::ShardCount;
use seckill_harness::redis_cluster::RedisCluster;
use seckill_harness::{Sale, System, eventually, terms, wait_until};

use crate::sales::shards::{answered, buy};

/// Buyers repeat their requests until the answer is clear, all from one address.
const UNLIMITED: [(&str, &str); 2] =
    [("SECKILL_PURCHASE__BUYER_LIMIT", "-1"), ("SECKILL_PURCHASE__ADDRESS_LIMIT", "-1")];

async fn system_on(cluster: &RedisCluster, answer_ms: &str) -> System {
    let [buyer, address] = UNLIMITED;
    let answer = ("SECKILL_REDIS__RESPONSE_TIMEOUT_MS", answer_ms);
    let connect = ("SECKILL_REDIS__CONNECT_TIMEOUT_MS", answer_ms);
    System::start_with(&[buyer, address, answer, connect, ("REDIS_URL", &cluster.url())]).await
}

pub async fn node_of(cluster: &RedisCluster, system: &System, sale: &Sale, shard: i16) -> usize {
    let tag = system.shards(sale).await.tag(Shard(shard));
    cluster.owner(&format!("{}{{{tag}}}:sale", system.config.redis.prefix))
}

/// A new sale with one shard, on another node.
pub async fn sale_elsewhere(cluster: &RedisCluster, system: &System, node: usize) -> Sale {
    loop {
        let sale = system.create_sale(terms(5)).await;
        if node_of(cluster, system, &sale, 0).await != node {
            return sale;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_goes_on_when_a_master_is_killed_and_others_do_not_notice() {
    // A node that is only slow is not taken for dead.
    let mut cluster = RedisCluster::start(Duration::from_secs(15)).await;
    let system = system_on(&cluster, "20000").await;
    let sale = system.create_sale(NewSale { shards: ShardCount::parse(8).unwrap(), ..terms(60) }).await;
    let mut nodes = Vec::new();
    for shard in 0..8 {
        nodes.push(node_of(&cluster, &system, &sale, shard).await);
    }
    let killed = nodes[0];
    nodes.sort_unstable();
    nodes.dedup();
    assert_eq!(nodes.len(), 3, "the shards lie on all masters");
    let others = join_all((0..5).map(|_| sale_elsewhere(&cluster, &system, killed))).await;
    let users: Vec<String> = (0..100).map(|n| format!("u{n}")).collect();
    let before = join_all(users[..30].iter().map(|user| answered(&system, &sale, user))).await;
    assert!(before.iter().all(|answer| answer.status == 202));
    cluster.kill(killed);
    for other in &others {
        assert_eq!(answered(&system, other, "ann").await.code(), "202");
    }
    let after = join_all(users.iter().map(|user| answered(&system, &sale, user))).await;
    for (again, before) in after.iter().zip(&before) {
        assert_eq!((again.status, again.order_id()), (202, before.order_id()));
    }
    assert_eq!(after.iter().filter(|answer| answer.status == 202).count(), 60);
    assert!(after.iter().all(|answer| ["202", "409 sold-out"].contains(&answer.code().as_str())));
    // The node that is asked may learn of the failover slightly later.
    wait_until(|| node_of(&cluster, &system, &sale, 0), |&node| node != killed).await;
    for other in &others {
        assert_eq!(answered(&system, other, "bob").await.code(), "202");
    }
    system.all_settled(others.iter().chain([&sale])).await;
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (0, Some(0)));
    system.finish().await;
}

/// No buyer gets "sold out" meanwhile, and a buyer who repeats waits for the same lender. All others buy.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_master_says_nothing_its_shards_are_not_empty_and_the_others_sell() {
    let cluster = RedisCluster::start(Duration::from_secs(600)).await;
    let system = system_on(&cluster, "2000").await;
    let sale = system.create_sale(NewSale { shards: ShardCount::parse(4).unwrap(), ..terms(12) }).await;
    let of = system.shards(&sale).await;
    let silent = node_of(&cluster, &system, &sale, 0).await;
    let mut answering = Vec::new();
    for shard in 0..4 {
        if node_of(&cluster, &system, &sale, shard).await != silent {
            answering.push(Shard(shard));
        }
    }
    let others = join_all((0..5).map(|_| sale_elsewhere(&cluster, &system, silent))).await;
    let users: Vec<String> =
        (0..).map(|n| format!("u{n}")).filter(|user| answering.contains(&of.home(user))).take(15).collect();
    cluster.halt(silent, true);
    // On a busy machine the other masters may also answer too late. A repeat returns the purchase.
    let buy_all = || join_all(users.iter().map(|user| buy(&system, &sale, user)));
    let first = wait_until(buy_all, |first| first.iter().any(|answer| answer.status == 202)).await;
    assert!(first.iter().all(|answer| [202, 503].contains(&answer.status)), "nothing is sold out");
    let sold = first.iter().filter(|answer| answer.status == 202).count();
    assert!(sold <= 3 * answering.len(), "{sold} sold");
    // While all of them repeat, and wait for the silent master, the other sales sell to everyone.
    let crowd = join_all(users.iter().cycle().take(150).map(|user| buy(&system, &sale, user)));
    let elsewhere = others.iter().flat_map(|other| users[..5].iter().map(|user| answered(&system, other, user)));
    let (again, elsewhere) = tokio::join!(crowd, join_all(elsewhere));
    assert!(elsewhere.iter().all(|answer| answer.status == 202));
    assert!(again.iter().all(|answer| [202, 503].contains(&answer.status)), "nothing is sold out");
    for (user, first) in users.iter().zip(&first) {
        if first.status == 202 {
            assert_eq!(answered(&system, &sale, user).await.order_id(), first.order_id());
        } else {
            let again = buy(&system, &sale, user).await;
            assert!([202, 503].contains(&again.status), "{}", again.code());
        }
    }
    cluster.halt(silent, false);
    let last = join_all(users.iter().map(|user| answered(&system, &sale, user))).await;
    assert_eq!(last.iter().filter(|answer| answer.status == 202).count(), 12);
    for (last, first) in last.iter().zip(&first).filter(|(_, first)| first.status == 202) {
        assert_eq!(last.order_id(), first.order_id());
    }
    system.settled(&sale).await;
    assert_eq!(system.available(&sale).await, Some(0));
    system.finish().await;
}

/// F38: a slow master delays its own sales only. Meanwhile each sale on the other masters sells to five buyers, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_master_makes_its_own_sales_wait() {
    let cluster = RedisCluster::start(Duration::from_secs(600)).await;
    let system = system_on(&cluster, "20000").await;
    let slow_sale = system.create_sale(terms(1_000)).await;
    let slow = node_of(&cluster, &system, &slow_sale, 0).await;
    let others = join_all((0..5).map(|_| sale_elsewhere(&cluster, &system, slow))).await;
    for sale in others.iter().chain([&slow_sale]) {
        assert_eq!(answered(&system, sale, "first").await.code(), "202");
    }
    // On a busy machine the pause may end too soon: one success is enough.
    let mut turn = 0;
    eventually(|| {
        turn += 1;
        let (system, cluster, others, slow_sale) = (&system, &cluster, &others, &slow_sale);
        async move {
            cluster.ask(slow, &["CLIENT", "PAUSE", "1000", "ALL"]);
            let users: Vec<String> = (0..5).map(|n| format!("t{turn}x{n}")).collect();
            let waiting = buy(system, slow_sale, &users[0]);
            let elsewhere = join_all(others.iter().map(|other| async {
                for user in &users {
                    let code = buy(system, other, user).await.code();
                    if !["202", "409 sold-out"].contains(&code.as_str()) {
                        return Err(code);
                    }
                }
                Ok(())
            }));
            tokio::pin!(waiting, elsewhere);
            tokio::select! {
                biased;
                answer = &mut waiting => {
                    _ = elsewhere.await;
                    Err(format!("the slow sale answered {} first", answer.code()))
                }
                codes = &mut elsewhere => {
                    waiting.await;
                    codes.into_iter().collect::<Result<(), String>>()
                }
            }
        }
    })
    .await;
    for sale in others.iter().chain([&slow_sale]) {
        assert!([202, 409].contains(&answered(&system, sale, "last").await.status));
        system.settled(sale).await;
    }
    system.finish().await;
}
