//! Server-sent events: a buyer follows the status of an order.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};
use sqlx::postgres::PgListener;
use tokio::task::JoinHandle;

use crate::orders::payments_and_callbacks::{Callback, pay};
use seckill_harness::{PATIENCE, Sale, System, eventually, terms, until};

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);

type Event = (i64, Value);

struct Reader {
    response: Response,
    text: String,
    /// The kind of the last event.
    kind: String,
}

async fn request_stream(
    system: &System,
    at: SocketAddr,
    order: &str,
    user: &str,
    last_event_id: Option<&str>,
) -> Response {
    let request = Client::new().get(format!("http://{at}/api/v1/orders/{order}/events"));
    let request = request.bearer_auth(system.token(user, 0));
    let request = last_event_id.into_iter().fold(request, |request, id| request.header("Last-Event-ID", id));
    request.send().await.unwrap()
}

impl Reader {
    fn of(response: Response) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new(), kind: String::new() }
    }

    /// Opens a stream. A busy service may refuse it for a moment.
    async fn open(system: &System, at: SocketAddr, order: &str, user: &str, last_event_id: Option<&str>) -> Self {
        let response = eventually(|| async {
            let response = request_stream(system, at, order, user, last_event_id).await;
            if response.status() == 503 { Err("the service is busy".to_owned()) } else { Ok(response) }
        });
        Self::of(response.await)
    }

    /// The next event; `None` at the end of the stream. Skips comments and `retry`.
    async fn next(&mut self) -> Option<Event> {
        // A bound for the event: a stream with comments only would be read for ever.
        tokio::time::timeout(PATIENCE, self.read()).await.expect("no event came")
    }

    async fn read(&mut self) -> Option<Event> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                if let Some(data) = field("data") {
                    self.kind = field("event").unwrap().to_owned();
                    return Some((field("id")?.parse().unwrap(), serde_json::from_str(data).unwrap()));
                }
                continue;
            }
            let chunk = self.response.chunk().await.unwrap()?;
            self.text += std::str::from_utf8(&chunk).unwrap();
        }
    }

    async fn rest(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

fn statuses(events: &[Event]) -> Vec<&str> {
    events.iter().map(|(_, order)| order["status"].as_str().unwrap()).collect()
}

async fn bought(system: &System, sale: &Sale, user: &str) -> String {
    system.buy(sale, user).send().await.order_id()
}

async fn cancel(system: &System, at: SocketAddr, order: &str, user: &str) {
    let cancel = || Client::new().post(format!("http://{at}/api/v1/orders/{order}/cancel"));
    until(200, || async { cancel().bearer_auth(system.token(user, 0)).send().await.unwrap().status() }).await;
}

/// Many orders, each followed by its buyer at the first instance.
struct Crowd(Vec<(String, String, JoinHandle<Vec<Event>>)>);

impl Crowd {
    async fn follow(system: &System) -> Self {
        let (sale, at) = (system.create_sale(terms(60)).await, system.instances[0].address);
        let mut readers = Vec::new();
        for n in 0..60 {
            let user = format!("u{n}");
            let order = bought(system, &sale, &user).await;
            let reader = Reader::open(system, at, &order, &user, None).await;
            readers.push((user, order, tokio::spawn(reader.rest())));
        }
        Self(readers)
    }

    /// No change is missed, although changes commit out of the order of their ids.
    async fn cancel(self, system: &System) {
        for (user, order, _) in &self.0 {
            cancel(system, system.instances[0].address, order, user).await;
        }
        for (user, _, reader) in self.0 {
            let events = reader.await.unwrap();
            assert_eq!(statuses(&events), ["accepted", "pending_payment", "cancelled"], "{user}");
        }
    }
}

/// From the purchase to the final status, while other instances make the changes.
#[tokio::test(flavor = "multi_thread")]
async fn every_change_is_sent_once_and_in_order_whichever_instance_made_it() {
    let mut system = System::without_workers(&[("SECKILL_ORDERS__BATCH_MAX", "7")]).await;
    let sale = system.create_sale(terms(5)).await;
    let order = bought(&system, &sale, "ann").await;
    let at = system.instances[0].address;
    let mut early = Reader::open(&system, at, &order, "ann", None).await;
    let (first, accepted) = early.next().await.unwrap();
    assert_eq!((first, &accepted["status"]), (0, &json!("accepted")));
    let crowd = Crowd::follow(&system).await;

    system.serve(true).await;
    system.serve(true).await;
    crowd.cancel(&system).await;
    let (made, waiting) = early.next().await.unwrap();
    assert_eq!(waiting["status"], "pending_payment");
    assert_eq!(waiting, system.get(&format!("/api/v1/orders/{order}"), Some("ann")).await.1);
    let late = Reader::open(&system, at, &order, "ann", None).await;
    system.settled(&sale).await;

    cancel(&system, system.instances[1].address, &order, "ann").await;
    let (rest, all) = (early.rest().await, late.rest().await);
    assert_eq!(statuses(&rest), ["cancelled"]);
    assert_eq!(statuses(&all), ["pending_payment", "cancelled"]);
    let (ended, cancelled) = &rest[0];
    assert_eq!(cancelled["reason"], "by-buyer");
    assert_eq!(*cancelled, system.get(&format!("/api/v1/orders/{order}"), Some("ann")).await.1);
    assert_eq!(all.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [made, *ended]);

    // Reconnecting resumes after the last received event. An id of another order is ignored.
    for (last_event_id, expected) in [
        ("0", vec!["pending_payment", "cancelled"]),
        (made.to_string().as_str(), vec!["cancelled"]),
        ("x", vec!["cancelled"]),
        ("999999999", vec!["cancelled"]),
    ] {
        let again = Reader::open(&system, at, &order, "ann", Some(last_event_id)).await.rest().await;
        assert_eq!(statuses(&again), expected, "{last_event_id}");
        assert!(again.iter().all(|(_, order)| order["status"] == "cancelled" || order.get("reason").is_none()));
    }
    let over = request_stream(&system, at, &order, "ann", Some(&ended.to_string())).await;
    assert_eq!(over.status(), StatusCode::NO_CONTENT);
    system.finish().await;
}

/// One instance reports a change immediately to many followers of an order, until it stops.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_tells_at_once_within_bounds_until_it_stops() {
    let shutdown_timeout_ms = SHUTDOWN_TIMEOUT.as_millis().to_string();
    let system = System::start_with(&[
        ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "3600000"),
        ("SECKILL_HTTP__STREAMS_MAX", "5"),
        ("SECKILL_HTTP__SHUTDOWN_TIMEOUT_MS", &shutdown_timeout_ms),
    ])
    .await;
    every_change_sends_a_notice(&system).await;
    an_order_is_followed_by_its_buyer_and_within_bounds(&system).await;
    a_stopping_service_does_not_wait_for_streams(system).await;
}

