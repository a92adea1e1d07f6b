//! The steps after a purchase: expiry by delayed messages, duplicates, poison messages, the retry limit.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use rand::seq::SliceRandom;
use seckill_domain::ids::{GroupId, OrderId, Units};
use seckill_domain::message::{GroupsExpireV1, OutboxKind, Version};
use seckill_domain::sale::NewSale;
use seckill_postgres::orders::expiry::ExpiryOutcome;
use seckill_rabbitmq::{Broker, Destination, Outgoing, Publisher};

use seckill_harness::{Sale, System, eventually, redis_at, terms, until};

use crate::buying::purchase_groups::{buyers as users, placed, settle_ones};
use crate::buying::two_groups::unlocked;
use crate::orders::payments_and_callbacks::status;
use crate::orders::relay_resends::{depth, published};
use crate::pages::served_pages::{command, seckill};
use crate::redis::own_redis::OwnRedis;

const EXPIRED: &str = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'cancelled' AND reason = 'expired'";
/// Orders cancelled before their deadline.
const EARLY: &str = "SELECT count(*) FROM orders WHERE sale_id = $1 AND updated_at < expires_at";
/// A failing message or row is parked soon.
pub const FEW_ATTEMPTS: [(&str, &str); 3] = [
    ("SECKILL_OUTBOX__MAX_ATTEMPTS", "2"),
    ("SECKILL_OUTBOX__BACKOFF_BASE_MS", "10"),
    ("SECKILL_OUTBOX__BACKOFF_MAX_MS", "50"),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_unpaid_order_is_cancelled_by_a_delayed_message_and_sold_again() {
    // The sweeper would come too late, so it was the message.
    let system = System::start_with(&[("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "3600000")]).await;
    let sale = system.create_sale(NewSale { pay_within_ms: 2_500, ..terms(3) }).await;
    system.all_buy(&sale, &["a", "b", "c"]).await;
    until(3, || system.count(EXPIRED, &sale)).await;
    assert_eq!(system.count(EARLY, &sale).await, 0, "nobody is cancelled before his time");
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (3, Some(3)));
    system.all_buy(&sale, &["d", "e", "f"]).await;
    system.settled(&sale).await;
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sweeper_is_a_net_under_lost_delays() {
    let system = System::start_with(&[
        ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "200"),
        ("SECKILL_RECONCILE__SWEEP_GRACE_MS", "100"),
    ])
    .await;
    let sale = system.create_sale(NewSale { pay_within_ms: 600_000, ..terms(1) }).await;
    system.all_buy(&sale, &["a"]).await;
    system.settled(&sale).await;
    // As if ten minutes had passed, and the message was lost.
    system.execute("UPDATE orders SET expires_at = now() - interval '1 second'").await;
    system.left(&sale, 1).await;
    system.settled(&sale).await;
    system.finish().await;
}

/// A system without workers, and a sale whose units have all been bought by as many buyers.
async fn bought_by(buyers: usize, pay_within_ms: i64, settings: &[(&str, &str)]) -> (System, Sale, Vec<OrderId>) {
    let system = System::without_workers(settings).await;
    let sale = system.create_sale(NewSale { pay_within_ms, ..terms(i64::try_from(buyers).unwrap()) }).await;
    let orders = system.all_buy(&sale, &users(buyers)).await.into_iter().map(OrderId).collect();
    (system, sale, orders)
}

/// F9: every message ten times, in any order, before and after its effect, alone and with many orders.
#[tokio::test(flavor = "multi_thread")]
async fn ten_deliveries_have_one_effect() {
    let (mut system, sale, orders) = bought_by(30, 600_000, &[("SECKILL_ORDERS__BATCH_MAX", "8")]).await;
    let messages = |message: fn(&[OrderId]) -> Outgoing| {
        let batches = [1, 3, 11].into_iter().flat_map(|size| orders.chunks(size));
        let mut messages: Vec<_> = batches.flat_map(|orders| vec![message(orders); 10]).collect();
        messages.shuffle(&mut rand::rng());
        messages
    };
    let (purchases, expiries) = (messages(placed_together), messages(expire_together));
    let publisher = Publisher::new(Broker::new(&system.config));
    published(&publisher, &purchases).await;
    system.serve(true).await;
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.orders(&sale).await), (0, 30));

    // The expiries come at the same moment as the ladder's own.
    system.let_deadlines_pass(&sale).await;
    published(&publisher, &expiries).await;
    system.left(&sale, 30).await;
    published(&publisher, &purchases).await;
    published(&publisher, &expiries).await;
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (30, Some(30)));
    let steps = "SELECT count(*) FROM order_steps s JOIN orders o ON o.id = s.order_id WHERE o.sale_id = $1";
    assert_eq!((system.orders(&sale).await, system.count(steps, &sale).await), (30, 60));
    system.finish().await;
}

