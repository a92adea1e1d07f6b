//! The shop gets the events of its orders: signed, in order, and repeated until it accepts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use seckill_domain::ids::OrderId;
use seckill_postgres::orders::webhook_events::EventOutcome;
use seckill_webhook::{Secret, verify};
use serde_json::json;

use crate::buying::purchase_groups::settle_ones;
use crate::orders::payments_and_callbacks::bought;
use seckill_harness::folder::free_address;
use seckill_harness::outage::outage;
use seckill_harness::receiver::{Arrival, Receiver, Reply};
use seckill_harness::{Sale, System, eventually, terms, until};

const NEW: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OLD: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
pub const KEYS: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw, whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// A shop's settings, with quick retries. A returned message counts as an attempt, so there are several attempts.
fn listening(url: &str) -> [(&str, &str); 5] {
    [
        ("SECKILL_SHOP__WEBHOOK_URL", url),
        ("SECKILL_SHOP__WEBHOOK_SECRETS", KEYS),
        ("SECKILL_OUTBOX__MAX_ATTEMPTS", "8"),
        ("SECKILL_OUTBOX__BACKOFF_BASE_MS", "20"),
        ("SECKILL_OUTBOX__BACKOFF_MAX_MS", "50"),
    ]
}

pub async fn started(settings: &[(&str, &str)]) -> System {
    let system = System::start_with(settings).await;
    until(1, || system.number("SELECT count(*) FROM shop WHERE listens")).await;
    system
}

pub async fn all_told(system: &System) {
    until(0, || system.number("SELECT count(*) FROM order_events")).await;
}

pub async fn buy_and_cancel(system: &System, sale: &Sale, user: &str) -> String {
    let order = bought(system, sale, user).await.to_string();
    let cancel = format!("/api/v1/orders/{order}/cancel");
    until(200, || async { system.post(&cancel, user).await.0 }).await;
    order
}

/// The messages that arrived about an order: the types in order, and how many times in a row each message came.
fn about(arrivals: &[Arrival], order: &str) -> Vec<(String, usize)> {
    let of_order: Vec<_> = arrivals.iter().filter(|arrival| arrival.body["data"]["order_id"] == order).collect();
    let messages = of_order.chunk_by(|a, b| a.header("webhook-id") == b.header("webhook-id"));
    messages.map(|same| (same[0].body["type"].as_str().unwrap().to_owned(), same.len())).collect()
}

/// Checks the order of the messages, and the minimum number of times each came: a late answer counts as none.
fn assert_heard(arrivals: &[Arrival], order: &str, expected: &[(&str, usize)]) {
    let heard = about(arrivals, order);
    let types = heard.iter().map(|(kind, _)| kind.as_str());
    assert!(types.eq(expected.iter().map(|(kind, _)| *kind)), "{heard:?}");
    assert!(heard.iter().zip(expected).all(|((_, times), (_, least))| times >= least), "{heard:?}");
}

/// Checks that a message has the id and the contents of a step, and that both keys have signed it.
fn assert_signed(arrival: &Arrival, steps: &[(i64, uuid::Uuid, String)], sale: &Sale, now_s: i64) {
    let (id, at, signatures) = ("webhook-id", "webhook-timestamp", "webhook-signature");
    let (id, at, signatures) = (arrival.header(id), arrival.header(at), arrival.header(signatures));
    for key in [NEW, OLD] {
        verify(&[Secret::parse(key).unwrap()], &id, &at, &signatures, &arrival.bytes, now_s).unwrap();
    }
    let data = &arrival.body["data"];
    let named = |(step, order, _): &&(i64, uuid::Uuid, String)| id == format!("order_{order}_{step}");
    let (_, order, status) = steps.iter().find(named).expect("the id of a step");
    assert_eq!((&data["order_id"], &data["status"]), (&json!(order), &json!(status)));
    assert_eq!(data["reason"].as_str(), (status == "cancelled").then_some("by-buyer"));
    assert_eq!(data["currency"], "CNY");
    assert_eq!((&data["sale_id"], &data["quantity"], &data["amount_cents"]), (&json!(sale.id), &json!(1), &json!(100)));
    chrono::DateTime::parse_from_rfc3339(arrival.body["timestamp"].as_str().unwrap()).unwrap();
}

