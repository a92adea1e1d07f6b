//! Live figures of sales, for the console. One sampler for each watched sale feeds all its streams at an instance: the first stream starts
//! it, the last one ends it. Ten open pages cost the same as one.

mod sampler;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use sampler::{InstanceReadings, LedgerTurns, Sampler};

use crate::sale::Stores;
use seckill_domain::account::AccountName;
use seckill_domain::database_clock::DatabaseClock;
use seckill_domain::ids::SaleId;
use seckill_domain::live::QueueFigures;
use seckill_domain::pressure::Pressure;
use seckill_rabbitmq::{Broker, QueueDepths};
use seckill_runtime::failure_log::FailureLog;

/// Streams of an instance. Each costs a connection and a kilobyte a second.
const STREAMS_MAX: usize = 64;
/// Streams of one account: one person cannot use all streams.
const STREAMS_OF_ACCOUNT_MAX: usize = 8;
/// Samples at the beginning of a stream: the last two minutes.
const KEPT_MAX: usize = 120;
/// How often the broker is asked. It counts its messages every few seconds.
const QUEUES_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Sample {
    /// Rises, and follows PostgreSQL's clock: a reader continues at the same place at another instance.
    pub id: i64,
    /// `LiveFigures` as one line of JSON.
    pub json: String,
}

/// Oldest first.
type Samples = VecDeque<Arc<Sample>>;

pub struct Sources {
    pub stores: Stores,
    pub clock: Arc<DatabaseClock>,
    pub metrics: PrometheusHandle,
    pub pressure: Arc<Pressure>,
    pub broker: Broker,
}

struct Shared {
    sources: Sources,
    /// One connection to PostgreSQL reads the figures of all sales.
    ledger_turn: Semaphore,
    ledger_turns: Mutex<LedgerTurns>,
    instance: Mutex<InstanceReadings>,
    queues: Mutex<Option<Vec<QueueFigures>>>,
}

#[derive(Clone)]
pub struct LiveSales {
    shared: Arc<Shared>,
    watched: Arc<Mutex<LiveWatchers>>,
    closing: CancellationToken,
    tasks: TaskTracker,
    /// Samplers run among the background tasks, not on a thread that serves purchases.
    runtime: Handle,
}

#[derive(Default)]
struct LiveWatchers {
    streams: usize,
    accounts: HashMap<AccountName, usize>,
    sales: HashMap<SaleId, WatchedSale>,
    /// Ends the reader of queues.
    queues: Option<DropGuard>,
}

struct WatchedSale {
    streams: usize,
    samples: watch::Receiver<Samples>,
    /// Ends the sampler.
    _sampler: DropGuard,
}

impl LiveSales {
    /// Samplers run on the runtime of this call.
    pub fn new(sources: Sources, tasks: TaskTracker) -> Self {
        let shared = Shared {
            sources,
            ledger_turn: Semaphore::new(1),
            ledger_turns: Mutex::default(),
            instance: Mutex::default(),
            queues: Mutex::default(),
        };
        let (closing, runtime) = (CancellationToken::new(), Handle::current());
        Self { shared: Arc::new(shared), watched: Arc::default(), closing, tasks, runtime }
    }

    /// Ends every stream, also later ones.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Watches a sale, after the sample that the reader has `seen`; `None` when this instance or the account has too many streams.
    pub fn watch(&self, sale: SaleId, account: AccountName, seen: Option<i64>) -> Option<LiveStream> {
        let mut watched = self.watched.lock();
        let samples = watched.join(sale, &account, || self.start_sampler(sale))?;
        if watched.queues.is_none() {
            watched.queues = Some(self.start(|stop| read_queues(Arc::clone(&self.shared), stop)));
        }
        drop(watched);
        let (live, seen) = (self.clone(), seen.unwrap_or(0));
        Some(LiveStream { live, sale, account, samples, seen, ready: VecDeque::new() })
    }

    fn start_sampler(&self, sale: SaleId) -> WatchedSale {
        let (feed, samples) = watch::channel(Samples::new());
        let sampler = Sampler::new(Arc::clone(&self.shared), sale, feed);
        WatchedSale { streams: 0, samples, _sampler: self.start(|stop| sampler.run(stop)) }
    }

    /// Starts a task that ends with the returned guard.
    fn start<F: Future<Output = ()> + Send + 'static>(&self, task: impl FnOnce(CancellationToken) -> F) -> DropGuard {
        let stop = self.closing.child_token();
        self.tasks.spawn_on(task(stop.clone()), &self.runtime);
        stop.drop_guard()
    }
}

/// Keeps the depths of the queues current, apart from the samplers: a broker that is away answers late.
async fn read_queues(shared: Arc<Shared>, stop: CancellationToken) {
    let (mut depths, mut failures) = (QueueDepths::new(shared.sources.broker.clone()), FailureLog::default());
    while let Some(read) = stop.run_until_cancelled(depths.read()).await {
        let read = failures.note(read, "the live page shows no queues");
        let figures = |(queue, messages)| QueueFigures { queue, messages };
        *shared.queues.lock() = read.map(|depths| depths.into_iter().map(figures).collect());
        if stop.run_until_cancelled(tokio::time::sleep(QUEUES_EVERY)).await.is_none() {
            break;
        }
    }
    *shared.queues.lock() = None;
    depths.close().await;
}

