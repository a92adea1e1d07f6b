//! A step that waits for the broker blocks no other step. A step that waits for PostgreSQL is not delivered again.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use seckill_buying::sale_work::relay::Relay;
use seckill_config::Config;
use seckill_harness::folder::Folder;
use seckill_harness::{System, eventually, terms, until};
use seckill_postgres::outbox::RetryPolicy;
use seckill_rabbitmq::{Broker, Consumer, Destination, MessageBatch, Outgoing, Publisher, QueueError, Source};
use serde_json::Value;
use sqlx::{Connection, PgConnection, raw_sql};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::orders::relay_resends::own_broker;

/// A relay whose broker does not answer has its rows, and no lock on them: the consumers of other queues can change theirs.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_waits_for_the_broker_locks_nothing() {
    let folder = Folder::new("broker");
    let (own, settings) = own_broker(&folder, &[]).await;
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let system = System::without_workers(&settings).await;
    let sale = system.create_sale(terms(5)).await;
    system.all_buy(&sale, &["ann", "bob"]).await;
    let publisher = Arc::new(Publisher::new(Broker::new(&system.config)));
    eventually(|| async { publisher.connect().await.map_err(|error| error.to_string()) }).await;
    let queue = |act: &str| {
        own.control(&["eval", &format!("ok = sys:{act}('%2F_{}groups-placed').", system.config.amqp.prefix)]);
    };
    queue("suspend");
    let retry = RetryPolicy { max_attempts: 8, backoff_base_ms: 500, backoff_max_ms: 60_000 };
    let relay = Relay { ledger: system.stores.ledger.clone(), publisher, batch_max: 500, retry };
    let stepping = relay.clone();
    let step = tokio::spawn(async move { stepping.step().await });
    let mut sql = PgConnection::connect(&system.config.database.url).await.unwrap();
    raw_sql("SET lock_timeout = '2s'").execute(&mut sql).await.unwrap();
    // Only after the relay has claimed them.
    let leased = "SELECT count(*) FROM outbox WHERE next_attempt_at > now() + interval '1 second'";
    until(2, || system.value::<i64>(leased)).await;
    let locked = raw_sql("SELECT FROM outbox FOR UPDATE").execute(&mut sql).await;
    assert!(locked.is_ok(), "{locked:?}");
    assert!(step.await.unwrap().is_err(), "the broker did not answer");
    queue("resume");
    // The lease ended with the failure.
    until(2, || async {
        _ = relay.step().await;
        system.value::<i64>("SELECT count(*) FROM outbox WHERE status = 'sent'").await
    })
    .await;
    system.finish().await;
}

/// A step is given up each second while PostgreSQL is away. A broker that counts deliveries, as RabbitMQ 4 does, sees one.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_settling_is_given_up_is_kept_and_not_delivered_again() {
    let folder = Folder::new("broker");
    let (own, environment) = own_broker(&folder, &[]).await;
    own.control(&["set_policy", "few", ".*", r#"{"delivery-limit":2}"#, "--apply-to", "queues"]);
    let broker = Broker::new(&Config::read(&environment).unwrap());
    let publisher = Publisher::new(broker.clone());
    eventually(|| async { publisher.connect().await.map_err(|error| error.to_string()) }).await;
    let message =
        Outgoing { to: Destination::GroupsPlaced, id: uuid::Uuid::now_v7(), body: b"{}".to_vec(), trace: None };
    publisher.publish(&[message]).await.unwrap();
    let (mut consumer, stop) = (Consumer::<Value>::new(broker, Source::GroupsPlaced, 10), CancellationToken::new());
    let begun = Mutex::new(0);
    for _ in 0..6 {
        let never = |_: MessageBatch<Value>| {
            *begun.lock() += 1;
            std::future::pending::<Result<(), QueueError>>()
        };
        // Given up after it settles.
        let given_up = timeout(Duration::from_secs(20), async {
            tokio::select! {
                _ = consumer.step(&stop, never) => {}
                () = until(true, || async { *begun.lock() > 0 }) => {}
            }
        });
        given_up.await.unwrap();
        *begun.lock() = 0;
    }
    let settled = Mutex::new(0);
    let settle = |received: MessageBatch<Value>| {
        *settled.lock() += received.messages.len();
        async { Ok::<_, QueueError>(()) }
    };
    consumer.step(&stop, settle).await.unwrap();
    assert_eq!(*settled.lock(), 1);
    let dead = publisher.dead_letters().await.unwrap().unwrap();
    assert_eq!(dead.messages, 0, "{dead:?}");
}
