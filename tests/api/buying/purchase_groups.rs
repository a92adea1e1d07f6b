//! The winners of one call are one row, one message and one transaction (protocol, rules 3, 7, 8 and 11). Exceptions leave the group.

use std::collections::HashMap;
use std::net::IpAddr;

use futures_util::future::join_all;
use rand::seq::SliceRandom;
use seckill::app::Worker;
use seckill_domain::admission::ReserveRequest;
use seckill_domain::captcha::PassCheck;
use seckill_domain::ids::{GroupId, IdempotencyKey, OrderId, Shard, Units, UserId};
use seckill_domain::message::{GroupsPlacedV1, OutboxKind, Version};
use seckill_domain::sale::NewSale;
use seckill_postgres::orders::groups::Settling;
use seckill_postgres::orders::one::SettledOne;
use seckill_postgres::orders::purchase::{CommitOutcome, Purchase};
use seckill_postgres::{Ledger, LedgerError};
use seckill_rabbitmq::{Broker, Destination, Outgoing, Publisher};
use seckill_redis::reserve::batcher::ReserveBatcher;
use tokio::task::LocalSet;
use uuid::Uuid;

use seckill_harness::{Sale, System, terms, until, wait_until};

use crate::orders::payments_and_callbacks::paid;
use crate::orders::relay_resends::{delete, depth, published, work};
use crate::sales::shards::answered;

pub const KEY: &str = "k";

const GROUPS: &str = "SELECT count(*) FROM purchase_groups WHERE sale_id = $1 AND members > 1";
const SPLIT: &str = "SELECT count(*) FROM purchase_groups WHERE sale_id = $1 AND was_split AND settled_at IS NOT NULL";
const SENT: &str = "SELECT count(*) FROM outbox WHERE sale_id = $1 AND status = 'sent'";
const ONES: &str = "SELECT count(*) FROM purchase_groups WHERE sale_id = $1 AND members = 1";
const WAITING: &str = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'pending_payment'";

/// Takes a unit for each of these buyers in one call to Redis. Commits nothing: returns the purchases that a server would commit as one
/// group.
pub async fn take_together(system: &System, sale: &Sale, users: &[String]) -> Vec<Purchase> {
    let secret = system.stores.ledger.orders.order_id_secret().await.unwrap();
    let now_ms = system.stores.ledger.now_ms().await.unwrap();
    let shards = system.shards(sale).await;
    let key = IdempotencyKey::parse(KEY).unwrap();
    let request = |user: &String| {
        let user = UserId::parse(user).unwrap();
        ReserveRequest {
            order: OrderId::derive(&secret, sale.id, &user, &key),
            user,
            address: IpAddr::from([10, 0, 0, 7]).into(),
            units: Units::ONE,
            terms_version: 0,
            wrong_key: false,
            level_too_low: false,
            pass: PassCheck::NotAsked,
            trace: None,
        }
    };
    let call = LocalSet::new()
        .run_until(async {
            let (batcher, mut calls) = ReserveBatcher::new(system.stores.gate.clone()).unwrap();
            let asked = join_all(users.iter().map(|user| batcher.reserve(shards, request(user), now_ms)));
            tokio::select! {
                answers = asked => panic!("{answers:?}"),
                call = calls.recv() => call.unwrap(),
            }
        })
        .await;
    assert_eq!(call.winners.len(), users.len(), "all in one call");
    assert!(call.winners.iter().all(|winner| !winner.is_repeat));
    let (id, hold) = (GroupId(Uuid::now_v7()), call.hold);
    let purchase = |member: ReserveRequest| Purchase {
        order: member.order,
        sale: sale.id,
        user: member.user.to_string(),
        units: 1,
        address: Some(member.address.to_string()),
        hold,
        group: id,
        trace: None,
    };
    call.winners.into_iter().map(|winner| purchase(winner.request)).collect()
}

pub fn buyers(n: usize) -> Vec<String> {
    (0..n).map(|n| format!("u{n}")).collect()
}

pub fn orders(purchases: &[Purchase]) -> Vec<OrderId> {
    purchases.iter().map(|purchase| purchase.order).collect()
}

pub fn group_of(purchases: &[Purchase]) -> GroupId {
    purchases[0].group
}

/// Commits purchases, and takes them off the unconfirmed list, as a server does.
pub async fn commit(system: &System, sale: &Sale, purchases: &[Purchase]) {
    let committed = system.stores.ledger.orders.commit_purchases(purchases).await.unwrap();
    assert!(committed.iter().all(|outcome| *outcome == CommitOutcome::Durable), "{committed:?}");
    system.stores.gate.confirm(system.shards(sale).await, Shard::FIRST, &orders(purchases)).await.unwrap();
}

