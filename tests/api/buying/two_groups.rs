//! A purchase may be in two groups: that of its call, and a group of one, because its buyer repeated during the first commit. It becomes
//! one order, in whatever order both are settled (protocol, rules 3, 7 and 11; I1, I2).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt, stream};
use rand::seq::SliceRandom;
use seckill_domain::ids::{GroupId, OrderId, Units};
use seckill_domain::sale::NewSale;
use seckill_postgres::LedgerError;
use seckill_postgres::orders::groups::Settling;
use seckill_postgres::orders::purchase::Purchase;

use seckill_harness::{Sale, System, eventually, terms, until, wait_until};

use crate::buying::purchase_groups::{
    KEY, buy_together, buyers, commit_alone, group_of, orders, settle_ones, take_together,
};

const OPEN_ONES: &str =
    "SELECT count(*) FROM purchase_groups WHERE sale_id = $1 AND members = 1 AND settled_at IS NULL";
const SPLIT: &str = "SELECT count(*) FROM purchase_groups WHERE sale_id = $1 AND was_split";
const CANCELLED: &str = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'cancelled'";

async fn idle(stock: i64) -> (System, Sale) {
    let system = System::without_workers(&[]).await;
    let sale = system.create_sale(NewSale { pay_within_ms: 600_000, ..terms(stock) }).await;
    (system, sale)
}

async fn settle(system: &System, purchases: &[Purchase]) -> Settling {
    system.stores.ledger.orders.settle_groups(&[group_of(purchases)], &HashMap::new()).await.unwrap()
}

/// Settles the groups of one of these purchases, and returns the number of new orders.
async fn fulfil(system: &System, purchases: &[Purchase]) -> usize {
    settle_ones(&system.stores.ledger, &orders(purchases)).await.unwrap()
}

/// The final result of a step. It is repeated when another has kept a row locked for too long, as on a busy machine. Any other error, such
/// as a deadlock, fails the test.
pub async fn unlocked<T, F: Future<Output = Result<T, LedgerError>>>(
    repeats: &AtomicUsize,
    mut step: impl FnMut() -> F,
) -> T {
    eventually(|| {
        let tried = step();
        async move {
            match tried.await {
                Err(LedgerError::Locked) => {
                    repeats.fetch_add(1, Ordering::SeqCst);
                    Err("a row stays locked".to_owned())
                }
                done => Ok(done.unwrap()),
            }
        }
    })
    .await
}

/// Lets workers finish everything, and checks that each purchase is one order and nothing is left.
async fn ends_with(mut system: System, sale: &Sale, orders: i64, left: i64) {
    system.serve(true).await;
    system.settled(sale).await;
    assert_eq!((system.orders(sale).await, system.stock(sale).await), (orders, left));
    assert_eq!((system.available(sale).await, system.count(OPEN_ONES, sale).await), (Some(left), 0));
    system.finish().await;
}

/// The larger group first: the groups of one find their orders, and are closed without effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_one_whose_order_exists_is_closed() {
    let system = System::without_workers(&[]).await;
    let sale = system.create_sale(NewSale { per_user: Units::parse(2).unwrap(), ..terms(20) }).await;
    let purchases = buy_together(&system, &sale, &buyers(5)).await;
    commit_alone(&system, &purchases[..3]).await;
    assert_eq!(settle(&system, &purchases).await, Settling::Settled { orders: 5 });
    // Another unit for each of the same buyers, who may have two.
    let mut rows = orders(&purchases[..3]);
    for n in 0..5 {
        let more = system.buy(&sale, &format!("u{n}")).send().await;
        rows.push(OrderId(more.order_id().parse().unwrap()));
    }
    let made = settle_ones(&system.stores.ledger, &rows).await.unwrap();
    let rejected = system.count("SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'rejected'", &sale).await;
    assert_eq!((made, rejected), (5, 0), "nobody is over the limit because of a second group");
    ends_with(system, &sale, 10, 10).await;
}

