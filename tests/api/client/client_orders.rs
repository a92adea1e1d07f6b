//! The buyer's part of the client crate, from the purchase to the end of the order; and the load program, which uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use seckill_client::{
    BuyerClient, Captcha, Code, Error, Order, OrderChanges, OrderStatus, Purchase, RetryTerms, SalePhase, Service,
    Ticket,
};
use seckill_domain::ids::Units;
use seckill_domain::sale::NewSale;
use seckill_load::{Buyer, Plan, Role};
use tokio::time::timeout;
use uuid::Uuid;

use crate::backoffice::admin_api::UNLIMITED;
use crate::network::broken_network::Wire;
use crate::orders::payments_and_callbacks::Callback;
use seckill_harness::{PATIENCE, Sale, System, eventually, terms, until};

/// A service with a time-out for a slow machine.
fn service_at(address: SocketAddr) -> Service {
    Service::builder(&format!("http://{address}")).timeout(PATIENCE).build().unwrap()
}

fn buyer_at(system: &System, address: SocketAddr, user: &str) -> BuyerClient {
    BuyerClient::new(&service_at(address), &system.token(user, 0)).unwrap()
}

fn buyer(system: &System, user: &str) -> BuyerClient {
    buyer_at(system, system.instances[0].address, user)
}

fn purchase(sale: &Sale) -> Purchase {
    Purchase::new(sale.id.get(), sale.key.as_str())
}

async fn written(buyer: &BuyerClient, ticket: &Ticket) -> Order {
    buyer.wait_for(ticket.order_id, PATIENCE, |order| order.status != OrderStatus::Accepted).await.unwrap()
}

/// A wire to the service that loses the first answers.
async fn wire_losing(answers: usize, system: &System) -> Wire {
    let wire = Wire::to(system.instances[0].address.to_string()).await;
    wire.lose(answers);
    wire
}

/// The wire loses the first two answers. The client repeats under the same Idempotency-Key, and there is one order.
#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_whose_answer_is_lost_ends_in_one_order() {
    let system = System::shared_with(&UNLIMITED).await;
    let sale = system.create_sale(NewSale { per_user: Units::parse(5).unwrap(), ..terms(5) }).await;
    let proxy = wire_losing(2, &system).await;
    let ticket = buyer_at(&system, proxy.address, "ann").purchase(&purchase(&sale)).await.unwrap();
    assert!(proxy.requests("POST ") >= 3);
    let ann = buyer(&system, "ann");
    assert_eq!(written(&ann, &ticket).await.status, OrderStatus::PendingPayment);
    system.settled(&sale).await;
    assert_eq!((system.orders(&sale).await, system.stock(&sale).await), (1, 4));

    // When every answer is lost, the client says that it does not know. A later repeat of the same purchase finds out.
    let deaf = wire_losing(usize::MAX, &system).await;
    let terms = RetryTerms { attempts: 2, ..RetryTerms::default() };
    let again = purchase(&sale).under("stored-before-the-crash").unwrap();
    let unknown = buyer_at(&system, deaf.address, "ann").with_retry(terms).purchase(&again).await.unwrap_err();
    assert!(matches!(unknown, Error::Undecided { attempts: 2, .. }), "{unknown}");
    let second = ann.purchase(&again).await.unwrap();
    assert_ne!(second.order_id, ticket.order_id);
    assert_eq!(ann.purchase(&again).await.unwrap().order_id, second.order_id);
    system.settled(&sale).await;
    assert_eq!((system.orders(&sale).await, system.stock(&sale).await), (2, 3));
}