pub async fn buy_together(system: &System, sale: &Sale, users: &[String]) -> Vec<Purchase> {
    let purchases = take_together(system, sale, users).await;
    commit(system, sale, &purchases).await;
    purchases
}

/// The same purchases as groups of one, as the buyers' repeats commit them.
pub async fn commit_alone(system: &System, purchases: &[Purchase]) {
    let alone: Vec<Purchase> =
        purchases.iter().map(|one| Purchase { group: GroupId::of_one(one.order), ..one.clone() }).collect();
    let committed = system.stores.ledger.orders.commit_purchases(&alone).await.unwrap();
    assert!(committed.iter().all(|outcome| *outcome == CommitOutcome::Durable), "{committed:?}");
}

/// Makes PostgreSQL refuse larger groups, so that all winners are committed as groups of one.
pub async fn only_ones(system: &System) {
    system.refuse("INSERT ON purchase_groups", "NEW.members > 1").await;
}

/// Settles the groups of one of these orders, as a worker does. Returns the number of new orders.
pub async fn settle_ones(ledger: &Ledger, orders: &[OrderId]) -> Result<usize, LedgerError> {
    let (ones, no_traces): (Vec<GroupId>, _) =
        (orders.iter().map(|order| GroupId::of_one(*order)).collect(), HashMap::new());
    if let Settling::Settled { orders } = ledger.orders.settle_groups(&ones, &no_traces).await? {
        return Ok(orders);
    }
    let mut made = 0;
    for one in ones {
        made += usize::from(ledger.orders.settle_one(one, &no_traces).await? == SettledOne::Accepted);
    }
    Ok(made)
}

pub fn placed(groups: &[GroupId]) -> Outgoing {
    let body = serde_json::to_vec(&GroupsPlacedV1 { version: Version, groups: groups.to_vec() }).unwrap();
    let id = OutboxKind::GroupPlaced.message_id_of_many(groups);
    Outgoing { to: Destination::GroupsPlaced, id, body, trace: None }
}

/// Rule 3: a group for each call, and one outbox row with each. A single winner is a group of one.
#[tokio::test(flavor = "multi_thread")]
async fn a_rush_is_committed_as_groups() {
    let mut system = System::without_workers(&[]).await;
    // The number of winners in a call is random, so rushes repeat until some share one.
    let (sale, mut buyers) = (system.create_sale(terms(10_000)).await, 0);
    while system.count(GROUPS, &sale).await == 0 {
        let names: Vec<String> = (buyers..buyers + 60).map(|n| format!("u{n}")).collect();
        // On a busy machine, a slow commit causes 503 for others.
        let answers = join_all(names.iter().map(|name| answered(&system, &sale, name))).await;
        assert!(answers.iter().all(|answer| answer.status == 202));
        buyers += 60;
    }
    let members = "SELECT coalesce(sum(members), 0)::bigint FROM purchase_groups WHERE sale_id = $1";
    let announced = "SELECT count(*) FROM outbox o JOIN purchase_groups g ON g.id = o.order_id AND g.units = o.quantity
                     WHERE o.sale_id = $1 AND o.kind = 'group_placed'";
    assert_eq!(system.count(members, &sale).await, buyers);
    let groups = system.count(GROUPS, &sale).await + system.count(ONES, &sale).await;
    assert_eq!(system.count(announced, &sale).await, groups);
    system.serve(true).await;
    system.settled(&sale).await;
    assert_eq!((system.orders(&sale).await, system.stock(&sale).await), (buyers, 10_000 - buyers));
    system.finish().await;
}

