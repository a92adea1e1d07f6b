//! F9, F18: a bank with all switches on, and workers that are killed meanwhile.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use seckill_domain::payment::RefundId;
use serde_json::json;

use crate::world::{Rates, World, long, worker};

#[tokio::test(flavor = "multi_thread")]
async fn the_books_hold_while_the_bank_misbehaves_and_workers_die() {
    let seed = std::env::var("SECKILL_TEST_SEED").map_or(7, |seed| seed.parse().unwrap());
    let orders = if long() { 2_000 } else { 200 };
    // A worker that dies at its worst moment costs its payments one of these times, and a slow machine has many such moments.
    let soon = [("SECKILL_OUTBOX__RESEND_AFTER_MS", "1000"), ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "1000")];
    let world = World::with_orders(orders, &Rates { pay: 200, refund: 50 }, false, &soon).await;
    world
        .bank
        .switch(json!({
            "seed": seed, "slow_ms": 30, "fail_permille": 50, "lost_answer_permille": 100, "decline_permille": 100,
            "repeat_callbacks": 2, "callback_delay_ms": 400, "shuffle_callbacks": true,
            "drop_callbacks_permille": 200, "wrong_amount_permille": 50, "confirm_ms": 50,
        }))
        .await;
    let mut dice = StdRng::seed_from_u64(seed);
    let mut workers = world.workers(3).await;
    // All buyers pay. Of each five buyers, one cancels soon afterwards and one asks for a refund.
    let pauses: Vec<u64> = (0..orders).map(|_| dice.random_range(0..1_500)).collect();
    let buying = async {
        let buyers = stream::iter(pauses.iter().enumerate()).map(|(buyer, pause_ms)| {
            let world = &world;
            async move {
                assert_eq!(world.pay(buyer).await, 202);
                if buyer % 5 == 0 {
                    tokio::time::sleep(Duration::from_millis(*pause_ms)).await;
                    world.post(buyer, "cancel", json!({})).await;
                } else if buyer % 5 == 1 {
                    world.payment_decided(buyer).await;
                    world.post(buyer, "refunds", json!({ "reason": "second thoughts" })).await;
                }
            }
        });
        buyers.buffer_unordered(64).collect::<()>().await;
    };
    let deaths = if long() { 60 } else { 7 };
    let killing = async {
        for _ in 0..deaths {
            tokio::time::sleep(Duration::from_millis(dice.random_range(200..900))).await;
            // On a slow machine, workers that are killed faster than they start would complete nothing.
            world.workers_are_up(workers.len()).await;
            let victim = dice.random_range(0..workers.len());
            workers[victim] = worker(&world.system); // dropping the old value kills the old worker
        }
    };
    tokio::join!(buying, killing);
    world.wait_until_money_settles().await;
    let (paid, declined, refunded) = (
        world.count("SELECT count(*) FROM payments WHERE status = 'succeeded'").await,
        world.count("SELECT count(*) FROM payments WHERE status = 'failed'").await,
        world.count("SELECT count(*) FROM refunds WHERE status = 'succeeded'").await,
    );
    assert!(paid > 0 && declined > 0 && refunded > 0);
    // Refunds that the bank declined are retried by hand, after the bank's switches are reset.
    world.bank.switch(json!({ "decline_permille": 0, "fail_permille": 0, "lost_answer_permille": 0 })).await;
    let failed: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT id FROM refunds WHERE status = 'failed'")
        .fetch_all(&world.system.sql)
        .await
        .unwrap();
    for refund in failed {
        assert!(world.system.stores.ledger.payments.retry_refund(RefundId(refund), "test").await.unwrap());
    }
    world.wait_until_money_settles().await;
    world.finish_and_audit().await;
}
