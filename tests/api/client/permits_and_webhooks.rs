//! The client crate: permits and webhooks. `client_orders` tests the buyer's part.

use std::collections::HashMap;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use seckill_client::{
    Ask, Code, Decision, Error, FlowClient, OrderStatus, Outcome, Permit, Reason, Refusal, Service, SignatureError,
    WebhookError, WebhookVerifier, WhenAway,
};
use seckill_domain::limiter::{Algorithm, AlgorithmKind, Parameters};
use seckill_domain::policy::{Excess, NewPolicy};
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket};

use crate::flow::permits_and_policies::{Caller, a_day, policy, set};
use crate::network::broken_network::Wire;
use crate::orders::order_webhooks::{all_told, buy_and_cancel, started};
use seckill_harness::receiver::{Arrival, Receiver};
use seckill_harness::{PATIENCE, System, eventually, terms, until, webhook_secret};

/// The address of a system's first instance.
fn address(system: &System) -> String {
    format!("http://{}", system.instances[0].address)
}

/// A client of a new application, patient enough for a slow machine.
async fn client(system: &System, app: &str) -> FlowClient {
    let token = Caller::new(system, app).await.token;
    FlowClient::new(&Service::new(&address(system)).unwrap(), app, &token).unwrap().with_timeout(PATIENCE)
}

/// A policy that lets one caller work at a time. Its leases outlast the test, so that only a release makes room.
fn one_place(app: &str) -> NewPolicy {
    let place = Parameters { limit: Some(1), lease_ms: Some(3_600_000), ..Parameters::default() };
    policy(app, "place", Algorithm::new(AlgorithmKind::Concurrency, &place).unwrap())
}

/// Asks for one permit of a policy, under the key `k`.
async fn ask(flow: &FlowClient, policy: &str) -> Result<Permit, Refusal> {
    flow.acquire(policy, "k", 1).await.unwrap().permit()
}

async fn granted(flow: &FlowClient, policy: &str) -> Permit {
    eventually(|| async { ask(flow, policy).await.map_err(|refusal| refusal.to_string()) }).await
}

