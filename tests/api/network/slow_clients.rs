//! Clients that are slow, or that take all of the service's time: each is disconnected after a while, and buyers are not affected.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use seckill_domain::limiter::{Algorithm, AlgorithmKind, Parameters};
use seckill_domain::policy::{Excess, NewPolicy, WhenDown};
use seckill_harness::busy_machine::in_time;
use seckill_harness::{PATIENCE, Sale, System, eventually, terms, wait_until};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::flow::permits_and_policies::{self, Caller, policy};

/// Short deadlines, but long enough for a buyer on a busy machine, who sends everything at once and repeats.
const IMPATIENT: Duration = Duration::from_secs(4);
const KEEP_ALIVE: &str = "SECKILL_HTTP__KEEP_ALIVE_MS";
const PING: &str = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

/// A system that gives clients this time to send something, and a third of it to read an answer. Without more settings it is shared.
async fn impatient(patience: Duration, more: &[(&str, &str)]) -> System {
    let [sent, read] = [patience, patience / 3].map(millis);
    let deadlines = [("SECKILL_HTTP__CLIENT_TIMEOUT_MS", sent.as_str()), ("SECKILL_HTTP__SEND_TIMEOUT_MS", &read)];
    match more {
        [] => System::shared_with(&deadlines).await,
        more => System::start_with(&[&deadlines, more].concat()).await,
    }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

struct Wire(TcpStream);

impl Wire {
    async fn to(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    /// A closed connection is noticed by the next read.
    async fn send(&mut self, text: &str) {
        let _ = self.0.write_all(text.as_bytes()).await;
    }

    async fn ask(&mut self, request: &str) -> String {
        self.ask_for(1, request).await
    }

    /// Sends requests, and reads this number of answers, each with a body in one pair of braces; fewer if the service closes the
    /// connection.
    async fn ask_for(&mut self, n: usize, requests: &str) -> String {
        self.send(requests).await;
        let mut answers = Vec::new();
        while answers.iter().filter(|byte| **byte == b'}').count() < n {
            if !self.0.read_buf(&mut answers).await.is_ok_and(|bytes| bytes > 0) {
                break;
            }
        }
        String::from_utf8(answers).unwrap()
    }

    /// Sends one piece repeatedly and slowly until the service closes the connection. Returns the answer received before.
    async fn trickle(mut self, piece: &str) -> String {
        let (mut reader, mut writer) = self.0.split();
        let mut answer = Vec::new();
        let send = async {
            while writer.write_all(piece.as_bytes()).await.is_ok() {
                sleep(Duration::from_millis(100)).await;
            }
            // The reader notices it too.
            std::future::pending::<()>().await;
        };
        let closed = async {
            // A reset connection is closed as well.
            while reader.read_buf(&mut answer).await.is_ok_and(|bytes| bytes > 0) {}
        };
        tokio::select! {
            () = send => {}
            closed = timeout(PATIENCE, closed) => closed.expect("the service closes the connection"),
        }
        String::from_utf8(answer).unwrap()
    }

    /// Says nothing until the service closes the connection.
    async fn wait(self) -> String {
        self.trickle("").await
    }
}

/// A head that never ends.
///
/// This function and the others return whether the service's answer was the usual one. On a busy machine it takes every client for slow.
async fn slow_head(address: SocketAddr) -> bool {
    let mut wire = Wire::to(address).await;
    wire.send("GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ").await;
    let answer = wire.trickle("a").await;
    // The answer is lost if more bytes arrive after the service closed the connection.
    answer.is_empty() || answer.starts_with("HTTP/1.1 408")
}

/// A second head that never ends, on a connection whose first request was quick.
async fn slow_second_head(address: SocketAddr) -> bool {
    let mut wire = Wire::to(address).await;
    let answered = wire.ask(PING).await.starts_with("HTTP/1.1 200");
    wire.send("GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ").await;
    wire.trickle("a").await.is_empty() && answered
}

/// A body that never ends, in chunks, for an address that reads none: the answer comes while the rest is still being sent.
async fn slow_unread_body(address: SocketAddr) -> bool {
    let mut wire = Wire::to(address).await;
    let head = "POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
    let answered = wire.ask(head).await.starts_with("HTTP/1.1 404");
    wire.trickle("1\r\na\r\n").await.is_empty() && answered
}

async fn stopped_body(address: SocketAddr, path: &str) -> bool {
    let mut wire = Wire::to(address).await;
    wire.send(&format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{")).await;
    wire.wait().await.starts_with("HTTP/1.1 4")
}

/// A connection that is kept alive and sends nothing more.
async fn silent(address: SocketAddr) -> bool {
    let mut wire = Wire::to(address).await;
    let answered = wire.ask(PING).await.starts_with("HTTP/1.1 200");
    wire.wait().await.is_empty() && answered
}

async fn mute(address: SocketAddr) -> bool {
    Wire::to(address).await.wait().await.starts_with("HTTP/1.1 408")
}

const LONG_ANSWER: &str = "GET /api/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n";

async fn connect_deaf(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(address).await.unwrap()
}

/// Asks for much data, and reads none of it.
async fn deaf(address: SocketAddr) {
    let mut wire = connect_deaf(address).await;
    let _ = wire.write_all(LONG_ANSWER.repeat(200).as_bytes()).await;
    let listen = async {
        // Empty lines before a request are not part of it.
        while wire.write_all(b"\r\n").await.is_ok() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, listen).await.expect("the service closes the connection");
}

/// Five buyers buy the whole stock. On a busy machine, a buyer who gets 503 or a closed connection repeats the request.
async fn five_buy(system: &System, sale: &Sale) {
    for user in ["ann", "ben", "eve", "joe", "kim"] {
        let buy = || async {
            let answer = system.buy(sale, user).idempotent(user).try_send().await.map_err(|error| error.to_string())?;
            if [408, 503].contains(&answer.status) { Err(answer.code()) } else { Ok(answer.code()) }
        };
        assert_eq!(eventually(buy).await, "202", "{user}");
    }
}

/// One of each kind of slow client. Returns whether the service's answers were the usual ones.
async fn one_of_each(address: SocketAddr, purchases: &str) -> [bool; 7] {
    // Purchases read their body before anything else, cancellations read none.
    let cancel = "/api/v1/orders/00000000-0000-0000-0000-000000000000/cancel";
    tokio::join!(
        slow_head(address),
        slow_second_head(address),
        slow_unread_body(address),
        stopped_body(address, purchases),
        stopped_body(address, cancel),
        silent(address),
        mute(address),
    )
    .into()
}

/// Each kind alone, so that a failure names the kind.
#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_slow_client_is_disconnected() {
    in_time(async |patience| {
        let system = impatient(patience, &[(KEEP_ALIVE, &millis(patience))]).await;
        let address = system.instances[0].address;
        let (usual, ()) = tokio::join!(one_of_each(address, "/api/v1/sales/1/purchases"), deaf(address));
        assert_eq!(usual, [true; 7]);
        let metrics = reqwest::get(system.url("/metrics")).await.unwrap().text().await.unwrap();
        for what in ["head", "answer"] {
            assert!(metrics.contains(&format!("seckill_clients_cut_total{{what=\"{what}\"}}")), "{what}");
        }
        system.finish().await;
    })
    .await;
}

/// actix-http never closes a connection with a deadline that has passed when it is set. The service does.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_closed_even_where_its_deadline_was_missed() {
    let system = System::start_with(&[(KEEP_ALIVE, "100")]).await;
    let address = system.instances[0].address;
    let closed = join_all((0..20).map(|_| silent(address)));
    assert!(timeout(PATIENCE, closed).await.is_ok(), "a connection stays open");
    system.finish().await;
}

/// A client that sends more requests than are read costs all of a thread's time, unless it is disconnected.
#[tokio::test(flavor = "multi_thread")]
async fn who_sends_far_ahead_is_cut_at_once() {
    let hours = [("SECKILL_HTTP__CLIENT_TIMEOUT_MS", "3600000"), ("SECKILL_HTTP__SEND_TIMEOUT_MS", "3600000")];
    let system = System::start_with(&hours).await;
    let address = system.instances[0].address;
    // Asks for more and more, and reads none of it.
    let (mut wire, requests) = (connect_deaf(address).await, LONG_ANSWER.repeat(10));
    let ask = async { while wire.write_all(requests.as_bytes()).await.is_ok() {} };
    timeout(PATIENCE, ask).await.expect("the service closes the connection");
    // Behind a stream of events, which has no end.
    let sale = system.create_sale(terms(1)).await;
    let order = system.buy(&sale, "ann").send().await.order_id();
    system.settled(&sale).await;
    let (path, token) = (format!("/api/v1/orders/{order}/events"), system.token("ann", 0));
    let stream = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
    let mut wire = Wire::to(address).await;
    wire.send(&stream).await;
    let mut begun = [0; 15];
    wire.0.read_exact(&mut begun).await.unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200 OK");
    wire.trickle(&PING.repeat(100)).await;
    system.finish().await;
}

/// A request that waits for its answer is not cut off, whatever the earlier packets contained.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_behind_another_may_wait() {
    in_time(async |patience| {
        let system = impatient(patience, &[]).await;
        let shop = Caller::new(&system, "shop").await;
        let one = Algorithm::new(
            AlgorithmKind::Concurrency,
            &Parameters { limit: Some(1), lease_ms: Some(600_000), ..Parameters::default() },
        )
        .unwrap();
        let excess = Excess::Queue { patience: Duration::from_secs(60) };
        // A request that waits while Redis is slow for a moment is granted, and not refused: the service checks its connection.
        let patient = NewPolicy { excess, when_down: WhenDown::Open, ..policy("shop", "slow", one) };
        permits_and_policies::set(&system, patient).await;
        let body = r#"{"app":"shop","policy":"slow"}"#;
        let ask = || shop.ask(serde_json::from_str(body).unwrap());
        let of_redis = wait_until(ask, |answer| answer["lease"].is_string() && answer["reason"].is_null()).await;
        let lease = &of_redis["lease"];
        let mut wire = Wire::to(system.instances[0].address).await;
        let (token, length) = (&shop.token, body.len());
        let head = format!(
            "POST /api/v1/flow/acquire HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
        );
        assert!(wire.ask(&[PING, &head].concat()).await.starts_with("HTTP/1.1 200"));
        wire.send(body).await;
        // Longer than the deadline of a head.
        sleep(patience + patience / 4).await;
        let release = json!({ "app": "shop", "policy": "slow", "lease": lease });
        // A release that Redis executed, but answered too late, has no effect when repeated.
        wait_until(|| shop.post("release", &release), |(status, ..)| *status == 200).await;
        assert!(wire.ask("").await.contains(r#""code":1"#));
        system.finish().await;
    })
    .await;
}

/// A quick client is not taken for a slow one: a connection is reused with pauses and pipelining.
#[tokio::test(flavor = "multi_thread")]
async fn a_quick_client_keeps_its_connection() {
    in_time(async |patience| {
        let system = impatient(patience, &[]).await;
        let mut wire = Wire::to(system.instances[0].address).await;
        let waits = "POST /api/v1/dev/token HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n";
        for _ in 0..2 {
            assert!(wire.ask(PING).await.starts_with("HTTP/1.1 200"));
            // Longer than all deadlines except that of idle connections.
            sleep(patience + patience / 4).await;
            wire.send(waits).await;
            let mut go_on = [0; 25];
            wire.0.read_exact(&mut go_on).await.unwrap();
            assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
            assert!(wire.ask(r#"{"user":"ann"}"#).await.starts_with("HTTP/1.1 200"));
            // Two in one packet, and half of a third.
            let (half, rest) = PING.split_at(20);
            wire.ask_for(2, &[PING, PING, half].concat()).await;
            sleep(Duration::from_millis(300)).await;
            assert!(wire.ask(rest).await.contains("HTTP/1.1 200"));
        }
        system.finish().await;
    })
    .await;
}

/// A hundred of each kind at once, and twenty that never read. Five buyers buy meanwhile, and all the connections end.
#[tokio::test(flavor = "multi_thread")]
async fn many_slow_clients_disturb_no_buyer() {
    const EACH: usize = 100;
    let system = impatient(IMPATIENT, &[(KEEP_ALIVE, &millis(IMPATIENT))]).await;
    let sale = system.create_sale(terms(5)).await;
    let address = system.instances[0].address;
    let path = format!("/api/v1/sales/{}/purchases", sale.id);
    let crowd: Vec<_> = (0..EACH)
        .map(|n| {
            let path = path.clone();
            tokio::spawn(async move {
                if n % 5 == 0 {
                    deaf(address).await;
                }
                one_of_each(address, &path).await;
            })
        })
        .collect();
    five_buy(&system, &sale).await;
    for member in join_all(crowd).await {
        member.unwrap();
    }
    system.settled(&sale).await;
    system.finish().await;
}

/// More connections than a thread may have: the others wait, and are served when the silent ones have been closed.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_do_not_take_all_places_for_long() {
    let idle = millis(IMPATIENT);
    let bounded = [("SECKILL_HTTP__WORKERS", "1"), ("SECKILL_HTTP__MAX_CONNECTIONS", "8"), (KEEP_ALIVE, &idle)];
    let system = impatient(IMPATIENT, &bounded).await;
    let sale = system.create_sale(terms(5)).await;
    let address = system.instances[0].address;
    let crowd: Vec<_> = (0..16).map(|_| tokio::spawn(mute(address))).collect();
    five_buy(&system, &sale).await;
    for member in join_all(crowd).await {
        member.unwrap();
    }
    system.finish().await;
}