/// Rule 7: a group becomes orders in one transaction. Before that, each purchase is an accepted order for its buyer.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_settled_whole_and_found_before_that() {
    let mut system = System::without_workers(&[]).await;
    let sale = system.create_sale(terms(30)).await;
    let purchases = buy_together(&system, &sale, &buyers(20)).await;
    assert_eq!((system.count(GROUPS, &sale).await, system.count(ONES, &sale).await), (1, 0));

    let order = purchases[7].order;
    let path = format!("/api/v1/orders/{order}");
    let (status, seen) = system.get(&path, Some("u7")).await;
    assert_eq!((status, &seen["status"], &seen["quantity"]), (200, &"accepted".into(), &1.into()));
    assert_eq!(system.get(&path, Some("u8")).await.0, 404, "another member's");
    assert_eq!(system.get(&path, Some("eve")).await.0, 404);
    let listed = system.get("/api/v1/orders", Some("u7")).await.1;
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["order_id"]), (1, &seen["order_id"]));
    assert_eq!(system.post(&format!("{path}/cancel"), "u7").await.1["code"], "order-not-ready");
    assert_eq!(system.stores.ledger.orders.order(order).await.unwrap().unwrap().user_id, "u7");
    assert!(system.stores.ledger.orders.order(OrderId(Uuid::now_v7())).await.unwrap().is_none());
    let again = system.buy(&sale, "u7").idempotent(KEY).send().await;
    assert_eq!((again.status, again.order_id(), &again.body["status"]), (202, order.to_string(), &"accepted".into()));
    assert_eq!(system.count(ONES, &sale).await, 0, "a confirmed hold needs no second group");
    let figures = system.stores.ledger.sales.live_figures(sale.id).await.unwrap().unwrap();
    assert_eq!(figures.units(seckill_domain::order::OrderStatus::Accepted), 20);

    system.serve(true).await;
    system.settled(&sale).await;
    assert_eq!((system.orders(&sale).await, system.stock(&sale).await), (20, 10));
    for (what, sql) in [
        ("an order with its group", "SELECT count(*) FROM orders WHERE sale_id = $1 AND group_id <> id"),
        ("a step", "SELECT count(*) FROM order_steps s JOIN orders o ON o.id = s.order_id WHERE o.sale_id = $1"),
        ("a counter", "SELECT count(*) FROM sale_buyers WHERE sale_id = $1 AND units = 1"),
    ] {
        assert_eq!(system.count(sql, &sale).await, 20, "{what} for each");
    }
    let messages = system.number("SELECT count(*) FROM processed_messages").await;
    assert_eq!((messages, system.count(SPLIT, &sale).await), (1, 0), "one row of deduplication for all");
    system.finish().await;
}

/// F9: messages about groups, in any batch, ten times each and in any order, before and after their effect.
#[tokio::test(flavor = "multi_thread")]
async fn ten_deliveries_of_a_group_have_one_effect() {
    let mut system = System::without_workers(&[("SECKILL_ORDERS__BATCH_MAX", "8")]).await;
    let sale = system.create_sale(NewSale { pay_within_ms: 600_000, ..terms(30) }).await;
    let mut groups = Vec::new();
    for names in buyers(30).chunks(6) {
        groups.push(group_of(&buy_together(&system, &sale, names).await));
    }
    let alone = groups.chunks(1).chain(groups.chunks(2)).chain(groups.chunks(5));
    let mut messages: Vec<Outgoing> = alone.flat_map(|groups| vec![placed(groups); 10]).collect();
    messages.shuffle(&mut rand::rng());
    let publisher = Publisher::new(Broker::new(&system.config));
    published(&publisher, &messages).await;
    system.serve(true).await;
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.orders(&sale).await), (0, 30));
    system.let_deadlines_pass(&sale).await;
    system.left(&sale, 30).await;
    published(&publisher, &messages).await;
    system.settled(&sale).await;
    let steps = "SELECT count(*) FROM order_steps s JOIN orders o ON o.id = s.order_id WHERE o.sale_id = $1";
    assert_eq!((system.orders(&sale).await, system.count(steps, &sale).await), (30, 60));
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (30, Some(30)));
    // A lapsed hold is recorded with the address from the group row.
    let lapsed = "SELECT count(*) FROM lapsed_holds WHERE sale_id = $1 AND address = '10.0.0.7'";
    assert_eq!(system.count(lapsed, &sale).await, 30);
    system.finish().await;
}

/// Rule 7: the others are settled, and the buyer over the limit is rejected.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_with_a_buyer_over_the_limit_is_split() {
    let mut system = System::without_workers(&[]).await;
    let sale = system.create_sale(terms(10)).await;
    buy_together(&system, &sale, &buyers(10)).await;
    let counted = "INSERT INTO sale_buyers (sale_id, user_id, units, per_user) VALUES ($1, 'u3', 1, 1)";
    system.change(counted, &sale).await;
    system.serve(true).await;
    until((9, 10), || async { (system.count(WAITING, &sale).await, system.orders(&sale).await) }).await;
    let rejected = "SELECT count(*) FROM orders WHERE sale_id = $1 AND user_id = 'u3' AND reason = 'over-limit'";
    assert_eq!((system.count(SPLIT, &sale).await, system.count(rejected, &sale).await), (1, 1));
    let uncounted = "UPDATE sale_buyers SET units = 0 WHERE sale_id = $1 AND user_id = 'u3'";
    system.change(uncounted, &sale).await;
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (1, Some(1)));
    system.finish().await;
}

