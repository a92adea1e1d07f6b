//! Whole rushes against small servers.

use std::collections::BTreeSet;
use std::sync::Mutex;

use tokio::sync::Semaphore;

use super::super::plan::{Buyer, Role};
use super::super::reply::AnswerKind;
use super::super::stub::{Served, Stub, answer};
use super::*;

/// The longest wait of a test.
const PATIENCE: Duration = Duration::from_secs(60);

fn plan() -> Plan {
    Plan { sale_id: 1, buyers: 40, rate: Some(400), connections: 4, ..Plan::default() }
}

/// A rush whose connections are open, against this address.
async fn begin(address: std::net::SocketAddr, plan: Plan) -> (Arc<Rush>, Open) {
    let buyer = |n| Buyer { user: format!("u{n}"), token: format!("a.b.{n}") };
    let buyers: Arc<[Buyer]> = (0..plan.identities()).map(buyer).collect();
    let target = Target::resolve(&format!("http://{address}")).await.unwrap();
    let crowd = Arc::new(Crowd::prepare(&plan, &buyers, &target).unwrap());
    Rush::begin(&target, crowd, plan.arrivals(), "k", &plan).await.unwrap()
}

async fn played((rush, open): (Arc<Rush>, Open)) -> (Arc<[Arrival]>, Measurements) {
    rush.play(open, ProgressBar::hidden()).await.unwrap()
}

/// The value of a header in a request.
fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    request.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn counted(measured: &Measurements) -> BTreeSet<(Role, u16, &str, u64)> {
    measured.counts.iter().map(|count| (count.role, count.status, count.code.as_str(), count.number)).collect()
}

/// Several threads play one schedule: every arrival is sent once, by its own caller, and no connection is opened beyond those
/// planned.
#[tokio::test(flavor = "multi_thread")]
async fn every_arrival_is_answered_once() {
    let stub = Stub::answering(|request| {
        let buyer = header(request, "Authorization").unwrap().strip_prefix("Bearer a.b.").unwrap();
        match (request.contains("/sales/1/purchases"), buyer) {
            (false, _) => answer("404 Not Found", "", r#"{"code":"unknown-sale"}"#),
            (true, forged) if forged.starts_with('A') => {
                answer("401 Unauthorized", "", r#"{"code":"unauthenticated"}"#)
            }
            (true, "40" | "41") => answer("409 Conflict", "", r#"{"code":"sold-out"}"#),
            (true, buyer) => answer("202 Accepted", "", &format!(r#"{{"order_id":"order-{buyer}"}}"#)),
        }
    })
    .await;
    let plan = Plan { doubles: 7, unknown: 5, forged: 3, bots: 2, threads: 3, ..plan() };
    let (arrivals, measured) = played(begin(stub.address, plan).await).await;
    let settled: BTreeSet<usize> = measured.settled.iter().map(|settled| settled.arrival).collect();
    assert_eq!((settled.len(), measured.settled.len()), (arrivals.len(), arrivals.len()));
    assert_eq!(arrivals.len(), 40 + 7 + 5 + 3 + 2 * 20);
    let expected = [
        (Role::Buyer, 202, "", 40),
        (Role::SecondClick, 202, "", 7),
        (Role::UnknownSale, 404, "unknown-sale", 5),
        (Role::ForgedToken, 401, "unauthenticated", 3),
        (Role::Bot, 409, "sold-out", 40),
    ];
    assert_eq!(counted(&measured), BTreeSet::from(expected));
    let promised: BTreeSet<(usize, String)> = (0..40).map(|n| (n, format!("order-{n}"))).collect();
    assert!(measured.accepted.keys().eq(&promised), "{:?}", measured.accepted);
    assert_eq!((stub.connections(), measured.retries), (4, 0));
}

/// A buyer comes back when told to, with the same Idempotency-Key. The wait counts from the first click.
#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_tries_again_until_there_is_an_answer() {
    let known = Arc::new(Mutex::new(BTreeSet::new()));
    let stub = Stub::answering(move |request| {
        let key = header(request, "Idempotency-Key").unwrap().to_owned();
        match known.lock().unwrap().insert(key) {
            true => answer("503 Busy", "Retry-After: 0\r\n", r#"{"code":"temporarily-unavailable"}"#),
            false => answer("409 Conflict", "", r#"{"code":"sold-out"}"#),
        }
    })
    .await;
    let (_, measured) = played(begin(stub.address, plan()).await).await;
    let expected = [(Role::Buyer, 503, "temporarily-unavailable", 40), (Role::Buyer, 409, "sold-out", 40)];
    assert_eq!((counted(&measured), measured.retries), (BTreeSet::from(expected), 40));
    // The pause of 0 s is lengthened to 0.2 s.
    assert!(measured.settled.iter().all(|settled| settled.waited_us >= 200_000), "{:?}", measured.settled);

    // Without retries, the answer is the last one.
    let stub = Stub::answering(|_| answer("503 Busy", "Retry-After: 0\r\n", "{}")).await;
    let (_, measured) = played(begin(stub.address, Plan { no_retries: true, ..plan() }).await).await;
    assert_eq!((counted(&measured), measured.retries), (BTreeSet::from([(Role::Buyer, 503, "", 40)]), 0));
    assert!(measured.settled.iter().all(|settled| settled.kind == AnswerKind::Failed));
}

/// No omission is coordinated with the service: while one answer holds up the only connection, the others arrive, and their
/// waits count from their schedule. That is no lag of the generator's own.
#[tokio::test(flavor = "multi_thread")]
async fn waits_count_from_the_schedule() {
    let go = Arc::new(Semaphore::new(0));
    let told = Arc::clone(&go);
    let stub = Stub::start(move |mut served: Served, _| {
        let told = Arc::clone(&told);
        async move {
            while served.request().await.is_some() {
                told.acquire().await.unwrap().forget();
                served.say(&answer("409 Conflict", "", r#"{"code":"sold-out"}"#)).await;
            }
        }
    })
    .await;
    let (rush, open) = begin(stub.address, Plan { buyers: 10, rate: Some(200), connections: 1, ..plan() }).await;
    let playing = tokio::spawn(played((Arc::clone(&rush), open)));
    let begun = Instant::now();
    while rush.counters.arrived.load(Relaxed) < 10 {
        assert!(begun.elapsed() < PATIENCE, "the others did not arrive");
        tokio::task::yield_now().await;
    }
    let released_us = rush.begun.elapsed().as_micros() as u64;
    go.add_permits(10);
    let (arrivals, measured) = playing.await.unwrap();
    assert_eq!(measured.settled.len(), 10);
    for settled in &measured.settled {
        let due_us = arrivals[settled.arrival].due.as_micros() as u64;
        // Less the microsecond that rounding may take.
        let waited_us = released_us.saturating_sub(due_us + 1);
        assert!(settled.waited_us >= waited_us, "{settled:?} has waited {waited_us} µs at least");
    }
    let second = measured.settled[1];
    assert!(second.lag_us > second.own_lag_us, "{second:?} waited for the connection");
}