/// A message that the shop refuses is parked, raises an alarm, and delays only later messages of the same order.
#[tokio::test(flavor = "multi_thread")]
async fn a_shop_hears_every_step_in_order_and_what_it_refuses_holds_back_its_own_order() {
    let well = Arc::new(AtomicBool::new(false));
    let mended = Arc::clone(&well);
    let receiver = Receiver::scripted(move |arrival, before| {
        if arrival.body["data"]["user_id"] != "ann" {
            Reply::status(if before < 2 { 503 } else { 204 })
        } else if mended.load(Ordering::Relaxed) {
            Reply::OK
        } else {
            // Redirects are not followed.
            Reply { headers: "location: /elsewhere\r\n", ..Reply::status(302) }
        }
    });
    let system = started(&listening(&receiver.url())).await;
    let sale = system.create_sale(terms(6)).await;
    let ann = buy_and_cancel(&system, &sale, "ann").await;
    let mut others = Vec::new();
    for user in ["u0", "u1", "u2", "u3", "u4"] {
        others.push(buy_and_cancel(&system, &sale, user).await);
    }
    let parked = eventually(|| async {
        let parked = system.stores.ledger.outbox.parked(None, None, 10).await.unwrap();
        let alarms = system.stores.ledger.alarms.alarms(None, None, 10).await.unwrap();
        let raised =
            alarms.iter().any(|alarm| (alarm.kind.as_str(), alarm.subject.as_str()) == ("parked", "order_event"));
        let left = system.number("SELECT count(*) FROM order_events").await;
        let there = raised && parked.len() == 1 && left == 2;
        there.then_some(parked.clone()).ok_or_else(|| format!("{parked:?} {alarms:?} {left}"))
    })
    .await;
    assert_eq!((parked[0].kind.as_str(), parked[0].user_id.as_str(), parked[0].attempts), ("order_event", "ann", 8));
    assert!(parked[0].last_error.as_ref().unwrap().starts_with("302"));
    for order in &others {
        assert_heard(&receiver.seen(), order, &[("order.pending_payment", 3), ("order.cancelled", 3)]);
    }
    assert_heard(&receiver.seen(), &ann, &[("order.pending_payment", 8)]);

    well.store(true, Ordering::Relaxed);
    assert_eq!(system.stores.ledger.outbox.unpark(&[parked[0].id + 1_000], "test").await.unwrap(), 0);
    assert_eq!(system.stores.ledger.outbox.unpark(&[parked[0].id], "test").await.unwrap(), 1);
    all_told(&system).await;
    assert_heard(&receiver.seen(), &ann, &[("order.pending_payment", 9), ("order.cancelled", 1)]);
    let steps: Vec<(i64, uuid::Uuid, String)> =
        sqlx::query_as("SELECT id, order_id, to_status FROM order_steps").fetch_all(&system.sql).await.unwrap();
    assert_eq!((steps.len(), receiver.times().len()), (12, 12));
    let now_s = chrono::Utc::now().timestamp();
    for arrival in &receiver.seen() {
        assert_signed(arrival, &steps, &sale, now_s);
    }
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_that_is_not_there_is_waited_for_and_nothing_is_counted() {
    let address = free_address();
    let url = format!("http://{address}/take");
    let system = started(&listening(&url)).await;
    let sale = system.create_sale(terms(5)).await;
    let order = buy_and_cancel(&system, &sale, "ann").await;
    // After several attempts.
    let counted = eventually(|| async {
        let most = "SELECT max(claims), max(attempts) FROM order_events HAVING count(*) > 0";
        let tried: Option<(i32, i32)> = sqlx::query_as(most).fetch_optional(&system.sql).await.unwrap();
        tried.filter(|(claims, _)| *claims > 2).map(|(_, attempts)| attempts).ok_or_else(|| format!("{tried:?}"))
    })
    .await;
    assert_eq!(counted, 0, "a try that found nobody is no attempt");
    let receiver = Receiver::at(address, |_, _| Reply::OK);
    all_told(&system).await;
    assert_heard(&receiver.seen(), &order, &[("order.pending_payment", 1), ("order.cancelled", 1)]);
    system.finish().await;
}

/// A worker that claimed an event and died loses it to the next. Events are kept only from the moment when someone subscribes.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_worker_took_comes_back() {
    let system = System::without_workers(&[]).await;
    let sale = system.create_sale(terms(5)).await;
    let ledger = &system.stores.ledger;
    let mut orders = Vec::new();
    for (user, listens) in [("ann", false), ("bob", true)] {
        ledger.orders.set_shop_listens(listens).await.unwrap();
        let order = OrderId(bought(&system, &sale, user).await);
        settle_ones(ledger, &[order]).await.unwrap();
        orders.push(order);
    }
    assert!(ledger.orders.cancel_by_buyer(orders[1], "bob").await.unwrap());
    let lease = Duration::from_secs(3_600);
    let taken = ledger.orders.take_order_events(10, lease).await.unwrap();
    assert_eq!(taken.events.len(), 1, "the second waits for the first: {taken:?}");
    let dead = &taken.events[0];
    assert_eq!((dead.order, dead.status.as_str()), (orders[1], "pending_payment"));
    assert!(ledger.orders.take_order_events(10, lease).await.unwrap().events.is_empty(), "it is somebody's");
    let lease_over = "UPDATE order_events SET next_attempt_at = now()";
    system.execute(lease_over).await;
    let again = ledger.orders.take_order_events(10, lease).await.unwrap().events.remove(0);
    assert_eq!((again.order, again.step, again.attempts), (dead.order, dead.step, 0));
    assert_eq!(ledger.orders.order_event_delivered(dead).await.unwrap(), EventOutcome::Overtaken);
    assert_eq!(ledger.orders.order_event_delivered(&again).await.unwrap(), EventOutcome::Delivered { freed: 1 });
    let last = ledger.orders.take_order_events(10, lease).await.unwrap().events.remove(0);
    assert_eq!((last.status.as_str(), last.reason.as_deref()), ("cancelled", Some("by-buyer")));
    assert_eq!(ledger.orders.order_event_delivered(&last).await.unwrap(), EventOutcome::Delivered { freed: 0 });
    let left = system.number("SELECT count(*) FROM order_events").await;
    assert_eq!(left, 0);
    system.finish().await;
}

