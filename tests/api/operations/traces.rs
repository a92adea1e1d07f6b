//! One trace shows a purchase from the click to the shop's webhook, across processes (docs/monitoring.md).

mod collector;

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use reqwest::Client;
use reqwest::header::HeaderValue;
use seckill_domain::message::GroupsPlacedV1;
use seckill_domain::trace_context::TraceContext;
use seckill_rabbitmq::{Broker, Consumer, MessageBatch, QueueError, Source};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::network::service_killed::Process;
use crate::orders::order_webhooks::KEYS;
use crate::orders::payments_and_callbacks::Callback;
use collector::{Collector, Exported};
use seckill_harness::folder::{Folder, free_address};
use seckill_harness::receiver::{Arrival, Receiver, Reply};
use seckill_harness::{PATIENCE, Sale, System, eventually, terms};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const REFUSED: &str = "0af7651916cd43dd8448eb211c80319c";
/// The span in the buyer's browser.
const CLICK: &str = "00f067aa0ba902b7";

async fn buy(
    system: &System,
    at: SocketAddr,
    sale: &Sale,
    user: &str,
    headers: &[(&'static str, &[u8])],
) -> (u16, Value) {
    let click = system.buy_at(at, sale, user);
    let url = format!("http://{at}/api/v1/sales/{}/purchases", sale.id);
    let mut request = Client::new().post(url).bearer_auth(click.token.unwrap());
    request = request.header("content-type", "application/json").body(click.body);
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_bytes(value).unwrap());
    }
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

fn order_of((status, body): (u16, Value)) -> Uuid {
    assert_eq!(status, 202, "{body}");
    body["order_id"].as_str().unwrap().parse().unwrap()
}

/// A shop that fails each message once, and a bank that takes every payment.
fn receivers() -> (Receiver, Receiver) {
    let shop = Receiver::scripted(|_, before| if before == 0 { Reply::status(500) } else { Reply::OK });
    (shop, Receiver::scripted(|_, _| Reply::status(202)))
}

fn child<'a>(spans: &'a [Exported], name: &str, parent: &str) -> &'a Exported {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name && span.parent == parent).collect();
    assert_eq!(found.len(), 1, "{name} below {parent}: {spans:#?}");
    found[0]
}

