//! The edge (deploy/nginx.conf) between clients and the service: addresses, limits of one address, slow clients.

use std::net::SocketAddr;
use std::path::Path;

use futures_util::future::join_all;
use reqwest::{Client, Response};
use seckill_harness::{PATIENCE, System, eventually, terms, until};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use seckill_harness::nginx::Nginx;

use crate::buying::purchase_limits::FEW;

/// The edge in front of a system, without pages.
async fn edge(system: &System, changes: &[(&str, &str)]) -> Nginx {
    Nginx::edge(&[system.instances[0].address], Path::new("/nonexistent"), changes).await
}

/// Sends the beginning of a request, and nothing more. Returns the answer when the connection is closed.
async fn stop_after(address: SocketAddr, beginning: &str) -> String {
    let mut wire = TcpStream::connect(address).await.unwrap();
    // A closed connection is noticed by the next read.
    let _ = wire.write_all(beginning.as_bytes()).await;
    let mut answer = Vec::new();
    let closed = async { while wire.read_buf(&mut answer).await.is_ok_and(|bytes| bytes > 0) {} };
    timeout(PATIENCE, closed).await.expect("nginx closes the connection");
    String::from_utf8(answer).unwrap()
}

async fn assert_too_many(answer: Response) {
    assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    assert!(answer.headers()["ratelimit-policy"].to_str().unwrap().starts_with("\"address\";"));
    assert_eq!(answer.headers()["ratelimit"], "\"address\";r=0;t=1");
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    let problem: Value = answer.json().await.unwrap();
    assert_eq!((&problem["code"], &problem["status"]), (&"quota-exceeded".into(), &429.into()));
}

/// The buyer's address is the one that nginx sees, whatever the buyer claims.
#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_cannot_choose_an_address() {
    let system = System::shared_with(&FEW).await;
    let proxy = edge(&system, &[]).await;
    let sale = system.create_sale(terms(50)).await;
    let mut answers = Vec::new();
    for n in 0..20 {
        let (one, other) = (format!("one-{n}"), format!("other-{n}"));
        let click = system.buy_at(proxy.address, &sale, &one).from(&format!("10.9.0.{n}"));
        answers.push(click.send().await.code());
        // The same directly, from a trusted proxy: each address has its own limit.
        let direct = system.buy(&sale, &other).from(&format!("10.9.1.{n}")).send().await;
        assert_ne!(direct.code(), "429 quota-exceeded");
        if answers.last().is_some_and(|code| code == "429 quota-exceeded") {
            break;
        }
    }
    assert_eq!(answers.last().unwrap(), "429 quota-exceeded", "{answers:?}");
    assert_eq!(proxy.get("/metrics").await.status(), 404);
    assert_eq!(proxy.get("/healthz").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_has_so_many_requests_at_the_same_time_and_so_many_a_second() {
    let system = System::shared().await;
    let few = [
        ("limit_conn connections 1000;", "limit_conn connections 4;"),
        ("client_body_timeout 5s;", "client_body_timeout 1h;"),
    ];
    let proxy = edge(&system, &few).await;
    let head = "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
    // nginx waits for these four. It counts them only after it has read their heads.
    let mut slow = Vec::new();
    for _ in 0..4 {
        let mut wire = TcpStream::connect(proxy.address).await.unwrap();
        wire.write_all(head.as_bytes()).await.unwrap();
        slow.push(wire);
    }
    let refused = || async {
        let answer = proxy.get("/healthz").await;
        if answer.status() == 429 { Ok(answer) } else { Err(answer.status().to_string()) }
    };
    assert_too_many(eventually(refused).await).await;
    drop(slow);
    until(200, || async { proxy.get("/healthz").await.status() }).await;
    let few = [("rate=3000r/s;", "rate=1r/m;"), ("burst=20000 nodelay;", "burst=4 nodelay;")];
    let proxy = edge(&system, &few).await;
    let client = Client::new();
    let ask = || async { client.get(format!("http://{}/healthz", proxy.address)).send().await.unwrap() };
    for _ in 0..5 {
        assert_eq!(ask().await.status(), 200);
    }
    assert_too_many(ask().await).await;
    // Requests that change something have their own limit, and count under both.
    let few = [("rate=150r/s;", "rate=1r/m;"), ("burst=3000 nodelay;", "burst=4 nodelay;")];
    let proxy = edge(&system, &few).await;
    let (read, change) = (
        || client.get(format!("http://{}/healthz", proxy.address)),
        // nginx counts requests for known and unknown sales.
        |of: &str| client.post(format!("http://{}/api/v1/sales/1/{of}", proxy.address)),
    );
    for of in ["purchases", "challenges", "passes", "challenges", "passes"] {
        assert_ne!(change(of).send().await.unwrap().status(), 429);
    }
    assert_too_many(change("challenges").send().await.unwrap()).await;
    assert_eq!(read().send().await.unwrap().status(), 200);
}

/// nginx holds slow clients back from the service, and disconnects them.
#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_end_at_nginx() {
    let system = System::shared().await;
    let quick = [
        ("client_header_timeout 5s;", "client_header_timeout 1s;"),
        ("client_body_timeout 5s;", "client_body_timeout 1s;"),
    ];
    let proxy = edge(&system, &quick).await;
    let beginnings = [
        "",
        "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: a",
        "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
    ];
    let answers = join_all((0..60).map(|n| stop_after(proxy.address, beginnings[n % 3]))).await;
    for answer in answers {
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    // On a busy machine this client may look slow too, and repeats the request.
    eventually(|| async {
        let status = reqwest::get(proxy.url("/healthz")).await.map_err(|error| error.to_string())?.status();
        (status == 200).then_some(()).ok_or_else(|| status.to_string())
    })
    .await;
}