/// Refusals carry the service's code and its details, and come at the first attempt.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_typed_and_are_not_retried() {
    let (system, sale) = System::selling(terms(1)).await;
    let later = system.create_sale(NewSale { starts_in_ms: 3_600_000, ends_in_ms: 7_200_000, ..terms(1) }).await;
    let (ann, bob) = (buyer(&system, "ann"), buyer(&system, "bob"));
    let ticket = ann.purchase(&purchase(&sale)).await.unwrap();
    let again = ann.purchase(&purchase(&sale)).await.unwrap_err();
    assert_eq!(again.code(), Some(&Code::AlreadyPurchased));
    assert_eq!(again.problem().unwrap().order_id, Some(ticket.order_id));
    assert_eq!(bob.purchase(&purchase(&sale)).await.unwrap_err().code(), Some(&Code::SoldOut));
    let early = bob.purchase(&purchase(&later)).await.unwrap_err();
    assert_eq!(early.code(), Some(&Code::NotStarted));
    assert_eq!(early.problem().unwrap().starts_at_ms, Some(bob.state(later.id.get()).await.unwrap().starts_at_ms));
    let other = system.create_sale(terms(1)).await;
    let guessed = Purchase::new(other.id.get(), "guessed");
    assert_eq!(bob.purchase(&guessed).await.unwrap_err().code(), Some(&Code::WrongKey));
    let nowhere = Purchase::new(999_999_999, "k");
    assert_eq!(bob.purchase(&nowhere).await.unwrap_err().code(), Some(&Code::UnknownSale));
    let nobody = BuyerClient::new(&service_at(system.instances[0].address), "not-a-token").unwrap();
    assert_eq!(nobody.purchase(&purchase(&sale)).await.unwrap_err().code(), Some(&Code::Unauthenticated));

    assert_eq!(bob.order(ticket.order_id).await.unwrap_err().code(), Some(&Code::UnknownOrder));
    assert_eq!(bob.follow(ticket.order_id).next().await.unwrap_err().code(), Some(&Code::UnknownOrder));
    written(&ann, &ticket).await;
    let unpaid = ann.refund(ticket.order_id, "too small").await.unwrap_err();
    assert_eq!((unpaid.code(), unpaid.may_retry()), (Some(&Code::IllegalState), false));
    let channel = ann.pay(ticket.order_id, "no-such-channel").await.unwrap_err();
    assert_eq!(channel.code(), Some(&Code::InvalidRequest));
    assert!(channel.to_string().contains("no such payment channel"), "{channel}");
}

/// A buyer's reads: sales, the state, the time, the channels, and a sign-in of development mode.
#[tokio::test(flavor = "multi_thread")]
async fn sales_and_their_state_are_read() {
    let (system, sale) = System::selling(terms(3)).await;
    let service = service_at(system.instances[0].address);
    let anyone = BuyerClient::without_token(&service);
    let shown = anyone.sale(sale.id.get()).await.unwrap();
    assert_eq!((shown.product.name.as_str(), shown.price_cents, shown.per_user), ("Phone", 100, 1));
    assert_eq!((shown.status, shown.captcha, shown.sold_out), (SalePhase::Open, Captcha::None, false));
    assert!(anyone.sales().await.unwrap().iter().any(|listed| listed.id == shown.id));
    let state = anyone.state(sale.id.get()).await.unwrap();
    assert_eq!((state.open, state.key.as_str(), state.sold_out), (true, sale.key.as_str(), false));
    let now_ms = anyone.now_ms().await.unwrap();
    assert!((state.now_ms..state.ends_at_ms).contains(&now_ms), "{now_ms}");
    assert_eq!(anyone.payment_channels().await.unwrap(), ["sandbox"]);
    assert_eq!(anyone.sale(999_999_999).await.unwrap_err().code(), Some(&Code::UnknownSale));

    let carl = BuyerClient::sign_in(&service, "carl", 0).await.unwrap();
    let ticket = carl.purchase(&Purchase::new(shown.id, state.key)).await.unwrap();
    let listed = carl.orders(Some(shown.id), None).await.unwrap();
    assert_eq!((listed.orders.len(), listed.orders[0].order_id, listed.next), (1, ticket.order_id, None));
    let refused = BuyerClient::sign_in(&service, "no\tname", 0).await.unwrap_err();
    assert_eq!(refused.code(), Some(&Code::InvalidRequest));
}

/// More orders than fit on a page are all read, each once.
#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_of_many_orders_reads_them_page_by_page() {
    let system = System::shared_with(&UNLIMITED).await;
    let sale = system.create_sale(NewSale { per_user: Units::parse(1_000).unwrap(), ..terms(1_000) }).await;
    let ann = buyer(&system, "ann-of-many");
    let mut bought = BTreeSet::new();
    for _ in 0..120 {
        bought.insert(ann.purchase(&purchase(&sale)).await.unwrap().order_id);
    }
    // An order written between two pages is newer than its purchase, and may move to a page already read.
    system.settled(&sale).await;
    let ids = |orders: &[Order]| orders.iter().map(|order| order.order_id).collect::<BTreeSet<Uuid>>();
    let first = ann.orders(Some(sale.id.get()), None).await.unwrap();
    let second = ann.orders(Some(sale.id.get()), first.next).await.unwrap();
    assert_eq!((first.orders.len(), second.orders.len(), second.next), (100, 20, None));
    assert_eq!(ids(&[first.orders, second.orders].concat()), bought);
}