/// Rule 7, and F13 within a group: the rest of its group is settled, and other groups of the same message as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn one_poison_member_parks_alone() {
    let mut system = System::without_workers(&[
        // Enough attempts that no message is parked because a queue is missing for a moment.
        ("SECKILL_OUTBOX__MAX_ATTEMPTS", "8"),
        ("SECKILL_OUTBOX__BACKOFF_BASE_MS", "10"),
        ("SECKILL_OUTBOX__BACKOFF_MAX_MS", "500"),
    ])
    .await;
    let sale = system.create_sale(terms(30)).await;
    let mut purchases = Vec::new();
    for names in buyers(20).chunks(5) {
        purchases.extend(buy_together(&system, &sale, names).await);
    }
    let poison = purchases[7].order;
    system.refuse("INSERT ON orders", &format!("NEW.id = '{poison}'")).await;
    system.serve(true).await;
    until((19, 1), || async {
        (system.orders(&sale).await, system.stores.ledger.outbox.parked(None, None, 10).await.unwrap().len())
    })
    .await;
    let parked = system.stores.ledger.outbox.parked(None, None, 10).await.unwrap().remove(0);
    assert_eq!((parked.order_id, parked.attempts, parked.kind.as_str()), (poison.0, 8, "group_placed"));
    assert_eq!(system.count(SPLIT, &sale).await, 1, "the other three groups are whole");
    assert_eq!(system.get(&format!("/api/v1/orders/{poison}"), Some("u7")).await.1["status"], "accepted");
    system.allow("orders").await;
    assert_eq!(system.stores.ledger.outbox.unpark(&[parked.id], "test").await.unwrap(), 1);
    system.settled(&sale).await;
    assert_eq!((system.orders(&sale).await, system.stock(&sale).await), (20, 10));
    system.finish().await;
}

/// A group that can be neither settled nor split is retried, and finally parked, where people see it; others continue.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_cannot_be_split_is_parked_and_sent_again_by_hand() {
    let mut system = System::without_workers(&[
        // As above.
        ("SECKILL_OUTBOX__MAX_ATTEMPTS", "8"),
        ("SECKILL_OUTBOX__BACKOFF_BASE_MS", "10"),
        ("SECKILL_OUTBOX__BACKOFF_MAX_MS", "500"),
    ])
    .await;
    let (sale, other) = (system.create_sale(terms(5)).await, system.create_sale(terms(5)).await);
    let group = group_of(&buy_together(&system, &sale, &buyers(5)).await);
    buy_together(&system, &other, &buyers(5)).await;
    system.refuse("UPDATE ON purchase_groups", &format!("NEW.id = '{group}'")).await;
    system.serve(true).await;
    system.settled(&other).await;
    let parked = wait_until(
        || async { system.stores.ledger.outbox.parked(None, None, 10).await.unwrap() },
        |parked| parked.len() == 1,
    )
    .await;
    assert_eq!((parked[0].kind.as_str(), parked[0].order_id, parked[0].attempts), ("group_placed", group.0, 8));
    system.allow("purchase_groups").await;
    assert_eq!(system.stores.ledger.outbox.unpark(&[parked[0].id], "test").await.unwrap(), 1);
    system.settled(&sale).await;
    assert_eq!((system.orders(&sale).await, system.count(SPLIT, &sale).await), (5, 0));
    system.finish().await;
}

/// Rule 8: when a group expires, its paid orders stay paid.
#[tokio::test(flavor = "multi_thread")]
async fn a_paid_order_in_a_group_that_expires_stays_paid() {
    let mut system = System::without_workers(&[]).await;
    let sale = system.create_sale(NewSale { pay_within_ms: 600_000, ..terms(10) }).await;
    let purchases = buy_together(&system, &sale, &buyers(6)).await;
    system.serve(true).await;
    system.settled(&sale).await;
    for n in [1, 4] {
        paid(&system, purchases[n].order.0, &format!("u{n}")).await;
    }
    system.let_deadlines_pass(&sale).await;
    system.left(&sale, 8).await;
    system.settled(&sale).await;
    let of = |sql: &'static str| system.count(sql, &sale);
    assert_eq!(of("SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'paid'").await, 2);
    assert_eq!(of("SELECT count(*) FROM orders WHERE sale_id = $1 AND reason = 'expired'").await, 4);
    assert_eq!(system.available(&sale).await, Some(8));
    system.finish().await;
}