/// Each answer of the service is a separate decision, and mistakes are errors.
#[tokio::test(flavor = "multi_thread")]
async fn a_permit_is_granted_refused_prepared_or_not_configured() {
    let system = System::shared().await;
    let flow = client(&system, "client-decisions").await;
    set(&system, policy("client-decisions", "login", a_day(3))).await;
    let page = Excess::parse(r#"degrade:{"page":"later"}"#).unwrap();
    set(&system, NewPolicy { excess: page, ..policy("client-decisions", "page", a_day(1)) }).await;

    let Decision::Granted(permit) = flow.acquire("login", "ann", 2).await.unwrap() else { panic!("not granted") };
    assert_eq!((permit.remaining(), permit.reason(), permit.has_lease()), (Some(1), None, false));
    assert!(!permit.release(Outcome::Ok).await.unwrap(), "there is nothing to return");
    let Decision::Refused(refusal) = flow.acquire("login", "ann", 2).await.unwrap() else { panic!("not refused") };
    assert_eq!((refusal.reason, refusal.policy.as_deref()), (Reason::Limit, Some("login")));
    assert!(refusal.retry_after > Duration::ZERO);
    assert!(matches!(flow.acquire("logon", "ann", 1).await.unwrap(), Decision::NotConfigured));

    assert!(ask(&flow, "page").await.is_ok());
    let Decision::Prepared { answer, refusal } = flow.acquire("page", "k", 1).await.unwrap() else {
        panic!("no prepared answer")
    };
    assert_eq!((answer, refusal.reason), (json!({ "page": "later" }), Reason::Limit));

    // All or nothing over several policies: the refusal of one consumes nothing of the other.
    let both = [Ask { policy: "login", key: "bob", permits: 1 }, Ask { policy: "page", key: "k", permits: 1 }];
    assert!(flow.acquire_all(&both).await.unwrap().permit().is_err());
    let left = flow.acquire("login", "bob", 1).await.unwrap().permit().unwrap();
    assert_eq!(left.remaining(), Some(2));

    let too_many = flow.acquire("login", "ann", 4).await.unwrap_err();
    assert_eq!((too_many.code(), too_many.may_retry()), (Some(&Code::InvalidRequest), false));
    let service = Service::new(&address(&system)).unwrap();
    let stranger = FlowClient::new(&service, "client-decisions", &"0".repeat(64)).unwrap().with_timeout(PATIENCE);
    assert_eq!(stranger.acquire("login", "ann", 1).await.unwrap_err().code(), Some(&Code::Unauthenticated));
}

/// A lease returns however its holder ends: by hand, by a drop, in a cancelled or panicking task, on a thread without a runtime.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_comes_back_however_its_holder_ends() {
    let system = System::shared().await;
    let flow = client(&system, "client-leases").await;
    set(&system, one_place("client-leases")).await;

    let by_hand = granted(&flow, "place").await;
    assert!(by_hand.has_lease() && ask(&flow, "place").await.is_err(), "there is one place");
    assert!(by_hand.release(Outcome::Ok).await.unwrap());

    let dropped = ask(&flow, "place").await.expect("a release that has returned has made room");
    drop(dropped);
    let cancelled = granted(&flow, "place").await;
    let task = tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(cancelled);
    });
    assert!(ask(&flow, "place").await.is_err(), "the task holds it");
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());

    let panics = granted(&flow, "place").await;
    let task = tokio::spawn(async move {
        let _held = panics;
        panic!("as planned by the test");
    });
    assert!(task.await.unwrap_err().is_panic());
    let elsewhere = granted(&flow, "place").await;
    std::thread::spawn(move || drop(elsewhere)).join().unwrap();

    // A release that is cancelled before its answer goes on in the background. An answer that comes at once is tried again.
    eventually(|| async {
        let hasty = granted(&flow, "place").await;
        let mut release = Box::pin(hasty.release(Outcome::Error));
        match futures_util::poll!(&mut release) {
            Poll::Pending => Ok(()),
            Poll::Ready(answer) => Err(format!("answered before it was cancelled: {answer:?}")),
        }
    })
    .await;
    assert!(flow.drain(PATIENCE).await);
    drop(ask(&flow, "place").await.expect("what was drained has been given back"));
    assert!(flow.drain(PATIENCE).await);
}

/// The outcome that a release reports reaches the policy's breaker.
#[tokio::test(flavor = "multi_thread")]
async fn failures_that_are_reported_open_the_breaker_of_a_policy() {
    let system = System::shared().await;
    let flow = client(&system, "client-breaker").await;
    let breaker = serde_json::from_value(json!({ "min_calls": 4, "open_ms": 600_000, "probes": 1 })).unwrap();
    set(&system, NewPolicy { breaker: Some(breaker), ..policy("client-breaker", "bank", a_day(1_000)) }).await;
    for outcome in [Outcome::Ok, Outcome::Ok, Outcome::Error, Outcome::Error] {
        ask(&flow, "bank").await.unwrap().release(outcome).await.unwrap();
    }
    // A call that times out is refused for another reason.
    until(Some(Reason::Breaker), || async { ask(&flow, "bank").await.err().map(|refusal| refusal.reason) }).await;
}

/// A silent service, and a missing one: the caller's choice applies, and no call takes longer than the time-out.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_away_refuses_or_grants_as_the_caller_has_chosen() {
    // The kernel accepts the connections, and no answer comes.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // A reserved port on which nothing listens, so that no other process can listen there.
    let gone = TcpSocket::new_v4().unwrap();
    gone.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let patience = Duration::from_millis(300);
    for address in [silent.local_addr().unwrap(), gone.local_addr().unwrap()] {
        let service = Service::new(&format!("http://{address}")).unwrap();
        let flow = FlowClient::new(&service, "shop", "token").unwrap().with_timeout(patience);
        let began = Instant::now();
        let refusal = ask(&flow, "p").await.unwrap_err();
        assert_eq!((refusal.reason, refusal.policy), (Reason::ServiceAway, None));
        assert!(refusal.retry_after > Duration::ZERO);
        let permit = ask(&flow.clone().with_when_away(WhenAway::Open), "p").await.unwrap();
        assert_eq!((permit.reason(), permit.remaining()), (Some(Reason::ServiceAway), None));
        assert!(!permit.release(Outcome::Ok).await.unwrap());
        // Twice the time-out, and slack for a busy machine. Without a time-out the first call would never end.
        assert!(began.elapsed() < 2 * patience + PATIENCE / 4, "{address}: {:?}", began.elapsed());
    }
}