/// Each change of an order sends a notice immediately; the poll of each second is only a safety net.
async fn every_change_sends_a_notice(system: &System) {
    let [first, second] = [system.create_sale(terms(1)).await, system.create_sale(terms(1)).await];
    let mut notices = PgListener::connect_with(&system.sql).await.unwrap();
    notices.listen("seckill_orders").await.unwrap();
    // A change may send more than one notice, so a notice counts when the order has the status.
    let mut notified = async |order: &str, status: &str| {
        let order: uuid::Uuid = order.parse().unwrap();
        loop {
            let notice = tokio::time::timeout(PATIENCE, notices.recv()).await;
            notice.unwrap_or_else(|_| panic!("no notice: {status}")).unwrap();
            let now = sqlx::query_scalar("SELECT status FROM orders WHERE id = $1").bind(order);
            let now: Option<String> = now.fetch_optional(&system.sql).await.unwrap();
            if now.as_deref() == Some(status) {
                break;
            }
        }
    };
    let order = bought(system, &first, "ann").await;
    notified(&order, "pending_payment").await;
    system.settled(&first).await;
    cancel(system, system.instances[0].address, &order, "ann").await;
    notified(&order, "cancelled").await;
    let order = bought(system, &second, "ann").await;
    notified(&order, "pending_payment").await;
    system.settled(&second).await;
    system.let_deadlines_pass(&second).await;
    notified(&order, "cancelled").await;
}