/// The groups of one first: the larger group cannot be settled whole, is split, and leaves out the existing orders.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_with_an_order_that_exists_is_split() {
    let (system, sale) = idle(10).await;
    let purchases = buy_together(&system, &sale, &buyers(5)).await;
    commit_alone(&system, &purchases[1..3]).await;
    assert_eq!(fulfil(&system, &purchases).await, 2);
    assert!(matches!(settle(&system, &purchases).await, Settling::Unusual(_)));
    let ledger = &system.stores.ledger;
    assert_eq!(ledger.orders.split_group(group_of(&purchases), "test").await.unwrap(), Some(3));
    assert_eq!(ledger.orders.split_group(group_of(&purchases), "test").await.unwrap(), None, "once");
    assert_eq!(settle(&system, &purchases).await, Settling::Settled { orders: 0 });
    assert_eq!((fulfil(&system, &purchases).await, system.count(SPLIT, &sale).await), (3, 1));
    ends_with(system, &sale, 5, 5).await;
}

/// A split does not touch existing groups of one.
#[tokio::test(flavor = "multi_thread")]
async fn a_split_beside_groups_of_one_makes_none_twice() {
    let (system, sale) = idle(10).await;
    let purchases = buy_together(&system, &sale, &buyers(5)).await;
    commit_alone(&system, &purchases[..2]).await;
    let split = system.stores.ledger.orders.split_group(group_of(&purchases), "test").await.unwrap();
    assert_eq!((split, system.count(OPEN_ONES, &sale).await), (Some(3), 5));
    ends_with(system, &sale, 5, 5).await;
}

/// An order cancelled by its buyer or by its deadline does not return through its second group.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_has_ended_stays_ended() {
    let (system, sale) = idle(10).await;
    let ledger = system.stores.ledger.clone();
    let purchases = buy_together(&system, &sale, &buyers(4)).await;
    assert_eq!(settle(&system, &purchases).await, Settling::Settled { orders: 4 });
    assert!(ledger.orders.cancel_by_buyer(purchases[0].order, "u0").await.unwrap());
    let overdue = "UPDATE orders SET expires_at = now() - interval '1 second' WHERE id = $1";
    sqlx::query(overdue).bind(purchases[1].order.0).execute(&system.sql).await.unwrap();
    ledger.orders.expire(&[GroupId::of_one(purchases[1].order)]).await.unwrap();
    commit_alone(&system, &purchases).await;
    let found = ledger.orders.order_of(purchases[0].order, "u0").await.unwrap().unwrap();
    assert_eq!(found.order.status.to_string(), "cancelled", "also while the second group is open");
    assert_eq!(fulfil(&system, &purchases).await, 0);
    assert_eq!((system.count(CANCELLED, &sale).await, system.stock(&sale).await), (2, 8));

    // The reverse: the order of the group of one has ended, and the larger group comes later.
    let names: Vec<String> = (4..6).map(|n| format!("u{n}")).collect();
    let later = buy_together(&system, &sale, &names).await;
    commit_alone(&system, &later).await;
    assert_eq!(fulfil(&system, &later).await, 2);
    assert!(ledger.orders.cancel_by_buyer(later[0].order, "u4").await.unwrap());
    assert!(matches!(settle(&system, &later).await, Settling::Unusual(_)));
    ends_with(system, &sale, 6, 7).await;
}

/// In any order and in overlapping batches. There is no deadlock, and no attempt is counted.
#[tokio::test(flavor = "multi_thread")]
async fn both_groups_at_several_workers_at_once_make_one_order() {
    let (system, sale) = idle(100).await;
    let ledger = &system.stores.ledger;
    let (mut groups, mut all) = (Vec::new(), Vec::new());
    for names in buyers(60).chunks(6) {
        let purchases = buy_together(&system, &sale, names).await;
        commit_alone(&system, &purchases[..3]).await;
        groups.push(group_of(&purchases));
        all.extend(purchases);
    }
    let mut doubled: Vec<Purchase> = all.chunks(6).flat_map(|group| group[..3].to_vec()).collect();
    doubled.shuffle(&mut rand::rng());
    // `None` stands for a group.
    let mut work: Vec<Option<Vec<OrderId>>> = doubled.chunks(7).map(|some| Some(orders(some))).collect();
    work.extend(vec![None; groups.len()]);
    work.shuffle(&mut rand::rng());
    let mut groups = groups.into_iter();
    let work: Vec<_> = work.into_iter().map(|rows| rows.ok_or_else(|| groups.next().unwrap())).collect();
    let (repeats, none) = (&AtomicUsize::new(0), &HashMap::new());
    let made = stream::iter(work).map(|one| async move {
        match one {
            Ok(rows) => unlocked(repeats, || settle_ones(ledger, &rows)).await,
            Err(group) => {
                match unlocked(repeats, || ledger.orders.settle_groups(std::slice::from_ref(&group), none)).await {
                    Settling::Settled { orders } => orders,
                    Settling::Unusual(why) => {
                        assert!(!why.contains("deadlock"), "{why}");
                        unlocked(repeats, || ledger.orders.split_group(group, &why)).await;
                        0
                    }
                }
            }
        }
    });
    let made: usize = made.buffer_unordered(4).collect::<Vec<_>>().await.into_iter().sum();
    let orders = usize::try_from(system.orders(&sale).await).unwrap();
    // A step that failed at a locked row does not return the orders it had made.
    assert!(made == orders || (made < orders && repeats.load(Ordering::SeqCst) > 0), "{made} made, {orders} orders");
    let attempts = system.number("SELECT sum(attempts) FROM outbox").await;
    assert_eq!(attempts, 0);
    ends_with(system, &sale, 60, 40).await;
}

