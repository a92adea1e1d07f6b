//! A bank that is away, takes less than was agreed, or has forgotten: payments and refunds wait, and workers can be stopped
//! all the same.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::world::{Rates, World};

#[tokio::test(flavor = "multi_thread")]
async fn payments_wait_for_a_bank_that_is_away_and_workers_end_when_they_are_told() {
    let mut world = World::with_orders(20, &Rates { pay: 200, refund: 50 }, false, &[]).await;
    world.bank.close();
    let mut workers = world.workers(1).await;
    world.all_pay().await;
    // Tried, and taken back.
    world.wait_until("SELECT coalesce(max(claim), 0)::bigint FROM payments", |claims| claims > 1).await;
    let told = Instant::now();
    workers.pop().unwrap().end();
    assert!(told.elapsed() < Duration::from_secs(15), "it took {:?} to end", told.elapsed());
    let _workers = world.workers(2).await;
    world.reopen(&Rates { pay: 200, refund: 50 }).await;
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", 20).await;
    assert_eq!(world.bank.books().await.0, 20);
    world.audited().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bank_that_takes_less_than_was_agreed_gets_its_rest() {
    let mut world = World::with_orders(60, &Rates { pay: 200, refund: 50 }, true, &[]).await;
    world.reopen(&Rates { pay: 10, refund: 50 }).await;
    world.all_pay().await;
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", 60).await;
    assert!(world.bank.arrivals("pay", "refused-rate").await > 0, "it never had to refuse");
    assert_eq!(world.bank.books().await.0, 60);
    world.audited().await;
}

/// Something else has answered in the bank's place, or the bank was restored from an old copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_the_bank_has_never_heard_of_leaves_again() {
    let world = World::with_orders(3, &Rates { pay: 200, refund: 50 }, false, &[]).await;
    let workers = world.workers(1).await;
    world.all_pay().await;
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", 3).await;
    drop(workers);
    for buyer in 0..3 {
        assert_eq!(world.ask(buyer, "refunds", json!({ "reason": "" })).await, 202);
    }
    let taken = "UPDATE outflow_items SET status = 'done', done_at = now()";
    sqlx::query(taken).execute(&world.system.sql).await.unwrap();
    let _workers = world.workers(1).await;
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'refunded'", 3).await;
    assert_eq!(world.bank.books().await.1, 3);
    world.audited().await;
}