impl LiveWatchers {
    /// Adds a stream of a sale. `start` starts the sampler of the first stream.
    fn join(
        &mut self,
        sale: SaleId,
        account: &AccountName,
        start: impl FnOnce() -> WatchedSale,
    ) -> Option<watch::Receiver<Samples>> {
        let of_account = self.accounts.get(account).copied().unwrap_or(0);
        if self.streams >= STREAMS_MAX || of_account >= STREAMS_OF_ACCOUNT_MAX {
            return None;
        }
        self.count(self.streams + 1);
        self.accounts.insert(account.clone(), of_account + 1);
        let watched = self.sales.entry(sale).or_insert_with(start);
        watched.streams += 1;
        Some(watched.samples.clone())
    }

    /// Removes a stream. Returns whether it was the last stream of all sales.
    fn leave(&mut self, sale: SaleId, account: &AccountName) -> bool {
        self.count(self.streams - 1);
        if let Some(streams) = self.accounts.get_mut(account) {
            *streams -= 1;
        }
        self.accounts.retain(|_, streams| *streams > 0);
        if let Some(watched) = self.sales.get_mut(&sale) {
            watched.streams -= 1;
        }
        self.sales.retain(|_, watched| watched.streams > 0);
        let is_last = self.sales.is_empty();
        if is_last {
            self.queues = None;
        }
        is_last
    }

    fn count(&mut self, streams: usize) {
        self.streams = streams;
        metrics::gauge!("seckill_live_streams").set(streams as f64);
    }
}

pub struct LiveStream {
    live: LiveSales,
    sale: SaleId,
    account: AccountName,
    samples: watch::Receiver<Samples>,
    seen: i64,
    ready: Samples,
}

impl LiveStream {
    /// Waits for the next sample that is still kept. `None` when the service stops. Dropping the future loses no sample.
    pub async fn next(&mut self) -> Option<Arc<Sample>> {
        loop {
            if let Some(sample) = self.ready.pop_front() {
                self.seen = sample.id;
                return Some(sample);
            }
            let seen = self.seen;
            self.ready.extend(self.samples.borrow_and_update().iter().filter(|sample| sample.id > seen).cloned());
            if self.ready.is_empty() {
                self.live.closing.run_until_cancelled(self.samples.changed()).await?.ok()?;
            }
        }
    }
}

impl Drop for LiveStream {
    fn drop(&mut self) {
        let is_last = self.live.watched.lock().leave(self.sale, &self.account);
        if is_last {
            // Rates are counted only while the sale is watched.
            *self.live.shared.instance.lock() = InstanceReadings::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(n: usize) -> AccountName {
        AccountName::parse(&format!("ann{n}"), "name").unwrap()
    }

    fn join(watched: &mut LiveWatchers, sale: SaleId, account: &AccountName, stop: &CancellationToken) -> bool {
        let sampler = stop.clone().drop_guard();
        let samples = watch::channel(Samples::new()).1;
        watched.join(sale, account, || WatchedSale { streams: 0, samples, _sampler: sampler }).is_some()
    }

    #[test]
    fn ten_streams_have_one_sampler_which_ends_with_the_last_of_them() {
        let (sale, mut watched, mut stops) = (SaleId::from_db(1), LiveWatchers::default(), Vec::new());
        for n in 0..10 {
            stops.push(CancellationToken::new());
            assert!(join(&mut watched, sale, &account(n), &stops[n]));
        }
        let stopped = |stops: &[CancellationToken]| stops.iter().filter(|stop| stop.is_cancelled()).count();
        assert_eq!(stopped(&stops), 9, "the first stream alone has started a sampler");
        for n in 0..9 {
            assert!(!watched.leave(sale, &account(n)));
        }
        assert_eq!(stopped(&stops), 9, "one still watches");
        assert!(watched.leave(sale, &account(9)));
        assert_eq!(stopped(&stops), 10);
        assert!(watched.sales.is_empty() && watched.accounts.is_empty());
        let stop = CancellationToken::new();
        assert!(join(&mut watched, sale, &account(0), &stop) && !stop.is_cancelled(), "it starts another");
    }

    #[test]
    fn streams_are_bounded_and_one_that_ends_makes_room() {
        let mut watched = LiveWatchers::default();
        let sale = |n: usize| SaleId::from_db(n.cast_signed() as i64 + 1);
        let stop = CancellationToken::new();
        let join = |watched: &mut LiveWatchers, n| join(watched, sale(n), &account(n / STREAMS_OF_ACCOUNT_MAX), &stop);
        for n in 0..STREAMS_OF_ACCOUNT_MAX {
            assert!(join(&mut watched, n), "{n}");
        }
        assert!(!join(&mut watched, 0), "the account has too many");
        for n in STREAMS_OF_ACCOUNT_MAX..STREAMS_MAX {
            assert!(join(&mut watched, n), "{n}");
        }
        assert!(!join(&mut watched, STREAMS_MAX), "the instance has too many");
        watched.leave(sale(5), &account(0));
        assert!(join(&mut watched, 0));
    }
}
