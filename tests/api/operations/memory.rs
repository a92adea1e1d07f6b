//! The memory of `serve` has a bound, with the open connections and the sales of a large shop.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;

use futures_util::StreamExt;
use futures_util::stream::iter;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seckill_harness::folder::free_address;
use seckill_harness::{System, terms, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::network::service_killed::Process;
use crate::sales::idle_sales::World;

const CONNECTIONS: usize = 10_000;
const SALES: usize = 10_000;
/// The most memory of one: twice the measured memory of an idle connection (config.default.toml), four times that of a sale.
const CONNECTION_MAX_KB: usize = 40;
const SALE_MAX_KB: usize = 5;
const OTHER_FILES: u64 = 500;
const AT_ONCE: usize = 100;

pub async fn serve(system: &System, address: SocketAddr) -> Process {
    let bind = address.to_string();
    // No connection is closed as idle or slow while a slow machine opens the others.
    let settings = [
        ("SECKILL_HTTP__BIND", bind.as_str()),
        ("SECKILL_HTTP__KEEP_ALIVE_MS", "3600000"),
        ("SECKILL_HTTP__CLIENT_TIMEOUT_MS", "60000"),
        ("RUST_LOG", "error"),
    ];
    Process::run(system, &["serve"], &settings, Stdio::inherit()).ready(address).await
}

pub fn resident_kb(process: &Process) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Asks on a connection that stays open, and reads the whole answer.
async fn ask(wire: &mut TcpStream) {
    wire.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        assert_ne!(wire.read_buf(&mut answer).await.unwrap(), 0, "{}", String::from_utf8_lossy(&answer));
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

/// A connection that has had an answer, from one of several addresses of this machine.
async fn connect(address: SocketAddr, number: usize) -> TcpStream {
    let source = Ipv4Addr::new(127, 0, 3, u8::try_from(1 + number % 50).unwrap());
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    let mut wire = socket.connect(address).await.unwrap();
    ask(&mut wire).await;
    wire
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_open_connections_take_bounded_memory() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let needed = CONNECTIONS as u64 + OTHER_FILES;
    assert!(
        files >= needed,
        "this test needs {needed} open files, and may open {files}: raise the hard limit (ulimit -Hn)"
    );

    let system = System::prepare(&[]).await;
    let address = free_address();
    let process = serve(&system, address).await;
    let sale = system.create_sale(terms(10)).await;
    // The first allocations of each thread belong to no connection.
    let first: Vec<TcpStream> = iter(0..AT_ONCE).map(|n| connect(address, n)).buffer_unordered(AT_ONCE).collect().await;
    let before = resident_kb(&process);

    let mut open: Vec<TcpStream> = iter(0..CONNECTIONS - first.len())
        .map(|n| connect(address, n))
        .buffer_unordered(AT_ONCE)
        .chain(iter(first))
        .collect()
        .await;
    assert_eq!(open.len(), CONNECTIONS);
    for wire in &mut open {
        ask(wire).await;
    }
    // All are still open, and a buyer gets through.
    assert_eq!(system.buy_at(address, &sale, "ann").send().await.status, 202);
    let taken = resident_kb(&process).saturating_sub(before);
    println!("{CONNECTIONS} connections take {taken} kB");
    assert!(taken <= CONNECTIONS * CONNECTION_MAX_KB, "{CONNECTIONS} connections take {taken} kB");
    drop(open);
    process.end();
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_sales_take_bounded_memory() {
    let mut world = World::with(100).await;
    let address = free_address();
    let process = serve(&world.system, address).await;
    let before = resident_kb(&process);
    world.plan(SALES).await;
    let known = "SELECT count(*) FROM instances i CROSS JOIN catalog_version v WHERE i.catalog_version >= v.version";
    until(1, || world.system.number(known)).await;
    let taken = resident_kb(&process).saturating_sub(before);
    println!("{SALES} sales take {taken} kB");
    assert!(taken <= SALES * SALE_MAX_KB, "{SALES} sales take {taken} kB");
    process.end();
    world.system.finish().await;
}
