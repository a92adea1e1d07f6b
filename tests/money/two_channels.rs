//! Two payment channels. A dead bank does not delay the other channel. Payments and refunds of a channel that was removed from
//! the settings wait until the channel is configured again.

use seckill_harness::until;
use serde_json::json;

use crate::bank::Bank;
use crate::world::{Rates, World, worker, worker_with};

const RATES: Rates = Rates { pay: 100, refund: 20 };

/// A world with a second channel of kind `sandbox`, with its bank in another process at another address.
async fn world(orders: usize) -> (World, Bank) {
    let mut second = Bank::reserve_address();
    let url = second.url();
    let settings = [
        ("SECKILL_CHANNELS__SECOND__KIND", "sandbox"),
        ("SECKILL_CHANNELS__SECOND__URL", url.as_str()),
        ("SECKILL_CHANNELS__SECOND__RATE", "100"),
        ("SECKILL_CHANNELS__SECOND__REFUND_RATE", "20"),
        ("SECKILL_CHANNELS__SECOND__JITTER_MS", "60"),
        ("SECKILL_CHANNELS__SECOND__TIMEOUT_MS", "5000"),
        ("SECKILL_CHANNELS__SECOND__TITLE", "Card"),
    ];
    let world = World::with_orders(orders, &RATES, false, &settings).await;
    second.open(&world.system.url("/api/v1/payments/callbacks/second"), RATES.pay, RATES.refund).await;
    (world, second)
}

/// Buyers with even numbers pay through the first channel, the others through the second.
async fn pay(world: &World, buyers: std::ops::Range<usize>) {
    for buyer in buyers {
        let channel = if buyer % 2 == 0 { "sandbox" } else { "second" };
        assert_eq!(world.post(buyer, "payments", json!({ "channel": channel })).await, 202);
    }
}

async fn refund(world: &World, buyers: std::ops::Range<usize>) {
    for buyer in buyers {
        assert_eq!(world.post(buyer, "refunds", json!({ "reason": "" })).await, 202);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_bank_delays_only_its_own_payments_and_refunds() {
    let (mut world, second) = world(120).await;
    let listed: serde_json::Value =
        reqwest::get(world.system.url("/api/v1/payments/channels")).await.unwrap().json().await.unwrap();
    let titles = json!([{ "title": "Sandbox bank", "title_zh": "测试银行" }, { "title": "Card", "title_zh": "Card" }]);
    assert_eq!(listed, json!({ "channels": ["sandbox", "second"], "titles": titles }));
    let _workers = world.workers(2).await;
    pay(&world, 0..40).await;
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", 40).await;
    refund(&world, 0..10).await;

    pay(&world, 40..80).await;
    world.bank.close();
    pay(&world, 80..120).await;
    refund(&world, 10..20).await;
    // The dead bank is not back before the second channel has finished.
    world.wait_for("SELECT count(*) FROM payments WHERE channel = 'second' AND status = 'succeeded'", 60).await;
    world.wait_for("SELECT count(*) FROM refunds WHERE channel = 'second' AND status = 'succeeded'", 10).await;
    let waiting = world.count("SELECT count(*) FROM payments WHERE channel = 'sandbox' AND ended_at IS NULL").await;
    assert!(waiting >= 20, "only {waiting} payments wait for the dead bank");

    world.reopen(&RATES).await;
    world.wait_until_money_settles().await;
    for bank in [&world.bank, &second] {
        let (payments, refunds, _) = bank.totals().await;
        assert_eq!((payments, refunds), (60, 10), "each payment and refund takes effect once");
        assert_eq!(bank.arrivals("pay", "refused-rate").await, 0);
    }
    world.finish_and_audit_with(&[second]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn money_of_a_channel_that_is_not_configured_waits_until_the_channel_is_configured() {
    let (world, second) = world(6).await;
    let without = [("SECKILL_CHANNELS__SECOND__URL", "")];
    let at_work = worker_with(&world.system, &without);
    pay(&world, 0..6).await;
    world.wait_for("SELECT count(*) FROM payments WHERE channel = 'sandbox' AND status = 'succeeded'", 3).await;
    let put_off = "SELECT count(*) FROM outbox WHERE kind = 'payment_requested' AND status = 'pending' AND attempts = 0
                   AND next_attempt_at > now() + interval '5 s'";
    world.wait_for(put_off, 3).await;
    drop(at_work);
    let due = "UPDATE outbox SET next_attempt_at = now() WHERE status = 'pending'";
    world.system.execute(due).await;
    let at_work = worker(&world.system);
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", 6).await;
    drop(at_work);

    refund(&world, 0..6).await;
    let at_work = worker_with(&world.system, &without);
    world.wait_for("SELECT count(*) FROM refunds WHERE channel = 'sandbox' AND status = 'succeeded'", 3).await;
    let untouched = "SELECT count(*) FROM outflow_items WHERE channel = 'refunds-second' AND claims = 0";
    assert_eq!(world.count(untouched).await, 3, "refunds were claimed although the channel is not configured");
    drop(at_work);
    let _worker = worker(&world.system);
    until(3, || async { second.totals().await.1 }).await;
    world.wait_until_money_settles().await;
    world.finish_and_audit_with(&[second]).await;
}