#[cfg(feature = "failpoints")]
#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_any_failpoint_tells_the_shop_at_least_once_and_in_order() {
    use crate::network::service_killed::Process;

    for (place, least) in [("webhook.taken", 1), ("webhook.answered", 2)] {
        let receiver = Receiver::start();
        let system = System::prepare(&listening(&receiver.url())).await;
        let address = free_address();
        let dies = [("FAILPOINTS", format!("{place}=return"))];
        let dies = dies.each_ref().map(|(name, value)| (*name, value.as_str()));
        let mut victim = Process::start_with(&system, address, &dies, std::process::Stdio::null()).ready(address).await;
        let sale = system.create_sale(terms(5)).await;
        // The process may die before it has answered the purchase.
        let purchase = system.buy_at(address, &sale, "ann").idempotent("once");
        eventually(|| {
            let (ended, purchase) = (victim.has_ended(), purchase.clone());
            async move {
                if ended {
                    return Ok(());
                }
                let answer = purchase.try_send().await;
                Err(format!("{place} was not passed: {answer:?}"))
            }
        })
        .await;
        let order: uuid::Uuid = sqlx::query_scalar("SELECT id FROM orders WHERE sale_id = $1")
            .bind(sale.id.get())
            .fetch_one(&system.sql)
            .await
            .unwrap();
        let _heir = Process::start_with(&system, address, &[], std::process::Stdio::null()).ready(address).await;
        all_told(&system).await;
        assert_heard(&receiver.seen(), &order.to_string(), &[("order.pending_payment", least)]);
        system.finish().await;
    }
}

/// An hour of 503: nothing is parked, the shop is asked less and less often, and hears everything afterwards, each once and in order.
#[tokio::test(flavor = "multi_thread")]
async fn an_hours_outage_of_the_shop_is_no_messages_failure() {
    let well = Arc::new(AtomicBool::new(false));
    let mended = Arc::clone(&well);
    let receiver =
        Receiver::scripted(move |_, _| Reply::status(if mended.load(Ordering::Relaxed) { 204 } else { 503 }));
    let system = started(&listening(&receiver.url())).await;
    let sale = system.create_sale(terms(40)).await;
    let mut orders = Vec::new();
    for number in 0..20 {
        orders.push(buy_and_cancel(&system, &sale, &format!("u{number}")).await);
    }
    let probes = outage(&system.sql, "shop", Duration::from_secs(3_600)).await;
    let arrived = receiver.seen().len();
    // The first failures come from up to 16 requests at once.
    assert!((20..90).contains(&probes) && arrived < 200, "{arrived} requests, {probes} probes");
    let worst = system.number("SELECT max(attempts)::bigint FROM order_events").await;
    assert!(worst <= 3, "an event has {worst} attempts: the outage was counted");
    assert_eq!(system.number("SELECT count(*) FROM order_events WHERE status = 'parked'").await, 0);
    eventually(|| async {
        let alarms = system.stores.ledger.alarms.alarms(None, None, 10).await.unwrap();
        let raised =
            alarms.iter().any(|alarm| (alarm.kind.as_str(), alarm.subject.as_str()) == ("receiver-away", "shop"));
        raised.then_some(()).ok_or_else(|| format!("{alarms:?}"))
    })
    .await;

    well.store(true, Ordering::Relaxed);
    system.execute("UPDATE receivers_away SET pauses_until = now()").await;
    all_told(&system).await;
    let heard = receiver.seen();
    let accepted: Vec<Arrival> = heard.into_iter().skip(arrived).collect();
    for order in &orders {
        let told = about(&accepted, order);
        let once = [("order.pending_payment".to_owned(), 1), ("order.cancelled".to_owned(), 1)];
        assert_eq!(told, once, "{order}");
    }
    assert_eq!(system.number("SELECT count(*) FROM receivers_away").await, 0);
    system.finish().await;
}

/// A message that the receiver can never process is parked, and delays no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_breaks_the_receiver_is_parked_and_the_others_arrive() {
    let receiver = Receiver::scripted(|arrival, _| {
        Reply::status(if arrival.body["data"]["user_id"] == "ann" { 500 } else { 200 })
    });
    let system = started(&listening(&receiver.url())).await;
    let sale = system.create_sale(terms(1_000)).await;
    buy_and_cancel(&system, &sale, "ann").await;
    // Others keep buying, so the receiver is seen to be well.
    let mut number = 0;
    while system.number("SELECT count(*) FROM order_events WHERE status = 'parked'").await == 0 {
        buy_and_cancel(&system, &sale, &format!("u{number}")).await;
        number += 1;
        assert!(number < 400, "it is never parked");
    }
    let left = "SELECT count(*) FROM order_events e JOIN orders o ON o.id = e.order_id WHERE o.user_id <> 'ann'";
    until(0, || system.number(left)).await;
    system.finish().await;
}