fn ones(orders: &[OrderId]) -> Vec<GroupId> {
    orders.iter().map(|order| GroupId::of_one(*order)).collect()
}

fn placed_together(orders: &[OrderId]) -> Outgoing {
    placed(&ones(orders))
}

fn expire_together(orders: &[OrderId]) -> Outgoing {
    let body = serde_json::to_vec(&GroupsExpireV1 { version: Version, groups: ones(orders) }).unwrap();
    let to = Destination::GroupsExpire { remaining_ms: 0 };
    Outgoing { to, id: OutboxKind::GroupExpire.message_id_of_many(orders), body, trace: None }
}

/// F13: an unreadable message is dead-lettered alone. A purchase that cannot be written is parked alone, with its error.
#[tokio::test(flavor = "multi_thread")]
async fn a_poison_message_holds_up_nobody() {
    let (mut system, sale, orders) = bought_by(20, 900_000, &FEW_ATTEMPTS).await;
    let publisher = Publisher::new(Broker::new(&system.config));
    let garbage = ["", "{", "{\"version\":2}", "\u{0}"].map(|body| Outgoing {
        to: Destination::GroupsPlaced,
        id: uuid::Uuid::new_v4(),
        body: body.as_bytes().to_vec(),
        trace: None,
    });
    published(&publisher, &garbage).await;
    // One purchase that the schema always refuses. All of them come in one message.
    system.refuse("INSERT ON orders", &format!("NEW.id = '{}'", orders[7].0)).await;
    system.serve(true).await;
    let parked = async || system.stores.ledger.outbox.parked(None, None, 10).await.unwrap();
    until((19, 1), || async { (system.orders(&sale).await, parked().await.len()) }).await;
    let parked = parked().await.remove(0);
    assert_eq!((parked.order_id, parked.attempts), (orders[7].0, 2));
    assert!(parked.last_error.unwrap().contains("this one never"));
    // The auditor reports it as broken, and the buyer still sees a definite state. An operator retries it, and it goes through.
    let verdict = system.audit(&sale).await.unwrap().unwrap();
    assert!(verdict.findings.iter().any(|finding| finding.invariant == "I6"), "{verdict:?}");
    assert_eq!(status(&system, orders[7].0, "u7").await, "accepted");
    let broken = command(&system, &["audit"]).output().unwrap();
    assert_eq!(broken.status.code(), Some(1), "{broken:?}");
    assert!(String::from_utf8(broken.stdout).unwrap().contains("I6"));
    // The messages that nobody can read are dead letters.
    until(4, || depth(&system, "dead")).await;
    system.allow("orders").await;
    assert_eq!(seckill(&system, &["outbox", "retry"]).unwrap()["retried"], 1);
    system.settled(&sale).await;
    assert_eq!((system.orders(&sale).await, system.stock(&sale).await), (20, 0));
    system.finish().await;
}

