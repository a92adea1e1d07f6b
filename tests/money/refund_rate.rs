//! I5, F19: refunds leave at one per second although workers die, and each takes effect once.

use std::time::Duration;

use serde_json::json;

use crate::world::{Rates, World, long};

/// All workers are killed after half of the refunds, and others find the backlog after a pause.
#[tokio::test(flavor = "multi_thread")]
async fn refunds_leave_at_one_a_second_though_all_workers_are_killed() {
    let (refunds, pause) = if long() { (600, 60) } else { (8, 2) };
    // The refund of a killed worker is sent again five seconds after this time.
    let soon = [("SECKILL_OUTFLOW__REQUEST_TIMEOUT_MS", "2000")];
    let world = World::with_orders(refunds, &Rates { pay: 1_000, refund: 1 }, false, &soon).await;
    let workers = world.workers(4).await;
    world.pay_all().await;
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", i64::try_from(refunds).unwrap()).await;
    for buyer in 0..refunds {
        assert_eq!(world.post(buyer, "refunds", json!({ "reason": "" })).await, 202);
    }
    world.refunds_at_the_bank(refunds / 2).await;
    drop(workers);
    tokio::time::sleep(Duration::from_secs(pause)).await;
    let _workers = world.workers(4).await;
    world.refunds_at_the_bank(refunds).await;
    world.wait_until_money_settles().await;
    let (peak, closest_us) = world.bank.peak("refund").await;
    assert_eq!(peak, 1, "more than one refund in a second");
    assert!(closest_us >= 1_000_000, "two refunds are only {closest_us} us apart");
    assert_eq!(world.bank.totals().await.1, refunds, "each refund takes effect once");
    assert_eq!(world.bank.arrivals("refund", "refused-rate").await, 0);
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'refunded'", i64::try_from(refunds).unwrap()).await;
    world.finish_and_audit().await;
}
