//! The engine against small servers. Tests wait in the engine itself, so the servers run on the runtime's other threads.

use super::super::stub::{Served, Stub, answer};
use super::*;

/// The longest wait of a test.
const PATIENCE: Duration = Duration::from_secs(60);
const REQUEST: &[u8] = b"POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}";
const BOUNDS: Bounds = Bounds { opened: 1, most: 1, time_out: PATIENCE };

/// The end of a request: its mark, with the body of its answer, or the reason for no answer.
type Seen = (usize, Result<String, NoAnswer>);

fn send(connections: &mut Connections<usize>, mark: usize) {
    assert_eq!(connections.send(mark, REQUEST, Instant::now()), Ok(()));
}

/// The next results, so many at least.
fn results(connections: &mut Connections<usize>, number: usize) -> Vec<Seen> {
    let (mut seen, begun) = (Vec::new(), Instant::now());
    while seen.len() < number {
        assert!(begun.elapsed() < PATIENCE, "{number} results did not come: {seen:?}");
        let add = |mark, answer: Result<Answer<'_>, NoAnswer>| {
            seen.push((mark, answer.map(|answer| String::from_utf8_lossy(answer.body).into_owned())));
        };
        connections.answers(Duration::from_millis(10), add).unwrap();
    }
    seen
}

/// Sends one request after the other over the same connections, and returns their ends.
fn one_by_one(connections: &mut Connections<usize>, number: usize) -> Vec<Seen> {
    (0..number)
        .flat_map(|mark| {
            send(connections, mark);
            results(connections, 1)
        })
        .collect()
}

fn ok(mark: usize, body: &str) -> Seen {
    (mark, Ok(body.to_owned()))
}

/// A service that says it closes, or closes while nothing is asked, costs no request: the next has a new connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_the_service_closes_is_opened_again() {
    let stub = Stub::start(|mut served: Served, connection| async move {
        if served.request().await.is_some() {
            // The first connection is closed unannounced.
            let headers = if connection == 0 { "" } else { "Connection: close\r\n" };
            served.say(&answer("200 OK", headers, "bye")).await;
        }
    })
    .await;
    let mut connections = Connections::open(stub.address, BOUNDS).unwrap();
    for mark in 0..3 {
        send(&mut connections, mark);
        assert_eq!(results(&mut connections, 1), [ok(mark, "bye")]);
        let begun = Instant::now();
        while connections.places.all[0].stream.is_some() {
            assert!(begun.elapsed() < PATIENCE, "the end of the connection was not noticed");
            connections.answers(Duration::from_millis(10), |_, _| {}).unwrap();
        }
    }
    assert_eq!(stub.connections(), 3);
}

/// A service that hangs up instead of answering has lost the request, and only that one.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_an_answer_is_lost() {
    let stub = Stub::start(|mut served: Served, connection| async move {
        while served.request().await.is_some() && connection > 0 {
            served.say(&answer("200 OK", "", "")).await;
        }
    })
    .await;
    let mut connections = Connections::open(stub.address, BOUNDS).unwrap();
    assert_eq!(one_by_one(&mut connections, 2), [(0, Err(NoAnswer::Lost)), ok(1, "")]);
}

/// A request whose answer does not come in time is given up, with its connection, so that the answer is not taken for
/// another's.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_too_late_is_none() {
    let stub = Stub::start(|mut served: Served, connection| async move {
        while served.request().await.is_some() && connection > 0 {
            served.say(&answer("200 OK", "", "in time")).await;
        }
        // The first connection stays open, and says nothing.
        std::future::pending::<()>().await;
    })
    .await;
    let mut connections = Connections::open(stub.address, BOUNDS).unwrap();
    connections.time_out = Duration::from_millis(100);
    let begun = Instant::now();
    send(&mut connections, 0);
    assert_eq!(results(&mut connections, 1), [(0, Err(NoAnswer::TimeOut))]);
    assert!(begun.elapsed() >= connections.time_out);
    connections.time_out = PATIENCE;
    send(&mut connections, 1);
    assert_eq!(results(&mut connections, 1), [ok(1, "in time")]);
}

/// Nobody listens: each request says so, and the place is free again.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_ends_the_request() {
    let mut connections = Connections::open(SocketAddr::from(([127, 0, 0, 1], 1)), BOUNDS).unwrap();
    for mark in 0..2 {
        // The system refuses at once, or when the connection should stand.
        let result = connections.send(mark, REQUEST, Instant::now());
        match result {
            Ok(()) => assert_eq!(results(&mut connections, 1), [(mark, Err(NoAnswer::Connect))]),
            Err(why) => assert_eq!(why, NoAnswer::Connect),
        }
        assert!(connections.has_room());
    }
}