/// The progress of an order: each status is greater than the earlier ones.
fn progress(status: &OrderStatus) -> usize {
    use OrderStatus::{Accepted, Cancelled, Paid, PendingPayment, Refunded, Refunding};
    let order = [Accepted, PendingPayment, Paid, Refunding, Refunded, Cancelled];
    order.iter().position(|other| other == status).expect("a status of these tests")
}

/// Whether statuses come in order, and each once.
fn in_order(seen: &[OrderStatus]) -> bool {
    seen.windows(2).all(|pair| progress(&pair[0]) < progress(&pair[1]))
}

/// The statuses that a follower sees, up to and including this one.
async fn seen_until(mut changes: OrderChanges, last: OrderStatus) -> (Vec<OrderStatus>, OrderChanges) {
    let mut seen = Vec::new();
    while seen.last() != Some(&last) {
        let next = timeout(PATIENCE, changes.next()).await.expect("no change came");
        seen.push(next.unwrap().expect("the order has not ended").status);
    }
    (seen, changes)
}

/// Follows an order until its first status came by a stream, without a poll. A busy service may refuse a stream for a moment.
async fn follow_by_events(system: &System, user: &str, order: Uuid) -> (Wire, OrderChanges) {
    eventually(|| async {
        let wire = wire_losing(0, system).await;
        let mut changes = buyer_at(system, wire.address, user).follow(order);
        changes.next().await.unwrap().expect("the order has not ended");
        let polls = wire.requests(&format!("GET /api/v1/orders/{order} "));
        if polls == 0 { Ok((wire, changes)) } else { Err(format!("{polls} polls")) }
    })
    .await
}

/// An order is followed from its purchase to its payment and refund, by events and by polling alone. A follower with events does not poll.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_followed_to_paid_by_events_and_by_polling_alone() {
    let (system, sale) = System::selling(terms(5)).await;
    let ann = buyer(&system, "ann");
    let ticket = ann.purchase(&purchase(&sale)).await.unwrap();
    let order = ticket.order_id;
    let (wire, by_events) = follow_by_events(&system, "ann", order).await;
    let by_polling = ann.follow(order).by_polling();
    let followers = [by_events, by_polling].map(|changes| tokio::spawn(seen_until(changes, OrderStatus::Paid)));

    written(&ann, &ticket).await;
    let payment = ann.pay(order, "sandbox").await.unwrap();
    let paid = Callback::of("payment.succeeded", payment.payment_id, ("order_id", order), 100);
    assert_eq!(paid.send(&system).await, 200);
    let mut still_following = Vec::new();
    for follower in followers {
        let (seen, changes) = follower.await.unwrap();
        assert!(in_order(&seen), "{seen:?}");
        still_following.push(changes);
    }
    let polls = wire.requests(&format!("GET /api/v1/orders/{order} "));
    let streams = wire.requests(&format!("GET /api/v1/orders/{order}/events "));
    // A broken stream is opened again, and while a busy service refuses it the client polls.
    assert!(streams > 1 || (streams, polls) == (1, 0), "{polls} polls beside {streams} streams");

    let refund = ann.refund(order, "too small").await.unwrap();
    assert_eq!(refund.status, "requested");
    let key = sqlx::query_scalar("SELECT key FROM refunds WHERE payment_id = $1").bind(payment.payment_id);
    let key: Uuid = key.fetch_one(&system.sql).await.unwrap();
    let returned = Callback::of("refund.succeeded", key, ("payment_key", payment.payment_id), 100);
    assert_eq!(returned.send(&system).await, 200);
    for changes in still_following {
        let (_, mut changes) = seen_until(changes, OrderStatus::Refunded).await;
        assert_eq!(changes.next().await.unwrap(), None, "nothing comes after the end");
    }
}

/// When the instance has its maximum of streams, or the network breaks them, the client polls and misses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn polling_is_the_net_under_events() {
    let system = System::start_with(&[("SECKILL_HTTP__STREAMS_MAX", "1")]).await;
    let sale = system.create_sale(terms(5)).await;
    let (ann, bob) = (buyer(&system, "ann"), buyer(&system, "bob"));
    let anns = ann.purchase(&purchase(&sale)).await.unwrap();
    let bobs = bob.purchase(&purchase(&sale)).await.unwrap();
    // Ann's stream is the only one.
    let (_wire, watching) = follow_by_events(&system, "ann", anns.order_id).await;

    let wire = wire_losing(0, &system).await;
    let follower =
        tokio::spawn(seen_until(buyer_at(&system, wire.address, "bob").follow(bobs.order_id), OrderStatus::Cancelled));
    let refused = format!("GET /api/v1/orders/{}/events ", bobs.order_id);
    until(true, || async { wire.requests(&refused) > 0 }).await;
    written(&bob, &bobs).await;
    assert_eq!(bob.cancel(bobs.order_id).await.unwrap().status, OrderStatus::Cancelled);
    let (seen, mut changes) = follower.await.unwrap();
    assert_eq!(seen.last(), Some(&OrderStatus::Cancelled));
    assert_eq!(changes.next().await.unwrap(), None);
    assert!(wire.requests(&format!("GET /api/v1/orders/{} ", bobs.order_id)) > 0);
    drop(watching);
    system.finish().await;
}