/// The trace in the headers of the message for fulfilment. The message stays in its queue.
async fn message_trace(system: &System) -> TraceContext {
    let mut consumer = Consumer::<GroupsPlacedV1>::new(Broker::new(&system.config), Source::GroupsPlaced, 10);
    let (stop, seen) = (CancellationToken::new(), Mutex::new(None));
    // A batch that is not settled goes back to the queue with the consumer.
    let look = |received: MessageBatch<GroupsPlacedV1>| {
        *seen.lock().unwrap() = received.traces.first().map(|(_, trace)| trace.clone());
        std::future::ready(Err::<(), QueueError>(QueueError::Closed))
    };
    // A step waits ten seconds for a message, and fails if a busy broker is slow to connect.
    let deadline = Instant::now() + PATIENCE;
    while seen.lock().unwrap().is_none() && Instant::now() < deadline {
        if consumer.step(&stop, &look).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    drop(consumer);
    seen.into_inner().unwrap().expect("the message carries a trace")
}

/// The bank reports that a payment has succeeded, in the trace of the request for it.
async fn report(at: SocketAddr, payment: &Arrival) {
    let order = payment.body["order_id"].as_str().unwrap().parse().unwrap();
    let callback =
        Callback::of("payment.succeeded", payment.idempotency_key.parse().unwrap(), ("order_id", order), 100);
    let url = format!("http://{at}/api/v1/payments/callbacks/sandbox");
    let mut request = Client::new().post(url).header("traceparent", payment.header("traceparent"));
    for (name, value) in callback.headers() {
        request = request.header(name, value);
    }
    assert_eq!(request.body(callback.body()).send().await.unwrap().status(), 200);
}

/// One tree, with the parent that each message names. An unsampled purchase leaves no trace anywhere.
#[tokio::test(flavor = "multi_thread")]
async fn one_trace_shows_a_purchase_from_the_click_to_the_settled_order() {
    let collector = Collector::start().await;
    let (shop, bank) = receivers();
    let (shop_url, bank_url) = (shop.url(), format!("http://{}", bank.address));
    let system = System::prepare(&[
        ("SECKILL_SHOP__WEBHOOK_URL", shop_url.as_str()),
        ("SECKILL_SHOP__WEBHOOK_SECRETS", KEYS),
        ("SECKILL_CHANNELS__SANDBOX__URL", bank_url.as_str()),
        ("SECKILL_PAYMENTS__ASK_AFTER_MS", "3600000"),
        ("SECKILL_OUTBOX__BACKOFF_BASE_MS", "20"),
        ("SECKILL_OUTBOX__BACKOFF_MAX_MS", "50"),
    ])
    .await;
    let (address, folder) = (free_address(), Folder::new("logs"));
    let log = |name: &str| Stdio::from(std::fs::File::create(folder.file(name)).unwrap());
    let bind = address.to_string();
    let settings = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("RUST_LOG", "info,seckill=debug"),
        ("SECKILL_HTTP__BIND", bind.as_str()),
    ];
    let serve = Process::run(&system, &["serve"], &settings, log("serve")).ready(address).await;
    let relay = Process::run(&system, &["work", "--only", "relay"], &settings, Stdio::null());
    let sale = system.create_sale(terms(5)).await;

    let click = format!("00-{TRACE}-{CLICK}-01");
    let order = order_of(buy(&system, address, &sale, "ann", &[("traceparent", click.as_bytes())]).await);
    let message = message_trace(&system).await;
    relay.end();
    let unsampled = click.replace("-01", "-00");
    let other = order_of(buy(&system, address, &sale, "ben", &[("traceparent", unsampled.as_bytes())]).await);

    // A refused purchase is traced up to its refusal. A stranger's request is not traced, whatever its headers say.
    let parent = format!("00-{REFUSED}-{CLICK}-01");
    let url = format!("http://{address}/api/v1/sales/{}/purchases", sale.id);
    let stranger = Client::new().post(url).header("traceparent", &parent).body("{}").send().await.unwrap();
    assert_eq!(stranger.status(), 401);
    let wrong_key = Sale { id: sale.id, key: "another".to_owned(), waiting_key: String::new() };
    let (status, body) = buy(&system, address, &wrong_key, "eve", &[("traceparent", parent.as_bytes())]).await;
    assert_eq!((status, body["code"].as_str()), (403, Some("wrong-key")));

    let work = Process::run(&system, &["work"], &settings, log("work"));
    let told = |order: Uuid, status: &'static str| {
        let shop = &shop;
        eventually(move || {
            let all = shop.seen().into_iter().map(|arrival| arrival.body["data"].clone());
            let told = all.filter(|data| data["order_id"] == json!(order) && data["status"] == status).count();
            std::future::ready((told >= 2).then_some(()).ok_or(format!("{status}: sent {told} times")))
        })
    };
    told(order, "pending_payment").await;
    told(other, "pending_payment").await;
    // Without a trace of its own, the payment belongs to the order's.
    let paying = Client::new().post(format!("http://{address}/api/v1/orders/{order}/payments"));
    let paying = paying.bearer_auth(system.token("ann", 0)).json(&json!({ "channel": "sandbox" }));
    assert_eq!(paying.send().await.unwrap().status(), 202);
    let payment = eventually(|| std::future::ready(bank.seen().first().cloned().ok_or("no payment".to_owned()))).await;
    report(address, &payment).await;
    told(order, "paid").await;
    system.settled(&sale).await;
    work.end();
    serve.end();

    // Both processes have sent all their spans.
    let refused = collector.trace(REFUSED);
    assert_eq!(refused.len(), 1, "{refused:#?}");
    assert_eq!((refused[0].name.as_str(), refused[0].attributes["refused"].as_str()), ("POST purchases", "wrong-key"));
    assert_eq!(refused[0].parent, CLICK);
    let spans = collector.trace(TRACE);
    let purchase = child(&spans, "POST purchases", CLICK);
    let commit = child(&spans, "commit", &purchase.id);
    // A message that the broker refused is published again: each time is a span below the commit.
    let by_id = |id: &str| spans.iter().find(|span| span.id == id).unwrap_or_else(|| panic!("span {id}: {spans:#?}"));
    let webhooks: Vec<_> = spans.iter().filter(|span| span.name == "POST webhook").collect();
    let fulfil = by_id(&webhooks[0].parent);
    let publish = by_id(&fulfil.parent);
    assert_eq!(
        (fulfil.name.as_str(), publish.name.as_str(), &publish.parent),
        ("fulfil", "publish", &commit.id),
        "{spans:#?}"
    );
    let sent = by_id(&format!("{:016x}", message.span()));
    assert_eq!((message.trace_id().as_str(), sent.name.as_str(), &sent.parent), (TRACE, "publish", &commit.id));
    // A payment that a busy worker sends too late for its slot is published again.
    let asked = TraceContext::parse(&payment.header("traceparent")).unwrap();
    let pay = by_id(&format!("{:016x}", asked.span()));
    assert_eq!(pay.name, "POST payment");
    assert!(spans.iter().any(|span| span.name == "publish" && span.id == pay.parent && span.parent == fulfil.id));
    let callback = child(&spans, "POST callbacks", &pay.id);
    for (span, service) in
        [(purchase, "serve"), (commit, "serve"), (publish, "work"), (fulfil, "work"), (callback, "serve")]
    {
        assert_eq!(span.service, format!("seckill-{service}"), "{}", span.name);
    }
    assert_eq!(purchase.attributes["order"], order.to_string());
    assert!(webhooks.iter().all(|span| span.parent == fulfil.id), "{webhooks:#?}");
    let failed = webhooks.iter().filter(|span| span.failed).count();
    assert!(failed >= 2 && webhooks.len() - failed >= 2, "each message failed once, and then arrived: {webhooks:#?}");
    let linked = |name: &str, member: &Exported| {
        let member = (member.trace.clone(), member.id.clone());
        collector.spans().iter().any(|span| span.name == name && span.links.contains(&member))
    };
    assert!(linked("commit group", commit) && linked("fulfil group", fulfil));
    // One tree: each span's parent is another span, or the click.
    for span in &spans {
        assert!(span.parent == CLICK || spans.iter().any(|other| other.id == span.parent), "{span:#?}");
    }

    // Each outgoing message names the span that sent it.
    for arrival in shop.seen().into_iter().chain(bank.seen()) {
        let sent = arrival.header("traceparent");
        if arrival.body["data"]["order_id"] == json!(other) {
            assert_eq!(sent, "");
        } else {
            let sent = TraceContext::parse(&sent).unwrap();
            let sender = spans.iter().find(|span| span.id == format!("{:016x}", sent.span())).unwrap();
            assert!(sent.trace_id() == TRACE && sender.name.starts_with("POST "), "{sender:#?}");
        }
    }
    let kept = "SELECT (SELECT count(*) FROM outbox WHERE sale_id = $1 AND trace IS NOT NULL)
                     + (SELECT count(*) FROM orders WHERE sale_id = $1 AND trace IS NOT NULL)";
    assert_eq!(system.count(kept, &sale).await, 3, "the purchase, its order and its payment, and nothing of the other");
    let text = other.to_string();
    assert!(collector.spans().iter().all(|span| span.attributes.values().all(|value| *value != text)));

    let logged = |name: &str, words: &[&str]| {
        let log = std::fs::read_to_string(folder.file(name)).unwrap();
        assert!(log.lines().any(|line| words.iter().all(|word| line.contains(word))), "{words:?}: {log}");
    };
    logged("serve", &["trace_id", TRACE, &order.to_string()]);
    logged("work", &["trace_id", TRACE, "failed; retried later"]);
    system.finish().await;
}

