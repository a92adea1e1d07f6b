//! The lock among instances.

use std::time::Duration;

use crate::harness::System;

#[tokio::test(flavor = "multi_thread")]
async fn one_holder_at_a_time_and_only_the_holder_gives_it_back() {
    let system = System::prepare(&[]).await;
    let gate = &system.shop.gate;
    let lease = Duration::from_millis(300);
    let held = gate.lock("l", lease).await.unwrap().unwrap();
    // Longer than its lease: it is renewed while it is held.
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(gate.lock("l", lease).await.unwrap().is_none(), "taken twice");
    assert!(held.release().await.unwrap());
    let next = gate.lock("l", lease).await.unwrap().expect("free again");
    // A holder that dies without a word: its lease runs out.
    drop(next);
    let after = gate.lock("l", lease).await.unwrap().expect("free after the lease");
    assert!(after.release().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lock_is_not_given_back_for_another() {
    let system = System::prepare(&[]).await;
    let gate = &system.shop.gate;
    let lost = gate.lock("l", Duration::from_secs(60)).await.unwrap().unwrap();
    let client = redis::Client::open(system.config.redis.url.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let key = format!("{}lock:{{l}}", system.config.redis.prefix);
    let _: () = redis::cmd("SET").arg(&key).arg("another").query_async(&mut connection).await.unwrap();
    assert!(!lost.release().await.unwrap());
    let holder: String = redis::cmd("GET").arg(&key).query_async(&mut connection).await.unwrap();
    assert_eq!(holder, "another");
    let _: () = redis::cmd("DEL").arg(&key).query_async(&mut connection).await.unwrap();
}
