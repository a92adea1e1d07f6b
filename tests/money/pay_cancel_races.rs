//! Rule 16, F11: if a buyer pays and cancels at the same moment, exactly one of the two takes effect.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::world::{Rates, World, long};

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_paid_or_cancelled_and_never_both() {
    let orders = if long() { 1_000 } else { 200 };
    let world = World::with_orders(orders, &Rates { pay: 1_000, refund: 100 }, true, &[]).await;
    let mut dice = StdRng::seed_from_u64(11);
    world.bank.switch(json!({ "confirm_ms": 300 })).await;
    let pauses: Vec<u64> = (0..orders).map(|_| dice.random_range(0..600)).collect();
    let races = stream::iter(pauses.into_iter().enumerate()).map(|(buyer, pause_ms)| {
        let world = &world;
        let cancel = async move || world.post(buyer, "cancel", json!({})).await;
        async move {
            let answers = match buyer % 8 {
                // Buyers 0 and 1 of each eight do not race, so that each side wins some orders on any machine.
                0 => {
                    let cancelled = cancel().await;
                    (world.pay(buyer).await, cancelled)
                }
                1 => {
                    let paid = world.pay(buyer).await;
                    world.payment_decided(buyer).await;
                    (paid, cancel().await)
                }
                // Cancels while the bank decides: the money arrives for an order that has ended.
                2 => {
                    let paid = world.pay(buyer).await;
                    let sent = "SELECT count(*) FROM payments WHERE claim > 0 AND order_id =";
                    world.wait_for(&format!("{sent} '{}'", world.orders[buyer]), 1).await;
                    (paid, cancel().await)
                }
                3 | 4 => tokio::join!(world.pay(buyer), cancel()),
                // Cancels at about the moment at which the bank decides.
                _ => {
                    let later = async {
                        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                        cancel().await
                    };
                    tokio::join!(world.pay(buyer), later)
                }
            };
            (buyer, answers)
        }
    });
    let answers: Vec<_> = races.buffer_unordered(16).collect().await;
    world.wait_until_money_settles().await;
    let (mut paid, mut cancelled) = (0, 0);
    for (buyer, (pay, cancel)) in answers {
        match world.status(buyer).await.as_str() {
            "paid" => {
                assert_eq!((pay, cancel), (202, 409));
                paid += 1;
            }
            "cancelled" => {
                assert!(cancel == 200 && (pay == 202 || pay == 409), "{pay} {cancel}");
                cancelled += 1;
            }
            other => panic!("order of u{buyer} is {other}"),
        }
    }
    let (payments, refunds, cents) = world.bank.totals().await;
    assert!(paid > 0 && cancelled > 0 && refunds > 0, "one side won every race, so the test proves nothing");
    assert_eq!((payments - refunds, cents), (paid, i64::try_from(paid).unwrap() * 100));
    world.finish_and_audit().await;
}
