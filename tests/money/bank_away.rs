//! A bank that is down, accepts less than its agreed rate, or has lost a refund.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use seckill_harness::PATIENCE;
use seckill_harness::outage::outage;
use serde_json::json;

use crate::world::{Rates, World};

#[tokio::test(flavor = "multi_thread")]
async fn payments_wait_for_a_bank_that_is_down_and_workers_still_stop_on_sigterm() {
    let mut world = World::with_orders(20, &Rates { pay: 200, refund: 50 }, false, &[]).await;
    world.bank.close();
    let mut workers = world.workers(1).await;
    world.pay_all().await;
    // A worker has claimed a payment, failed to connect, and claimed it again.
    world.wait_until("SELECT coalesce(max(claim), 0)::bigint FROM payments", |claims| claims > 1).await;
    let signalled = Instant::now();
    workers.pop().unwrap().end();
    assert!(signalled.elapsed() < PATIENCE, "the worker took {:?} to end", signalled.elapsed());
    let _workers = world.workers(2).await;
    world.reopen(&Rates { pay: 200, refund: 50 }).await;
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", 20).await;
    assert_eq!(world.bank.totals().await.0, 20);
    world.finish_and_audit().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bank_that_accepts_less_than_the_agreed_rate_still_gets_all_payments() {
    let mut world = World::with_orders(30, &Rates { pay: 200, refund: 50 }, true, &[]).await;
    world.reopen(&Rates { pay: 10, refund: 50 }).await;
    world.pay_all().await;
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", 30).await;
    assert!(
        world.bank.arrivals("pay", "refused-rate").await > 0,
        "the bank never refused a payment, so the test proves nothing"
    );
    assert_eq!(world.bank.totals().await.0, 30);
    world.finish_and_audit().await;
}

/// Another server answered at the bank's address, or the bank was restored from an old backup.
#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_the_bank_does_not_know_is_sent_again() {
    let world = World::with_orders(3, &Rates { pay: 200, refund: 50 }, false, &[]).await;
    let workers = world.workers(1).await;
    world.pay_all().await;
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", 3).await;
    drop(workers);
    for buyer in 0..3 {
        assert_eq!(world.post(buyer, "refunds", json!({ "reason": "" })).await, 202);
    }
    let mark_done = "UPDATE outflow_items SET status = 'done', done_at = now()";
    world.system.execute(mark_done).await;
    let _workers = world.workers(1).await;
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'refunded'", 3).await;
    assert_eq!(world.bank.totals().await.1, 3);
    world.finish_and_audit().await;
}

/// Two workers, twenty payments and ten refunds, and a bank that answers 5xx for an hour.
#[tokio::test(flavor = "multi_thread")]
async fn an_hours_outage_of_the_bank_ends_by_itself_and_each_is_sent_once() {
    let rates = Rates { pay: 200, refund: 50 };
    let mut world = World::with_orders(30, &rates, false, &[]).await;
    let _workers = world.workers(2).await;
    for buyer in 0..10 {
        assert_eq!(world.pay(buyer).await, 202);
    }
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", 10).await;
    let (away, asked) = world.bank.answer_503().await;
    for buyer in 0..10 {
        assert_eq!(world.post(buyer, "refunds", json!({ "reason": "" })).await, 202);
    }
    for buyer in 10..30 {
        assert_eq!(world.pay(buyer).await, 202);
    }
    let probes = outage(&world.system.sql, "payments sandbox", Duration::from_secs(3_600)).await;
    assert!((30..90).contains(&probes), "{probes} probes in an hour");
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked < 250, "{asked} requests in an hour, for payments and for refunds");
    assert_eq!(world.count("SELECT count(*) FROM outbox WHERE status = 'parked'").await, 0);
    assert_eq!(world.count("SELECT count(*) FROM outflow_items WHERE status = 'parked'").await, 0);
    drop(away);
    world.reopen(&rates).await;
    world.system.execute("UPDATE receivers_away SET pauses_until = now()").await;
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", 20).await;
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'refunded'", 10).await;
    let totals = world.bank.totals().await;
    assert_eq!((totals.0, totals.1), (30, 10), "each once");
    world.finish_and_audit().await;
}