/// A broken stream is opened again. The follower misses nothing and gets nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_survives_the_end_of_its_stream() {
    let mut system = System::without_workers(&[]).await;
    let sale = system.create_sale(terms(5)).await;
    let ann = buyer(&system, "ann");
    let ticket = ann.purchase(&purchase(&sale)).await.unwrap();
    let wire = wire_losing(0, &system).await;
    let changes = buyer_at(&system, wire.address, "ann").follow(ticket.order_id);
    let (seen, changes) = seen_until(changes, OrderStatus::Accepted).await;
    assert_eq!(seen, [OrderStatus::Accepted]);
    let follower = tokio::spawn(seen_until(changes, OrderStatus::Cancelled));
    wire.cut();
    wire.tried_in_vain(1).await;
    wire.mend();

    // With workers, the order is written.
    system.serve(true).await;
    written(&ann, &ticket).await;
    assert_eq!(ann.cancel(ticket.order_id).await.unwrap().status, OrderStatus::Cancelled);
    let (seen, _) = follower.await.unwrap();
    assert!(in_order(&seen) && seen[0] != OrderStatus::Accepted, "{seen:?}");
    system.finish().await;
}

/// The load program signs its crowd in, waits for the sale, and sends each kind of visitor.
#[tokio::test(flavor = "multi_thread")]
async fn a_rush_has_more_than_buyers_in_it() {
    let (system, sale) = System::selling(terms(10)).await;
    let plan = Plan {
        base: format!("http://{}", system.instances[0].address),
        sale_id: sale.id.get(),
        buyers: 30,
        rate: Some(200),
        doubles: 5,
        unknown: 4,
        forged: 3,
        bots: 2,
        connections: 8,
        threads: 2,
        ..Plan::default()
    };
    let users = (0..plan.identities()).map(|n| format!("mixed-{n}"));
    let buyers = users.map(|user| Buyer { token: system.token(&user, 0), user }).collect();
    let report = seckill_load::run(&plan, buyers, false).await.unwrap();
    let text = report.render_text();
    assert_eq!((report.orders, report.unanswered, report.wrongly_accepted), (10, 0, 0), "{text}");
    let answers = |role| report.counts_by_role.get(&role).cloned().unwrap_or_default();
    let only = |answer: &str, number| BTreeMap::from([(answer.to_owned(), number)]);
    assert_eq!(answers(Role::UnknownSale), only("404 unknown-sale", 4), "{text}");
    assert_eq!(answers(Role::ForgedToken), only("401 unauthenticated", 3), "{text}");
    let sent = |role| answers(role).values().sum::<u64>();
    assert_eq!([Role::SecondClick, Role::Bot].map(sent), [5, 40], "{text}");
    assert!(report.lag.is_some() && report.first_second_lag.is_some(), "{text}");
    system.settled(&sale).await;
    assert_eq!((system.orders(&sale).await, system.stock(&sale).await), (10, 0));
}

/// A wait for a status ends at its time-out, or when the order ends otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_an_order_is_bounded() {
    let (system, sale) = System::selling(terms(5)).await;
    let ann = buyer(&system, "ann");
    let ticket = ann.purchase(&purchase(&sale)).await.unwrap();
    written(&ann, &ticket).await;
    let paid = |order: &Order| order.status == OrderStatus::Paid;
    let within = Duration::from_millis(200);
    assert!(matches!(ann.wait_for(ticket.order_id, within, paid).await, Err(Error::TimeOut(time)) if time == within));
    ann.cancel(ticket.order_id).await.unwrap();
    let ended = ann.wait_for(ticket.order_id, PATIENCE, paid).await.unwrap();
    assert_eq!((ended.status, ended.reason.as_deref()), (OrderStatus::Cancelled, Some("by-buyer")));
}
