//! A peak of payments is delayed and none is refused, and the bank never sees more than its rate (I4).

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::world::{Rates, World, long};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_peak_of_payments_waits_its_turn_and_none_is_refused() {
    let payments = if long() { 3_000 } else { 600 };
    let rate = 200;
    let world = World::with_orders(payments, &Rates { pay: rate, refund: 1 }, true, &[]).await;
    let begun = Instant::now();
    // All of them come within a second, whether the earlier ones were answered or not.
    let coming = (0..payments).map(|buyer| {
        let (world, at) = (&world, begun + SECOND.mul_f64(buyer as f64 / payments as f64));
        async move {
            tokio::time::sleep_until(at.into()).await;
            (world.pay(buyer).await, at.elapsed())
        }
    });
    let answers = join_all(coming).await;
    let asked = begun.elapsed();
    assert!(answers.iter().all(|(status, _)| *status == 202), "none is refused");
    let slowest = answers.iter().map(|(_, took)| *took).max().unwrap();
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", i64::try_from(payments).unwrap()).await;
    let took = begun.elapsed();
    let (peak, _) = world.bank.peak("pay").await;
    let refused = world.bank.arrivals("pay", "refused-rate").await;
    let metrics = reqwest::get(world.system.url("/metrics")).await.unwrap().text().await.unwrap();
    let shown = |name: &str| metrics.lines().find(|line| line.starts_with(name)).unwrap_or("missing").to_owned();
    let (sum, count) = (shown("seckill_payment_wait_seconds_sum"), shown("seckill_payment_wait_seconds_count"));
    eprintln!(
        "{payments} payments asked for within a second, all taken in after {asked:.1?} (the slowest answer {slowest:.1?}), all paid after {took:.1?}; at the bank at most {peak} in any second; {sum}; {count}"
    );
    assert!(peak <= u64::from(rate), "{peak} in a second");
    assert_eq!(refused, 0);
    assert_eq!(world.bank.books().await.0, payments);
    // The delay is shown: on average half of the time that the bank needs beyond the time in which the payments came.
    let waited: f64 = sum.split(' ').next_back().unwrap().parse().unwrap();
    let average = (payments as f64 / f64::from(rate) - asked.as_secs_f64()).max(0.0) / 2.0;
    assert!(waited / payments as f64 > average * 0.7, "{waited} s in all");
    world.audited().await;
}
