//! Winners who watch: each follows the order that it was promised through `seckill-client`, as the page of a buyer does.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use seckill_client::{BuyerClient, OrderStatus, Service};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::numbers::with_commas;
use super::plan::Buyer;
use super::statistics::{Latency, latency};

/// How long after the rush orders may take to be written, as far as anybody watches them.
const PATIENCE: Duration = Duration::from_secs(10);

/// The report of the watchers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Watched {
    /// Orders that were followed.
    pub orders: usize,
    /// Orders that reached a status after `accepted`.
    pub written: usize,
    /// Orders that could not be followed.
    pub failed: usize,
    /// The time from a purchase's 202 to the event that its order is written.
    pub latency: Option<Latency>,
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [orders, written] = [self.orders, self.written].map(|number| with_commas(number as u64));
        write!(f, "{orders} orders, of which {written} were seen written")?;
        if let Some(Latency { p50_ms, p99_ms, .. }) = &self.latency {
            write!(f, ", p50 {p50_ms:.1} ms and p99 {p99_ms:.1} ms after the 202")?;
        }
        if self.failed > 0 {
            write!(f, "; {} could not be followed", self.failed)?;
        }
        Ok(())
    }
}

/// The time from the 202 to the written order, or that it could not be followed.
type News = Option<Duration>;

pub struct Watchers {
    service: Service,
    buyers: Arc<[Buyer]>,
    wanted: usize,
    /// How many orders have been offered; beyond `wanted` they are not followed.
    offered: AtomicUsize,
    /// Each sends its news once, and then watches on.
    tasks: Mutex<JoinSet<()>>,
    news: mpsc::Sender<News>,
    told: Mutex<Option<mpsc::Receiver<News>>>,
}

impl Watchers {
    pub fn new(service: Service, buyers: Arc<[Buyer]>, wanted: usize) -> Self {
        // One place for each watcher, so that none has to wait with its news.
        let (news, told) = mpsc::channel(wanted.max(1));
        let (offered, tasks) = (AtomicUsize::new(0), Mutex::default());
        Self { service, buyers, wanted, offered, tasks, news, told: Mutex::new(Some(told)) }
    }

    /// Follows an order that was promised at `promised`, if there are not enough watchers yet. Called on a thread of the
    /// runtime.
    pub fn follow(&self, caller: usize, order_id: &str, promised: Instant) {
        if self.offered.load(Relaxed) >= self.wanted || self.offered.fetch_add(1, Relaxed) >= self.wanted {
            return;
        }
        let client = self.buyers.get(caller).and_then(|buyer| BuyerClient::new(&self.service, &buyer.token).ok());
        let (Some(client), Ok(order_id)) = (client, Uuid::try_parse(order_id)) else {
            let _ = self.news.try_send(None);
            return;
        };
        let news = self.news.clone();
        self.tasks.lock().spawn(async move {
            let mut changes = client.follow(order_id);
            let mut is_written = false;
            loop {
                match changes.next().await {
                    Ok(Some(order)) if !is_written && order.status != OrderStatus::Accepted => {
                        is_written = true;
                        let _ = news.try_send(Some(promised.elapsed()));
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => return,
                    Err(_) if is_written => return,
                    Err(_) => {
                        let _ = news.try_send(None);
                        return;
                    }
                }
            }
        });
    }

    /// Waits until every watcher has its news, for a bounded time, and sends them home.
    pub async fn finish(&self) -> Option<Watched> {
        let mut told = self.told.lock().take()?;
        let orders = self.offered.load(Relaxed).min(self.wanted);
        if self.wanted == 0 {
            return None;
        }
        let (mut took_us, mut failed) = (Vec::with_capacity(orders), 0);
        let deadline = Instant::now() + PATIENCE;
        while took_us.len() + failed < orders {
            match timeout_at(deadline, told.recv()).await {
                Ok(Some(Some(took))) => took_us.push(u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
                Ok(Some(None)) => failed += 1,
                // The time is over; watchers without news count as neither.
                Ok(None) | Err(_) => break,
            }
        }
        self.tasks.lock().abort_all();
        Some(Watched { orders, written: took_us.len(), failed, latency: latency(took_us.into_iter()) })
    }
}