/// The database refuses purchases promised by a Redis without its memory: no one pays for them, and Redis is corrected.
#[tokio::test(flavor = "multi_thread")]
async fn want_of_stock_rejects_the_order_and_refills_the_sale() {
    let (mut system, sale, _) = bought_by(10, 900_000, &[]).await;
    // Six units vanish from PostgreSQL without a notice.
    system.execute("UPDATE sales SET stock = 4, total_stock = 4").await;
    system.serve(true).await;
    system.settled(&sale).await;
    let rejected = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'rejected' AND reason = 'out-of-stock'";
    assert_eq!((system.orders(&sale).await, system.count(rejected, &sale).await), (10, 6));
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (0, Some(0)));
    system.finish().await;
}

/// I1, rule 7: batches settle while other orders of the same buyers expire. There is no deadlock, and no unit comes back twice.
#[tokio::test(flavor = "multi_thread")]
async fn batches_of_the_same_sales_and_buyers_never_wait_in_a_circle() {
    let mut system = System::without_workers(&[]).await;
    let (mut first, mut second, mut sales) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..2 {
        let sale = system.create_sale(NewSale { per_user: Units::parse(2).unwrap(), ..terms(40) }).await;
        for orders in [&mut first, &mut second] {
            orders.extend(system.all_buy(&sale, &users(20)).await.into_iter().map(OrderId));
        }
        sales.push(sale);
    }
    let ledger = &system.stores.ledger;
    settle_ones(ledger, &first).await.unwrap();
    for sale in &sales {
        system.let_deadlines_pass(sale).await;
    }
    // Each order is in two batches.
    let mut batches = Vec::new();
    for size in [7, 13] {
        for (expires, orders) in [(true, &mut first), (false, &mut second)] {
            orders.shuffle(&mut rand::rng());
            batches.extend(orders.chunks(size).map(|batch| (expires, batch.to_vec())));
        }
    }
    batches.shuffle(&mut rand::rng());
    let repeats = &AtomicUsize::new(0);
    let settled = batches.into_iter().map(|(expires, batch)| async move {
        if expires {
            let batch = ones(&batch);
            unlocked(repeats, || ledger.orders.expire(&batch)).await;
            0
        } else {
            unlocked(repeats, || settle_ones(ledger, &batch)).await
        }
    });
    let made: Vec<usize> = stream::iter(settled).buffer_unordered(4).collect().await;
    let made: usize = made.into_iter().sum();
    // A step that failed at a locked row does not return the orders it had made.
    assert!(made == 40 || (made < 40 && repeats.load(Ordering::SeqCst) > 0), "{made} made");
    for sale in &sales {
        assert_eq!((system.orders(sale).await, system.stock(sale).await), (40, 20));
    }
    system.serve(true).await;
    for sale in &sales {
        system.settled(sale).await;
        assert_eq!(system.available(sale).await, Some(20));
    }
    system.finish().await;
}

/// A payment that begins during a cancellation prolongs the order: the order is not cancelled now, and its cancellation comes later.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_that_was_skipped_stays_to_be_done() {
    let system = System::without_workers(&[]).await;
    let sale = system.create_sale(terms(5)).await;
    let order = OrderId(system.all_buy(&sale, &["ann"]).await[0]);
    let ledger = &system.stores.ledger;
    settle_ones(ledger, &[order]).await.unwrap();
    let execute = |sql: &'static str| sqlx::query(sql).bind(order.0);
    let overdue = "UPDATE orders SET expires_at = now() - interval '1 second' WHERE id = $1";
    execute(overdue).execute(&system.sql).await.unwrap();
    let mut payment = system.sql.begin().await.unwrap();
    let prolong = "UPDATE orders SET wait_until = now() + interval '1 hour' WHERE id = $1";
    execute(prolong).execute(&mut *payment).await.unwrap();
    // It waits two seconds at most for the row, and is then retried, as its message would be.
    let (expiring, repeats) = (ones(&[order]), AtomicUsize::new(0));
    let expiry = unlocked(&repeats, || ledger.orders.expire(&expiring));
    // The cancellation waits for the order's row, and then finds the order prolonged.
    let prolonged = async {
        let waits = "SELECT count(*) > 0 FROM pg_stat_activity
                     WHERE datname = current_database() AND wait_event_type = 'Lock'";
        until(true, || system.value::<bool>(waits)).await;
        payment.commit().await.unwrap();
    };
    let (outcome, ()) = tokio::join!(expiry, prolonged);
    assert!(
        matches!(outcome[..], [(_, ExpiryOutcome::Early { remaining_ms })] if remaining_ms > 3_000_000),
        "{outcome:?}"
    );
    let unsettled =
        "SELECT count(*) FROM outbox WHERE order_id = $1 AND kind = 'group_expire' AND status <> 'processed'";
    let unsettled: i64 = sqlx::query_scalar(unsettled).bind(order.0).fetch_one(&system.sql).await.unwrap();
    assert_eq!(unsettled, 1);
    system.finish().await;
}