async fn an_order_is_followed_by_its_buyer_and_within_bounds(system: &System) {
    let sale = system.create_sale(terms(5)).await;
    let (order, other) = (bought(system, &sale, "ann").await, bought(system, &sale, "bob").await);
    let at = system.instances[0].address;
    let without_token = reqwest::get(system.url(&format!("/api/v1/orders/{order}/events"))).await.unwrap();
    assert_eq!(without_token.status(), 401);
    let missing = uuid::Uuid::new_v4().to_string();
    for (order, user, status) in [(&order, "bob", 404), (&missing, "ann", 404), (&"x".to_owned(), "ann", 400)] {
        assert_eq!(request_stream(system, at, order, user, None).await.status(), status, "{user}, {order}");
    }
    system.settled(&sale).await;
    // The fifth stream of an order ends the oldest one, and no other.
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(Reader::open(system, at, &order, "ann", None).await);
    }
    let fifth = Reader::open(system, at, &order, "ann", None).await;
    assert_eq!(statuses(&open.remove(0).rest().await), ["pending_payment"]);
    let open_other = || async {
        let stream = request_stream(system, at, &other, "bob", None).await;
        if stream.status() == 200 { Ok(stream) } else { Err(stream.status().to_string()) }
    };
    let _last = eventually(open_other).await;
    let refused = request_stream(system, at, &other, "bob", None).await;
    assert_eq!((refused.status().as_u16(), refused.headers().contains_key("retry-after")), (503, true));
    cancel(system, at, &order, "ann").await;
    for reader in open.into_iter().chain([fifth]) {
        assert_eq!(statuses(&reader.rest().await), ["pending_payment", "cancelled"]);
    }
    // A closed stream makes room.
    eventually(open_other).await;
}

/// A stream does not outlive its token. The client reconnects with another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_its_token_expires() {
    let system = System::shared().await;
    let (sale, lasts) = (system.create_sale(terms(5)).await, 5);
    let order = bought(&system, &sale, "ann").await;
    system.settled(&sale).await;
    let (token, began) = (system.token_for("ann", 0, lasts), Instant::now());
    let request = Client::new().get(system.url(&format!("/api/v1/orders/{order}/events"))).bearer_auth(&token);
    let events = Reader::of(request.send().await.unwrap()).rest().await;
    assert_eq!(statuses(&events), ["pending_payment"]);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!(
        Reader::open(&system, system.instances[0].address, &order, "ann", None).await.next().await,
        Some(events[0].clone())
    );
}

async fn a_stopping_service_does_not_wait_for_streams(mut system: System) {
    let sale = system.create_sale(terms(1)).await;
    let order = bought(&system, &sale, "ann").await;
    system.settled(&sale).await;
    let at = system.instances[0].address;
    let mut reader = Reader::open(&system, at, &order, "ann", None).await;
    assert_eq!(reader.next().await.unwrap().1["status"], "pending_payment");
    let began = Instant::now();
    let ((), rest) = tokio::join!(system.stop(), reader.rest());
    assert!(rest.is_empty(), "{rest:?}");
    // A service that waited for its streams would be cut off by this time-out.
    assert!(began.elapsed() < SHUTDOWN_TIMEOUT, "{:?}", began.elapsed());
    system.finish().await;
}

