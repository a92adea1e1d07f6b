//! B13: a peak of payments is delayed, not refused, and the bank never sees more than it takes.

use std::time::Instant;

use crate::world::{Rates, World, long};

#[tokio::test(flavor = "multi_thread")]
async fn a_peak_of_payments_waits_its_turn_and_none_is_refused() {
    let payments = if long() { 3_000 } else { 600 };
    let rate = 200;
    let world = World::with_orders(payments, &Rates { pay: rate, refund: 1 }, true, &[]).await;
    let begun = Instant::now();
    world.all_pay().await;
    let asked = begun.elapsed();
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", i64::try_from(payments).unwrap()).await;
    let took = begun.elapsed();
    let (peak, _) = world.bank.peak("pay").await;
    let refused = world.bank.arrivals("pay", "refused-rate").await;
    let metrics = reqwest::get(world.system.url("/metrics")).await.unwrap().text().await.unwrap();
    let shown = |name: &str| metrics.lines().find(|line| line.starts_with(name)).unwrap_or("missing").to_owned();
    let (sum, count) = (shown("seckill_payment_wait_seconds_sum"), shown("seckill_payment_wait_seconds_count"));
    eprintln!(
        "{payments} payments asked for in {asked:.1?}, all paid after {took:.1?}; at the bank at most {peak} in any second; {sum}; {count}"
    );
    assert!(peak <= u64::from(rate), "{peak} in a second");
    assert_eq!(refused, 0);
    assert_eq!(world.bank.books().await.0, payments);
    let waited: f64 = sum.split(' ').next_back().unwrap().parse().unwrap();
    assert!(waited > 0.0, "the delay is shown");
    world.audited().await;
}
