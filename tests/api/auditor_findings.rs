//! The auditor finds what is broken: a check that cannot fail checks nothing.

use seckill_harness::{System, terms};

/// Breaks one thing by SQL, and says which invariants the auditor then misses.
async fn broken_by(sql: &'static str) -> Vec<&'static str> {
    // The sweeper would mend what the auditor is to find.
    let system = System::start_with(&[("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "600000")]).await;
    let sale = system.create_sale(terms(10)).await;
    for user in ["a", "b", "c"] {
        assert_eq!(system.buy(&sale, user).send().await.code(), "202");
    }
    system.settled(&sale).await;
    let mut one = sqlx::pool::PoolConnection::detach(system.sql.acquire().await.unwrap());
    sqlx::raw_sql(sql).execute(&mut one).await.unwrap();
    let verdict = system.audit(&sale).await.unwrap().unwrap();
    assert!(!verdict.held);
    let found = verdict.findings.iter().map(|finding| finding.invariant).collect();
    system.finish().await;
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_too_many_is_found() {
    assert!(broken_by("UPDATE sales SET stock = stock + 1").await.contains(&"I1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_winner_is_found() {
    let found = broken_by("DELETE FROM orders WHERE user_id = 'a'").await;
    assert!(found.contains(&"I1") && found.contains(&"I2") && found.contains(&"I3"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_over_the_limit_is_found() {
    assert!(broken_by("UPDATE orders SET user_id = 'b' WHERE user_id = 'a'").await.contains(&"I2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_hangs_is_found() {
    let found = broken_by(
        "UPDATE orders SET expires_at = now() - interval '5 minutes' WHERE user_id = 'a';
         UPDATE outbox SET due_at = now() + interval '1 day' WHERE kind = 'order_expire'",
    )
    .await;
    assert!(found.contains(&"I3"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_illegal_step_is_refused_and_a_forged_history_is_found() {
    let forged = "ALTER TABLE orders DISABLE TRIGGER orders_step;
                  UPDATE orders SET status = 'refunded' WHERE user_id = 'a'";
    assert!(broken_by(forged).await.contains(&"I9"));
    let system = System::start().await;
    let sale = system.create_sale(terms(1)).await;
    assert_eq!(system.buy(&sale, "a").send().await.code(), "202");
    system.settled(&sale).await;
    let illegal = sqlx::query("UPDATE orders SET status = 'refunded'").execute(&system.sql).await;
    assert!(illegal.unwrap_err().to_string().contains("may not go from pending_payment to refunded"));
    system.finish().await;
}