/// W3C Trace Context, level 1: a tracestate is passed on as it is, or dropped if it is too long.
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_traceparent_is_ignored() {
    let system = System::prepare(&[("SECKILL_TRACES__PER_SECOND_MAX", "10000")]).await;
    let address = free_address();
    let bind = address.to_string();
    let settings = [("RUST_LOG", "error"), ("SECKILL_HTTP__BIND", bind.as_str())];
    let serve = Process::run(&system, &["serve"], &settings, Stdio::inherit()).ready(address).await;
    let sale = system.create_sale(terms(40)).await;
    let good = format!("00-{TRACE}-{CLICK}-01");
    let bad: [Vec<(&'static str, &[u8])>; 4] = [
        vec![("traceparent", &good.as_bytes()[1..])],
        vec![("traceparent", good.as_bytes()), ("traceparent", good.as_bytes())],
        vec![("traceparent", b"00-\xff")],
        vec![("tracestate", b"a=1")],
    ];
    for (n, headers) in bad.iter().enumerate() {
        order_of(buy(&system, address, &sale, &format!("bad{n}"), headers).await);
    }
    assert_eq!(system.count("SELECT count(*) FROM outbox WHERE sale_id = $1 AND trace IS NOT NULL", &sale).await, 0);

    // No collector is set here, so the caller's own span is passed on.
    let long = "x".repeat(513);
    let well_formed = [
        (None, good.clone()),
        (Some("rojo=1, congo=2"), format!("{good} rojo=1, congo=2")),
        (Some(long.as_str()), good.clone()),
    ];
    for (n, (state, kept)) in well_formed.into_iter().enumerate() {
        let mut headers = vec![("traceparent", good.as_bytes())];
        headers.extend(state.map(|state: &str| ("tracestate", state.as_bytes())));
        let order = order_of(buy(&system, address, &sale, &format!("good{n}"), &headers).await);
        let row = sqlx::query_scalar("SELECT trace FROM outbox WHERE order_id = $1 AND kind = 'group_placed'");
        let row: Option<String> = row.bind(order).fetch_one(&system.sql).await.unwrap();
        assert_eq!(row, Some(kept), "{state:?}");
    }
    serve.end();
    system.finish().await;
}