/// Redis answers one sale's releases with an error: those rows are parked, and the units of five other sales come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_whose_keys_are_broken_holds_up_no_other_sales_units() {
    let unrepaired = [("SECKILL_RECONCILE__INTERVAL_MS", "100000"), ("SECKILL_RECONCILE__DRIFT_INTERVAL_MS", "100000")];
    let system = System::start_with(&[&FEW_ATTEMPTS[..], &unrepaired].concat()).await;
    let mut sales = Vec::new();
    for _ in 0..6 {
        let sale = system.create_sale(terms(1)).await;
        system.all_buy(&sale, &["ann"]).await;
        sales.push(sale);
    }
    join_all(sales.iter().map(|sale| system.settled(sale))).await;
    let (broken, well) = sales.split_first().unwrap();
    let tickets = format!("{}{{{}}}:tickets", system.config.redis.prefix, broken.id);
    let mut redis = redis_at(&system.config.redis.url).await.unwrap();
    redis::cmd("SET").arg(&tickets).arg("not a hash").exec_async(&mut redis).await.unwrap();
    for sale in &sales {
        system.let_deadlines_pass(sale).await;
    }
    for sale in well {
        system.left(sale, 1).await;
        system.settled(sale).await;
        assert_eq!(system.available(sale).await, Some(1));
    }
    eventually(|| async {
        let parked = system.stores.ledger.outbox.parked(None, None, 10).await.unwrap();
        let kinds: Vec<_> = parked.iter().map(|row| (row.kind.as_str(), row.sale_id)).collect();
        (kinds == [("hold_release", broken.id.get())]).then_some(()).ok_or(format!("{kinds:?}"))
    })
    .await;
    system.finish().await;
}

/// A Redis with full memory refuses releases. The rows are not at fault: none is parked, and the units come back when there is room.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_parks_no_release() {
    let redis = OwnRedis::start().await;
    let url = redis.url();
    let system = System::start_with(&[&FEW_ATTEMPTS[..], &[("REDIS_URL", &url)]].concat()).await;
    let sale = system.create_sale(terms(1)).await;
    system.all_buy(&sale, &["ann"]).await;
    system.settled(&sale).await;
    redis.ask(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    system.let_deadlines_pass(&sale).await;
    system.left(&sale, 1).await;
    let refused = || async {
        let errors = redis.query(&["INFO", "errorstats"]).await.unwrap();
        let text: String = redis::FromRedisValue::from_redis_value(errors).unwrap();
        text.lines().find_map(|line| line.strip_prefix("errorstat_OOM:count=")?.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = refused().await;
    until(true, || async { refused().await >= before + 5 }).await;
    assert_eq!(system.stores.ledger.outbox.parked(None, None, 10).await.unwrap().len(), 0);
    redis.ask(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    system.settled(&sale).await;
    assert_eq!(system.available(&sale).await, Some(1));
    system.finish().await;
}