/// Rule 3: a buyer repeats while the group is being committed, or after that commit was lost, and has one order.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_of_an_unconfirmed_hold_is_a_group_of_one() {
    let (system, sale) = idle(10).await;
    let purchases = take_together(&system, &sale, &buyers(3)).await;
    let before = system.buy(&sale, "u0").idempotent(KEY).send().await;
    assert_eq!((before.status, before.order_id()), (202, purchases[0].order.to_string()));
    system.stores.ledger.orders.commit_purchases(&purchases).await.unwrap();
    let after = system.buy(&sale, "u1").idempotent(KEY).send().await;
    assert_eq!((after.status, after.order_id()), (202, purchases[1].order.to_string()));
    assert_eq!(system.count(OPEN_ONES, &sale).await, 2);
    for user in ["u0", "u1", "u2"] {
        let listed = system.get("/api/v1/orders", Some(user)).await.1;
        assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
        let order = listed[0]["order_id"].as_str().unwrap();
        let next = system.get(&format!("/api/v1/orders?after={order}"), Some(user)).await;
        assert_eq!((next.0, next.1.as_array().unwrap().len()), (200, 0));
        assert_eq!(system.get(&format!("/api/v1/orders/{order}"), Some(user)).await.1["status"], "accepted");
    }
    ends_with(system, &sale, 3, 7).await;
}

/// Rule 11: purchases in one group, in two, and with an order and an open second group, live or ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_refill_counts_each_purchase_once() {
    let (system, sale) = idle(30).await;
    let ledger = system.stores.ledger.clone();
    let waiting = buy_together(&system, &sale, &buyers(8)).await;
    commit_alone(&system, &waiting[..4]).await;
    let names: Vec<String> = (8..14).map(|n| format!("u{n}")).collect();
    let made = buy_together(&system, &sale, &names).await;
    assert_eq!(settle(&system, &made).await, Settling::Settled { orders: 6 });
    assert!(ledger.orders.cancel_by_buyer(made[0].order, "u8").await.unwrap());
    commit_alone(&system, &made[..3]).await;

    let epoch = "SELECT coalesce(max(epoch), 0) FROM sale_epochs WHERE sale_id = $1 AND run_id IS NOT NULL";
    let before = system.count(epoch, &sale).await;
    system.execute("UPDATE sale_epochs SET run_id = NULL").await;
    wait_until(|| system.count(epoch, &sale), |&now| now > before).await;
    // 14 bought, and one of them has cancelled.
    until(Some(17), || system.available(&sale)).await;
    let accepted = system.number("SELECT count(*) FROM accepted_purchases").await;
    let records = system.number("SELECT count(*) FROM purchase_records").await;
    assert_eq!((accepted, records), (8, 14));
    for (user, status) in [("u0", "accepted"), ("u5", "accepted"), ("u8", "cancelled"), ("u9", "pending_payment")] {
        let again = system.buy(&sale, user).idempotent(KEY).send().await;
        assert_eq!((again.status, &again.body["status"]), (202, &status.into()), "{user}");
        let another = system.buy(&sale, user).send().await;
        let expected = if status == "cancelled" { "202" } else { "409 already-purchased" };
        assert_eq!(another.code(), expected, "{user}");
    }
    ends_with(system, &sale, 15, 16).await;
}
