//! Open pages around the start of a sale, as frontend-static/page-state.js lets them ask (docs/edge.md).

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use seckill_domain::sale::NewSale;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

use crate::network::edge::{Shop, requests};
use crate::network::service_killed::Process;
use seckill_harness::folder::free_address;
use seckill_harness::{System, terms};

const PAGES: usize = 2_000;
/// The pages come from this many addresses.
const ADDRESSES: usize = 50;
const POLL_MS: std::ops::Range<f64> = 1_300.0..1_900.0;
const START_MS: std::ops::Range<f64> = 50.0..90.0;
/// With a short line of connections in nginx, it is 1,500 ms.
const KEY_MAX_MS: i64 = 1_000;
const OPENED_WITHIN_MS: u64 = 2_000;
const AGAIN_MS: std::ops::Range<u64> = 375..625;
/// From its first to its last question, a page that waits for the start asks this often in the second after it.
const ASKED_MAX: f64 = 3.0;

fn now_ms() -> i64 {
    chrono::Utc::now().timestamp_millis()
}

/// A connection of a page to the edge. A real client would take the processor from nginx.
struct Connection {
    stream: TcpStream,
    request: String,
    answer: Vec<u8>,
}

impl Connection {
    async fn open(from: Ipv4Addr, edge: SocketAddr, path: &str) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let request = format!("GET {path}/state.js?r=1 HTTP/1.1\r\nHost: {edge}\r\n\r\n");
        Self { stream: socket.connect(edge).await.unwrap(), request, answer: Vec::new() }
    }

    /// The state; `None` while no instance answers in time, as on a busy machine.
    async fn ask(&mut self) -> Option<Value> {
        self.answer.clear();
        self.stream.write_all(self.request.as_bytes()).await.unwrap();
        loop {
            assert!(self.stream.read_buf(&mut self.answer).await.unwrap() > 0, "the edge has closed the connection");
            let text = std::str::from_utf8(&self.answer).unwrap();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let (_, length) = head.split_once("Content-Length: ").unwrap();
            if body.len() < length.lines().next().unwrap().parse::<usize>().unwrap() {
                continue;
            }
            if head.starts_with("HTTP/1.1 503") {
                return None;
            }
            assert!(head.starts_with("HTTP/1.1 200"), "{text}");
            let state = body.trim().strip_prefix("window.seckill = ").and_then(|rest| rest.strip_suffix(';'));
            return Some(serde_json::from_str(state.unwrap()).unwrap());
        }
    }
}

/// Asks as a page does, until it has the key. Notes the time of each question.
async fn open_page(from: Ipv4Addr, edge: SocketAddr, path: String, key: String, asked: Arc<Mutex<Vec<i64>>>) -> i64 {
    let mut starts_at_ms = i64::MAX;
    let mut looks = 0;
    // Pages are opened one after another.
    sleep(Duration::from_millis(rand::random_range(0..OPENED_WITHIN_MS))).await;
    let mut connection = Connection::open(from, edge, &path).await;
    loop {
        asked.lock().push(now_ms());
        let Some(answer) = connection.ask().await else {
            sleep(Duration::from_millis(rand::random_range(AGAIN_MS))).await;
            continue;
        };
        if answer["key"] == key.as_str() {
            return now_ms() - starts_at_ms;
        }
        starts_at_ms = answer["starts_at_ms"].as_i64().unwrap();
        let left = (starts_at_ms - now_ms()) as f64;
        let poll = rand::random_range(POLL_MS);
        let wait = if left <= 0.0 {
            looks += 1;
            (50.0 * 1.5_f64.powi(looks)).min(1_600.0) * rand::random_range(0.75..1.25)
        } else if left < poll {
            left + rand::random_range(START_MS)
        } else {
            poll
        };
        sleep(Duration::from_micros((wait * 1000.0) as u64)).await;
    }
}

/// 2,000 pages wait for the start: the service gets ten requests a second, the edge no stampede, and each page gets the key.
#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_pages_wait_for_the_start() {
    let (system, service) = (System::prepare(&[]).await, free_address());
    let process = Process::start_with(&system, service, &[("RUST_LOG", "error")], Stdio::inherit());
    let process = process.ready(service).await;
    let shop = Shop::in_front_of(system, service).await;
    let planned = NewSale { starts_in_ms: 10_000, ends_in_ms: 3_600_000, ..terms(50) };
    let sale = shop.system.create_sale(planned).await;
    let edge: SocketAddr = shop.edge.url("").trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
    let (before, began_ms) = (requests(service, "state").await, now_ms());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let pages = (0..PAGES).map(|n| {
        let from = Ipv4Addr::new(127, 0, 2, u8::try_from(n % ADDRESSES).unwrap() + 1);
        tokio::spawn(open_page(from, edge, format!("/sales/{}", sale.id), sale.key.clone(), asked.clone()))
    });
    let mut opened: Vec<i64> = join_all(pages.collect::<Vec<_>>()).await.into_iter().map(Result::unwrap).collect();
    let seconds = u64::try_from((now_ms() - began_ms) / 1000).unwrap() + 1;
    let reached = requests(service, "state").await - before;
    assert!(reached <= 11 * seconds, "{reached} requests in {seconds} s reached the service");
    let starts_at_ms = "SELECT (extract(epoch FROM starts_at) * 1000)::bigint FROM sales WHERE id = $1";
    let starts_at_ms: i64 =
        sqlx::query_scalar(starts_at_ms).bind(sale.id.get()).fetch_one(&shop.system.sql).await.unwrap();
    let asked = std::mem::take(&mut *asked.lock());
    let within = |from: i64| asked.iter().filter(|at| (from..from + 1000).contains(at)).count();
    let [waiting, rush] = [within(starts_at_ms - 1000), within(starts_at_ms)];
    opened.sort_unstable();
    println!(
        "requests a second: {waiting} before the start, {rush} after it; the key after {} ms (median)",
        opened[PAGES / 2]
    );
    assert!(opened[PAGES / 2] < KEY_MAX_MS, "the key came after {} ms (median)", opened[PAGES / 2]);
    assert!((rush as f64) < ASKED_MAX * PAGES as f64, "{rush} requests in the second after the start");
    process.end();
    shop.system.finish().await;
}