/// After a few failures callers stop asking, so that not all of them meet a returning service at once. They notice its return.
#[tokio::test(flavor = "multi_thread")]
async fn callers_of_a_service_that_is_away_do_not_storm_it() {
    let system = System::shared().await;
    set(&system, policy("client-storm", "login", a_day(1_000_000))).await;
    let wire = Wire::to(system.instances[0].address.to_string()).await;
    wire.cut();
    let token = Caller::new(&system, "client-storm").await.token;
    let service = Service::new(&format!("http://{}", wire.address)).unwrap();
    let flow = FlowClient::new(&service, "client-storm", &token).unwrap().with_timeout(PATIENCE);
    for _ in 0..10_000 {
        assert_eq!(ask(&flow, "login").await.unwrap_err().reason, Reason::ServiceAway);
    }
    // Three in a row, and then one after each pause.
    let made = wire.refused();
    assert!(made < 1_000, "{made} connections for 10000 calls");
    wire.mend();
    drop(granted(&flow, "login").await);
}

/// The headers of a message that arrived.
fn headers(arrival: &Arrival) -> HashMap<&'static str, String> {
    ["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| (name, arrival.header(name))).into()
}

/// A message of the service is verified and read, and is refused under another secret.
#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_verified_and_read() {
    let receiver = Receiver::start();
    let both = format!("{},{}", webhook_secret(), webhook_secret());
    let url = receiver.url();
    let system = started(&[("SECKILL_SHOP__WEBHOOK_URL", &url), ("SECKILL_SHOP__WEBHOOK_SECRETS", &both)]).await;
    let sale = system.create_sale(terms(1)).await;
    let order = buy_and_cancel(&system, &sale, "ann").await;
    all_told(&system).await;
    let verifier = WebhookVerifier::new(&both).unwrap();
    let mut statuses = Vec::new();
    for arrival in receiver.seen() {
        let headers = headers(&arrival);
        let header = |name: &str| headers.get(name).map(String::as_str);
        let message = verifier.verify(header, &arrival.bytes, SystemTime::now()).unwrap();
        assert_eq!(message.id, headers["webhook-id"]);
        let change = message.order.expect("it is about an order");
        assert_eq!((change.order_id.to_string(), change.user_id.as_str()), (order.clone(), "ann"));
        assert_eq!(message.kind, format!("order.{}", change.status));
        statuses.push(change.status);
        let stranger = WebhookVerifier::new(&webhook_secret()).unwrap();
        let refused = stranger.verify(header, &arrival.bytes, SystemTime::now());
        assert_eq!(refused, Err(WebhookError::Signature(SignatureError::NotOurs)));
    }
    statuses.dedup(); // an answer that came too late has its message sent again
    assert_eq!(statuses, [OrderStatus::PendingPayment, OrderStatus::Cancelled]);
    system.finish().await;
}

/// Another kind of server at the address is an error of its own, not a refusal: a refusal would look like a limit.
#[tokio::test(flavor = "multi_thread")]
async fn another_server_at_the_address_is_an_error() {
    // The receiver answers every POST with 200 and the text `ok`.
    let other = Receiver::start();
    let service = Service::new(&format!("http://{}", other.address)).unwrap();
    let flow = FlowClient::new(&service, "shop", "token").unwrap().with_timeout(PATIENCE);
    assert!(matches!(flow.acquire("login", "ann", 1).await, Err(Error::Unreadable(_))));
}
