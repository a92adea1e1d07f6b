//! The auditor finds faults: a check that cannot fail checks nothing.

use seckill_harness::{System, terms};
use seckill_postgres::sales::audit::Finding;

use crate::buying::purchase_groups::{buy_together, buyers};

/// Breaks one thing by SQL. Returns the invariants that the auditor then finds broken.
async fn broken_by(sql: &'static str) -> Vec<&'static str> {
    // The sweeper would repair the fault before the auditor sees it.
    let system = System::start_with(&[("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "600000")]).await;
    let sale = system.create_sale(terms(10)).await;
    system.all_buy(&sale, &["a", "b", "c"]).await;
    system.settled(&sale).await;
    system.execute(sql).await;
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
         UPDATE outbox SET due_at = now() + interval '1 day' WHERE kind = 'group_expire'",
    )
    .await;
    assert!(found.contains(&"I3"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_amount_or_currency_that_differs_from_the_order_s_is_found() {
    for forged in [
        "INSERT INTO payments (id, order_id, channel, amount_cents, currency)
         SELECT gen_random_uuid(), id, 'sandbox', amount_cents, 'JPY' FROM orders LIMIT 1",
        "INSERT INTO payments (id, order_id, channel, amount_cents, currency)
         SELECT gen_random_uuid(), id, 'sandbox', 9900, currency FROM orders LIMIT 1",
        "ALTER TABLE orders DISABLE TRIGGER orders_amount_fixed; UPDATE orders SET currency = 'JPY'",
    ] {
        assert_eq!(broken_by(forged).await, ["I4"], "{forged}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_illegal_step_is_refused_and_a_forged_history_is_found() {
    let forged = "ALTER TABLE orders DISABLE TRIGGER orders_step;
                  UPDATE orders SET status = 'refunded' WHERE user_id = 'a'";
    assert!(broken_by(forged).await.contains(&"I9"));
    let system = System::start().await;
    let sale = system.create_sale(terms(1)).await;
    system.all_buy(&sale, &["a"]).await;
    system.settled(&sale).await;
    let illegal = sqlx::query("UPDATE orders SET status = 'refunded'").execute(&system.sql).await;
    assert!(illegal.unwrap_err().to_string().contains("may not go from pending_payment to refunded"));
    system.finish().await;
}

/// I9: one statement inserts many orders: none of them, or all with a step and an event each.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_with_one_illegal_order_makes_none() {
    let mut system = System::prepare(&[]).await;
    // Without workers, which would send the events.
    system.serve(false).await;
    let sale = system.create_sale(terms(10)).await;
    system.execute("UPDATE shop SET listens = true").await;
    let make = |statuses: [&'static str; 3]| {
        let sql = "INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, currency, status, reason, expires_at, group_id)
                   SELECT gen_random_uuid(), $1, 'u' || n, 1, 100, 'CNY', status,
                          CASE status WHEN 'rejected' THEN 'over-limit' END, now() + interval '1 hour', gen_random_uuid()
                   FROM unnest($2::text[]) WITH ORDINALITY AS o (status, n)";
        sqlx::query(sql).bind(sale.id.get()).bind(statuses.map(str::to_owned).to_vec())
    };
    let written = async || {
        let sql = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM order_steps),
                          (SELECT count(*) FROM order_events)";
        sqlx::query_as::<_, (i64, i64, i64)>(sql).fetch_one(&system.sql).await.unwrap()
    };
    let refused = make(["pending_payment", "paid", "pending_payment"]).execute(&system.sql).await.unwrap_err();
    assert!(refused.to_string().contains("may not go from accepted to paid"), "{refused}");
    assert_eq!(refused.as_database_error().unwrap().constraint(), Some("orders_legal_step"));
    assert_eq!(written().await, (0, 0, 0));

    make(["pending_payment", "rejected", "pending_payment"]).execute(&system.sql).await.unwrap();
    assert_eq!(written().await, (3, 3, 3));
    let right = "SELECT count(*) FROM orders o
                 JOIN order_steps s ON s.order_id = o.id AND s.from_status = 'accepted' AND s.to_status = o.status
                 JOIN order_events e ON e.order_id = o.id AND e.step_id = s.id WHERE o.sale_id = $1";
    assert_eq!(system.count(right, &sale).await, 3);
    // One change of many orders also writes a step and an event for each.
    let cancelled = "UPDATE orders SET status = 'cancelled', reason = 'expired' WHERE status = 'pending_payment'";
    system.execute(cancelled).await;
    assert_eq!(written().await, (3, 5, 5));
    system.stop().await;
}

/// I3 and I6: the possible faults of group rows, each planted into a healthy sale: two of its groups are settled, one was split.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_groups_is_found() {
    let planted = [
        ("I3", "a processed purchase has no order", "UPDATE purchase_groups SET order_ids[2] = gen_random_uuid() WHERE members > 1 AND NOT was_split"),
        ("I3", "an order is no member", "UPDATE purchase_groups SET user_ids[1] = 'eve' WHERE NOT was_split"),
        ("I3", "an order is no member", "UPDATE orders SET group_id = gen_random_uuid()"),
        (
            "I3",
            "a purchase stands twice",
            "INSERT INTO purchase_groups (id, sale_id, epoch, shard, members, units, order_ids, user_ids, quantities,
                                          addresses, was_split, settled_at)
             SELECT gen_random_uuid(), sale_id, epoch, shard, members, units, order_ids, user_ids, quantities, addresses,
                    was_split, settled_at FROM purchase_groups WHERE members > 1 LIMIT 1",
        ),
        (
            "I3",
            "a purchase of a group that was split",
            "UPDATE purchase_groups SET order_ids[2] = gen_random_uuid() WHERE was_split",
        ),
        ("I6", "a group is settled", "UPDATE outbox SET status = 'parked', last_error = 'x' WHERE kind = 'group_placed'"),
        ("I6", "a group is settled", "DELETE FROM outbox WHERE kind = 'group_placed'"),
    ];
    let mut system = System::without_workers(&[("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "600000")]).await;
    let sale = system.create_sale(terms(20)).await;
    let names = buyers(9);
    for names in names.chunks(3) {
        let group = buy_together(&system, &sale, names).await[0].group;
        if names[0] == "u6" {
            assert_eq!(system.stores.ledger.orders.split_group(group, "test").await.unwrap(), Some(3));
        }
    }
    system.serve(true).await;
    system.settled(&sale).await;
    // Everything is stopped that would repair the faults. Each fault is taken back before the next.
    system.stop().await;
    system
        .execute(
            "CREATE TABLE kept_groups AS TABLE purchase_groups; CREATE TABLE kept_outbox AS TABLE outbox;
         CREATE TABLE kept_orders AS SELECT id, group_id FROM orders",
        )
        .await;
    for (invariant, problem, fault) in planted {
        system.execute(fault).await;
        let verdict = system.audit(&sale).await.unwrap().unwrap();
        let found = |finding: &Finding| finding.invariant == invariant && finding.problem.starts_with(problem);
        assert!(verdict.findings.iter().any(found), "{fault}: {verdict:#?}");
        system.execute("DELETE FROM purchase_groups; INSERT INTO purchase_groups OVERRIDING SYSTEM VALUE SELECT * FROM kept_groups;
             DELETE FROM outbox; INSERT INTO outbox OVERRIDING SYSTEM VALUE SELECT * FROM kept_outbox;
             UPDATE orders o SET group_id = k.group_id FROM kept_orders k WHERE k.id = o.id")
        .await;
    }
    system.settled(&sale).await;
    system.finish().await;
}
