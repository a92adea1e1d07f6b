//! Failures of stock, holds and refills, each in a sale of its own.

use seckill_harness::{eventually, terms};

use super::drill::Drill;
use super::messages::{a_message_cannot_be_read, no_queue_takes_a_message, the_dead_letter_queue_is_deleted};
use super::programs::Programs;
use super::scene::Scene;
use crate::flow::callers_apart::redis;
use crate::network::broken_network::wire_to;
use seckill_harness::folder::free_address;

const UNSETTLED: &str = "SELECT count(*) FROM accepted_purchases WHERE sale_id = $1";
const REJECTED: &str = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'rejected'";

/// Each trouble with a sale or a message is an alert until it is put right.
#[tokio::test(flavor = "multi_thread")]
async fn sales_and_messages_that_go_wrong_are_alerts_until_they_are_put_right() {
    let settings = [
        // A message that the broker returned or refused counts as a failed attempt.
        ("SECKILL_OUTBOX__MAX_ATTEMPTS", "6"),
        ("SECKILL_OUTBOX__BACKOFF_BASE_MS", "10"),
        ("SECKILL_OUTBOX__BACKOFF_MAX_MS", "50"),
        ("SECKILL_RECONCILE__UNCONFIRMED_AFTER_MS", "500"),
        ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "500"),
        ("SECKILL_RECONCILE__DRIFT_INTERVAL_MS", "500"),
    ];
    let programs = Programs::prepare(&settings).await;
    let system = &programs.system;
    let (broker, broker_url) = wire_to(&system.environment["AMQP_URL"]).await;
    let at = free_address();
    let drill = Drill::start(&programs, &[at], &[]);
    let serve = programs.start("serve", at, &["serve", "--with-workers"], &[("AMQP_URL", broker_url.as_str())]).await;
    // Counters with labels appear with the first order.
    let sale = system.create_sale(terms(100)).await;
    let scene = Scene { drill: &drill, system, at };
    scene.bought(&sale, "first").await;
    system.settled(&sale).await;
    drill.begin().await;
    let messages = async {
        tokio::join!(no_queue_takes_a_message(scene, &sale), a_message_cannot_be_read(scene));
        // Last, because a newly opened link declares the queue.
        the_dead_letter_queue_is_deleted(scene, &broker).await;
    };
    tokio::join!(
        messages,
        a_stock_figure_is_written_by_hand(scene),
        redis_sells_too_much(scene),
        a_sale_cannot_be_refilled(scene),
        a_hold_cannot_be_finished(scene),
    );
    drill.finish().await;
    drop(serve);
    programs.system.finish().await;
}

async fn a_stock_figure_is_written_by_hand(scene: Scene<'_>) {
    let (system, alerts) = (scene.system, ["SeckillDrift"]);
    let sale = system.create_sale(terms(30)).await;
    scene.bought(&sale, "ann").await;
    system.settled(&sale).await;
    let key = format!("{}{{{}}}:sale", system.config.redis.prefix, sale.id);
    scene.drill.fires_after(&alerts, redis::<i64>(system, &["HSET", &key, "stock", "25"])).await;
    // The service has refilled the sale. The alarm stays for a minute: the test backdates it and does not wait.
    let past = "UPDATE audit_log SET at = at - interval '2 minutes' WHERE action = 'drift'";
    scene.drill.clears_after(&alerts, system.execute(past)).await;
}

async fn redis_sells_too_much(scene: Scene<'_>) {
    let (system, alerts) = (scene.system, ["SeckillOrdersRejected"]);
    let sell = async {
        eventually(|| async {
            let sale = system.create_sale(terms(2)).await;
            scene.bought(&sale, "ann").await;
            let key = format!("{}{{{}}}:sale", system.config.redis.prefix, sale.id);
            redis::<i64>(system, &["HSET", &key, "stock", "2"]).await;
            for user in ["ben", "eve"] {
                system.buy_at(scene.at, &sale, user).send().await;
            }
            scene.counts(UNSETTLED, &sale, 0).await;
            let rejected = system.count(REJECTED, &sale).await;
            (rejected == 1).then_some(()).ok_or("the stock in Redis was put right before it was sold".to_owned())
        })
        .await;
    };
    // It happened once, and the rejection has put the stock right.
    scene.drill.fires_and_clears(&alerts, sell, async {}).await;
}

async fn a_sale_cannot_be_refilled(scene: Scene<'_>) {
    let (system, alerts) = (scene.system, ["SeckillRefillFails"]);
    let sale = system.create_sale(terms(5)).await;
    scene.bought(&sale, "ann").await;
    system.settled(&sale).await;
    let lose = async {
        let mut blocker = system.sql.begin().await.unwrap();
        let lock = sqlx::query("SELECT epoch FROM sale_epochs WHERE sale_id = $1 FOR UPDATE").bind(sale.id.get());
        lock.execute(&mut *blocker).await.unwrap();
        redis::<i64>(system, &["DEL", &format!("{}{{{}}}:sale", system.config.redis.prefix, sale.id)]).await;
        blocker
    };
    let blocker = scene.drill.fires_after(&alerts, lose).await;
    scene.drill.clears_after(&alerts, async { blocker.rollback().await.unwrap() }).await;
    system.settled(&sale).await;
}

async fn a_hold_cannot_be_finished(scene: Scene<'_>) {
    let (system, alerts) = (scene.system, ["SeckillHoldsStay"]);
    let sale = system.create_sale(terms(5)).await;
    scene.bought(&sale, "first").await;
    let hold = async {
        let condition = format!("NEW.kind = 'group_placed' AND NEW.sale_id = {}", sale.id);
        system.refuse("INSERT ON outbox", &condition).await;
        eventually(|| async {
            let answer = system.buy_at(scene.at, &sale, "ann").idempotent("k").send().await.code();
            let (held, available) = (answer.starts_with("503"), system.available(&sale).await);
            (held && available == Some(3)).then_some(()).ok_or_else(|| format!("{answer}, {available:?} available"))
        })
        .await;
    };
    scene.drill.fires_and_clears(&alerts, hold, system.allow("outbox")).await;
    // The hold was not forgotten.
    system.settled(&sale).await;
    assert_eq!(system.orders(&sale).await, 2);
}
