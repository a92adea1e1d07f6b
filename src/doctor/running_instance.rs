//! The instance of the service that runs with these settings, if there is one.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::in_time;

/// More than a service's metrics ever take.
const METRICS_MAX_BYTES: u64 = 16 * 1024 * 1024;
const UNREADABLE: &str = "seckill_clients_unnamed_total{why=\"unreadable\"} ";

/// The number of requests whose proxy named a client by no address; 0 if no instance answers.
pub(super) async fn unreadable_clients(bind: SocketAddr, deadline: Instant) -> u64 {
    let metrics = in_time(deadline, async {
        let mut wire = TcpStream::connect(bind).await?;
        wire.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
        let mut text = String::new();
        wire.take(METRICS_MAX_BYTES).read_to_string(&mut text).await?;
        Ok::<_, io::Error>(text)
    });
    let metrics = metrics.await.unwrap_or_default();
    metrics.lines().find_map(|line| line.strip_prefix(UNREADABLE)?.trim().parse().ok()).unwrap_or(0)
}
