//! The relay and its broker: what is not confirmed is sent again.

use seckill::queue::DeadLetters;
use seckill_harness::{System, eventually, terms};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_and_never_processed_is_sent_again() {
    let mut system =
        System::prepare(&[("SECKILL_OUTBOX__RESEND_AFTER_MS", "300"), ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "100")])
            .await;
    system.serve(false).await;
    let sale = system.create_sale(terms(5)).await;
    assert_eq!(system.buy(&sale, "ann").send().await.code(), "202");
    // As if the broker had lost it after it confirmed.
    sqlx::query("UPDATE outbox SET status = 'sent', sent_at = now()").execute(&system.sql).await.unwrap();
    system.serve(true).await;
    system.settled(&sale).await;
    assert_eq!(system.orders(&sale).await, 1);
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_topology_is_declared_again() {
    let system = System::start().await;
    let sale = system.create_sale(terms(5)).await;
    assert_eq!(system.buy(&sale, "ann").send().await.code(), "202");
    system.settled(&sale).await;
    seckill::queue::Broker::new(&system.config).demolish().await.unwrap();
    assert_eq!(system.buy(&sale, "bob").send().await.code(), "202");
    eventually(|| async {
        let made = system.orders(&sale).await;
        (made == 2).then_some(()).ok_or(format!("{made} orders"))
    })
    .await;
    system.settled(&sale).await;
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_that_stand_with_another_bound_serve_as_well() {
    let mut system = System::start().await;
    let sale = system.create_sale(terms(5)).await;
    assert_eq!(system.buy(&sale, "ann").send().await.code(), "202");
    system.settled(&sale).await;
    system.stop().await;
    system.config.amqp.queue_max_length = 5_000;
    system.serve(true).await;
    assert_eq!(system.buy(&sale, "bob").send().await.code(), "202");
    system.settled(&sale).await;
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_queue_that_is_gone_is_noticed() {
    let system = System::prepare(&[]).await;
    let broker = seckill::queue::Broker::new(&system.config);
    let publisher = seckill::queue::Publisher::new(broker.clone());
    let max = system.config.amqp.queue_max_length;
    assert_eq!(publisher.dead_letters().await.unwrap(), Some(DeadLetters { messages: 0, max }));
    broker.demolish().await.unwrap();
    assert_eq!(publisher.dead_letters().await.unwrap(), None);
}