/// HEAD answers as a stream begins, and opens none: more streams would end the oldest of the order.
#[tokio::test(flavor = "multi_thread")]
async fn head_opens_no_stream() {
    let system = System::shared().await;
    let sale = system.create_sale(terms(5)).await;
    let order = bought(&system, &sale, "ann").await;
    let at = system.instances[0].address;
    let reader = Reader::open(&system, at, &order, "ann", None).await;
    for _ in 0..8 {
        let head = Client::new().head(format!("http://{at}/api/v1/orders/{order}/events"));
        let head = head.bearer_auth(system.token("ann", 0)).send().await.unwrap();
        assert_eq!(
            (head.status().as_u16(), &head.headers()["content-type"]),
            (200, &"text/event-stream".parse().unwrap())
        );
        assert_eq!(head.text().await.unwrap(), "");
    }
    system.settled(&sale).await;
    assert_eq!(system.post(&format!("/api/v1/orders/{order}/cancel"), "ann").await.0, 200);
    assert_eq!(statuses(&reader.rest().await).last(), Some(&"cancelled"));
}

/// A declined payment is announced at once with its reason, and again to a reader who missed it. It is no step: nothing else is sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_declined_payment_is_an_event_with_its_reason() {
    let system = System::shared().await;
    let (sale, at) = (system.create_sale(terms(5)).await, system.instances[0].address);
    let order = bought(&system, &sale, "ann").await;
    let (path, of_sale) = (format!("/api/v1/orders/{order}"), format!("/api/v1/orders?sale_id={}", sale.id));
    until(json!("pending_payment"), || async { system.get(&path, Some("ann")).await.1["status"].clone() }).await;
    assert_eq!(system.get(&path, Some("ann")).await.1["refunded_cents"], 0);
    let mut reader = Reader::open(&system, at, &order, "ann", None).await;
    let (step, waiting) = reader.next().await.unwrap();
    assert_eq!((&waiting["status"], waiting.get("payment")), (&json!("pending_payment"), None));

    for (reason, told) in
        [(Some("insufficient-funds"), "insufficient-funds"), (Some("No money! (51)"), "failed"), (None, "declined")]
    {
        let payment = pay(&system, order.parse().unwrap(), "ann").await;
        let mut declined = Callback::of("payment.failed", payment, ("order_id", order.parse().unwrap()), 100);
        if let Some(reason) = reason {
            declined.data["reason"] = json!(reason);
        }
        assert_eq!(declined.send(&system).await, 200);
        let (id, event) = reader.next().await.unwrap();
        assert!(id > step && reader.kind == "payment", "{id} {}", reader.kind);
        let expected = json!({ "payment_id": payment, "channel": "sandbox", "status": "failed", "reason": told });
        assert_eq!((&event["payment"], &event["status"]), (&expected, &json!("pending_payment")));
        for read in [system.get(&path, Some("ann")).await.1, system.get(&of_sale, Some("ann")).await.1[0].clone()] {
            assert_eq!(read["payment"], expected);
        }
    }
    // A client that missed the events gets them; a new client gets the present status.
    let mut late = Reader::open(&system, at, &order, "ann", Some(&step.to_string())).await;
    for _ in 0..3 {
        late.next().await.unwrap();
        assert_eq!(late.kind, "payment");
    }
    let mut new = Reader::open(&system, at, &order, "ann", None).await;
    let (_, event) = new.next().await.unwrap();
    assert_eq!((new.kind.as_str(), &event["payment"]["reason"]), ("status", &json!("declined")));
    drop((reader, late, new));

    let payment = pay(&system, order.parse().unwrap(), "ann").await;
    let paid = Callback::of("payment.succeeded", payment, ("order_id", order.parse().unwrap()), 100);
    assert_eq!(paid.send(&system).await, 200);
    until(json!("succeeded"), || async { system.get(&path, Some("ann")).await.1["payment"]["status"].clone() }).await;
    system.finish().await;
}