/// Rule 4: a group with a row that PostgreSQL refuses is committed as groups of one, immediately and by the same call; other groups whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_refused_becomes_groups_of_one() {
    let mut system = System::without_workers(&[]).await;
    let (sale, other) = (system.create_sale(terms(10)).await, system.create_sale(terms(10)).await);
    let mut purchases = take_together(&system, &sale, &buyers(4)).await;
    purchases.extend(take_together(&system, &other, &buyers(3)).await);
    system.refuse("INSERT ON purchase_groups", &format!("NEW.sale_id = {} AND NEW.members > 1", sale.id)).await;
    let committed = system.stores.ledger.orders.commit_purchases(&purchases).await.unwrap();
    assert_eq!(committed, vec![CommitOutcome::Durable; 7]);
    assert_eq!((system.count(GROUPS, &sale).await, system.count(ONES, &sale).await), (0, 4));
    assert_eq!((system.count(GROUPS, &other).await, system.count(ONES, &other).await), (1, 0));
    // Repeated, as a retried statement: nothing is written twice.
    let committed = system.stores.ledger.orders.commit_purchases(&purchases).await.unwrap();
    assert_eq!(committed, vec![CommitOutcome::Durable; 7]);
    assert_eq!((system.count(ONES, &sale).await, system.count(GROUPS, &other).await), (4, 1));
    system.serve(true).await;
    for (sale, orders) in [(&sale, 4), (&other, 3)] {
        system.settled(sale).await;
        assert_eq!(system.orders(sale).await, orders);
    }
    system.finish().await;
}

/// Rule 3: a group of an old epoch is not committed. A group of another sale next to it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_an_older_epoch_is_refused() {
    let mut system = System::without_workers(&[]).await;
    let (sale, other) = (system.create_sale(terms(10)).await, system.create_sale(terms(10)).await);
    let mut purchases = take_together(&system, &sale, &buyers(2)).await;
    purchases.extend(take_together(&system, &other, &buyers(2)).await);
    system.stores.ledger.sales.raise_epoch(sale.id).await.unwrap();
    let committed = system.stores.ledger.orders.commit_purchases(&purchases).await.unwrap();
    let (stale, durable) = (CommitOutcome::StaleEpoch, CommitOutcome::Durable);
    assert_eq!(committed, [stale, stale, durable, durable]);
    assert_eq!((system.count(GROUPS, &sale).await, system.count(ONES, &sale).await), (0, 0));
    system.serve(true).await;
    system.settled(&sale).await;
    system.settled(&other).await;
    assert_eq!((system.orders(&sale).await, system.orders(&other).await), (0, 2));
    system.finish().await;
}

/// F1 and F8 for a group. Before the commit, the reconciler commits it. After the commit, its holds are only confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_whose_server_died_is_finished_by_the_reconciler() {
    let mut system = System::without_workers(&[("SECKILL_RECONCILE__UNCONFIRMED_AFTER_MS", "300")]).await;
    let (before, after) = (system.create_sale(terms(5)).await, system.create_sale(terms(5)).await);
    take_together(&system, &before, &buyers(3)).await;
    let purchases = take_together(&system, &after, &buyers(3)).await;
    system.stores.ledger.orders.commit_purchases(&purchases).await.unwrap();
    system.serve(true).await;
    for (sale, ones, groups) in [(&before, 3, 0), (&after, 0, 1)] {
        until(0, || async {
            let view = system.stores.gate.sale_view(system.shards(sale).await).await;
            view.unwrap().unwrap().unconfirmed
        })
        .await;
        // No buyer repeats the purchase meanwhile.
        system.settled(sale).await;
        assert_eq!((system.orders(sale).await, system.stock(sale).await), (3, 2));
        assert_eq!(answered(&system, sale, "u1").await.body["status"], "pending_payment");
        assert_eq!((system.count(ONES, sale).await, system.count(GROUPS, sale).await), (ones, groups));
    }
    system.finish().await;
}

/// Rule 6: a message about groups that the broker lost is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_message_about_groups_is_sent_again() {
    let mut system = System::without_workers(&[
        ("SECKILL_OUTBOX__RESEND_AFTER_MS", "300"),
        ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "100"),
    ])
    .await;
    let sale = system.create_sale(terms(6)).await;
    for names in buyers(6).chunks(2) {
        buy_together(&system, &sale, names).await;
    }
    // They are claimed together, so they share a message.
    let relay = work(&system, &[Worker::Relay]);
    wait_until(
        || async { (system.count(SENT, &sale).await, depth(&system, "groups-placed").await) },
        |&(sent, depth)| sent == 3 && depth >= 1,
    )
    .await;
    drop(relay);
    delete(&system, "groups-placed").await;
    system.serve(true).await;
    system.settled(&sale).await;
    assert_eq!(system.orders(&sale).await, 6);
    system.finish().await;
}
