//! A peak of payments: all are delayed, none is refused, and the bank never receives more than its rate (I4).

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::world::{Rates, World, jitter_ms, long};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_peak_of_payments_is_delayed_and_none_is_refused() {
    let payments = if long() { 3_000 } else { 600 };
    let rate = 200;
    let world = World::alone(payments, &Rates { pay: rate, refund: 1 }, true).await;
    let begun = Instant::now();
    // All requests are sent within a second; none waits for the answer to an earlier one.
    let coming = (0..payments).map(|buyer| {
        let (world, at) = (&world, begun + SECOND.mul_f64(buyer as f64 / payments as f64));
        async move {
            tokio::time::sleep_until(at.into()).await;
            world.pay(buyer).await
        }
    });
    let answers = join_all(coming).await;
    let asked = begun.elapsed();
    assert!(answers.iter().all(|status| *status == 202), "a payment was refused");
    world.wait_for("SELECT count(*) FROM orders WHERE status = 'paid'", i64::try_from(payments).unwrap()).await;
    let (peak, _) = world.bank.peak("pay").await;
    let refused = world.bank.arrivals("pay", "refused-rate").await;
    let metrics = reqwest::get(world.system.url("/metrics")).await.unwrap().text().await.unwrap();
    let sum = metrics.lines().find(|line| line.starts_with("seckill_payment_wait_seconds_sum")).unwrap_or("missing");
    assert!(peak <= u64::from(rate), "the bank received {peak} requests in a second");
    assert_eq!(refused, 0);
    assert_eq!(world.bank.totals().await.0, payments);
    // The metric shows the delay. Its average is half of the extra time that the channel needs after the last payment was requested.
    let waited: f64 = sum.split(' ').next_back().unwrap().parse().unwrap();
    let needed = payments as f64 * (1.0 + f64::from(jitter_ms()) / 1_000.0) / f64::from(rate);
    let average = (needed - asked.as_secs_f64()).max(0.0) / 2.0;
    assert!(waited / payments as f64 > average * 0.7, "the metric shows {waited} s of waiting in total");
    world.finish_and_audit().await;
}
