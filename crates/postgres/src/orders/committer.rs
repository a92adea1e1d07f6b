//! Commits the purchases of many callers together, on a few connections that nothing else uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{Executor, Postgres};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::task::TaskTracker;

use crate::notices::Notifier;
use crate::orders::commit::{LOCKED_FOR, commit_on};
use crate::orders::purchase::{CommitOutcome, Purchase};
use crate::{Database, Ledger, LedgerError};
use seckill_domain::ids::SaleId;
use seckill_domain::locked_sales::LockedSales;
use seckill_runtime::die_at;
use seckill_telemetry::spans::Span;

/// Purchases with one common answer, so they are committed together.
struct Group {
    purchases: Vec<Purchase>,
    queued_at: Instant,
    reply: oneshot::Sender<Vec<CommitOutcome>>,
}

/// Queue limit in purchases. Purchases above it are refused before they touch the stock.
const BACKLOG_MAX: usize = 8192;
/// A commit slower than this counts as stalled. Purchases wait behind it.
const STALLED_AFTER: Duration = Duration::from_secs(1);
const WAIT_VALID: Duration = Duration::from_millis(100);
/// How long a commit waits for a sale's epoch. Other sales wait with it. A refill locks the epoch for milliseconds.
const LOCK_WAIT: &str = "SET lock_timeout = '250ms'";
/// A slower commit is given up. It is unknown then whether it took effect.
const COMMIT_MAX: Duration = Duration::from_secs(5);

/// Commits together the groups that arrived during the last commit.
#[derive(Clone)]
pub struct Committer {
    queue: mpsc::Sender<Group>,
    pulse: Arc<Pulse>,
    notifier: Notifier,
}

/// Whether PostgreSQL can commit, as far as this process knows.
struct Pulse {
    healthy: AtomicBool,
    started: Instant,
    /// When each lane began its commit, in milliseconds after `started`; 0: idle.
    began: Vec<AtomicU64>,
    queued: AtomicUsize,
    locked: LockedSales,
    /// How long the oldest group of the last commit had waited, in microseconds, and when this was measured.
    wait_us: AtomicU64,
    measured_ms: AtomicU64,
}

impl Pulse {
    fn now_ms(&self) -> u64 {
        // Never 0, because 0 means idle.
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    fn note_wait(&self, wait: Duration) {
        self.wait_us.store(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.measured_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn wait(&self) -> Duration {
        let age_ms = self.now_ms().saturating_sub(self.measured_ms.load(Ordering::Relaxed));
        let is_valid = Duration::from_millis(age_ms) < WAIT_VALID;
        if is_valid { Duration::from_micros(self.wait_us.load(Ordering::Relaxed)) } else { Duration::ZERO }
    }

    /// How long all lanes have been busy with the same commits.
    fn busy_for(&self) -> Duration {
        // Each is read once: a lane may become idle meanwhile.
        let latest = self.began().try_fold(0, |latest, began| (began > 0).then_some(latest.max(began)));
        latest.map_or(Duration::ZERO, |began| Duration::from_millis(self.now_ms().saturating_sub(began)))
    }

    fn is_healthy(&self) -> bool {
        let since = self.now_ms().saturating_sub(STALLED_AFTER.as_millis() as u64);
        self.healthy.load(Ordering::Relaxed) && self.began().all(|began| began == 0 || began > since)
    }

    fn began(&self) -> impl Iterator<Item = u64> {
        self.began.iter().map(|began| began.load(Ordering::Relaxed))
    }
}

impl Committer {
    /// Starts `lanes` tasks that commit in parallel. They end when the last handle is dropped and the queue is empty.
    pub fn start(
        ledger: &Ledger,
        lanes: usize,
        batch_max: usize,
        queue_max: usize,
        notifier: &Notifier,
        tasks: &TaskTracker,
    ) -> Self {
        let (queue, groups) = mpsc::channel(queue_max);
        let groups = Arc::new(Mutex::new(groups));
        let pulse = Arc::new(Pulse {
            healthy: AtomicBool::new(true),
            started: Instant::now(),
            began: (0..lanes).map(|_| AtomicU64::new(0)).collect(),
            queued: AtomicUsize::new(0),
            locked: LockedSales::new(LOCKED_FOR),
            wait_us: AtomicU64::new(0),
            measured_ms: AtomicU64::new(0),
        });
        for number in 0..lanes {
            let (ledger, notifier, pulse) = (ledger.clone(), notifier.clone(), Arc::clone(&pulse));
            let lane = Lane { ledger, notifier, pulse, number, connection: None };
            tasks.spawn(lane.run(Arc::clone(&groups), batch_max));
        }
        Self { queue, pulse, notifier: notifier.clone() }
    }

    /// Whether PostgreSQL's last answer was good, no commit is stalled, and the queue is short. Otherwise no stock is touched (rule 4).
    pub fn is_healthy(&self) -> bool {
        self.pulse.is_healthy() && self.pulse.queued.load(Ordering::Relaxed) <= BACKLOG_MAX
    }

    /// Whether purchases of this sale could not be committed a moment ago, while others could. Such a sale's stock is not touched (rule 4).
    pub fn is_locked(&self, sale: SaleId) -> bool {
        self.pulse.locked.contains(sale)
    }

    /// How long purchases have recently waited for their commit to begin.
    pub fn wait(&self) -> Duration {
        let measured = self.pulse.wait();
        let nothing_waits = self.queue.capacity() == self.queue.max_capacity();
        if nothing_waits { measured } else { measured.max(self.pulse.busy_for()) }
    }

    pub fn set_healthy(&self, healthy: bool) {
        self.pulse.healthy.store(healthy, Ordering::Relaxed);
    }

    /// To call when another use case has changed an order's status, and has added outbox rows.
    pub fn orders_changed(&self) {
        self.notifier.outbox_changed();
        self.notifier.orders_changed();
    }

    /// Returns when each purchase is committed, or has an unknown outcome for good.
    pub async fn commit(&self, purchases: Vec<Purchase>) -> Vec<CommitOutcome> {
        let (size, queued_at) = (purchases.len(), Instant::now());
        let (reply, outcomes) = oneshot::channel();
        let Ok(place) = self.queue.reserve().await else { return vec![CommitOutcome::Unknown; size] };
        self.pulse.queued.fetch_add(size, Ordering::Relaxed);
        place.send(Group { purchases, queued_at, reply });
        outcomes.await.unwrap_or_else(|_| vec![CommitOutcome::Unknown; size])
    }
}

/// Waits for a group, then takes the groups behind it, up to about `batch_max` purchases. Returns none at the end of the queue.
async fn next_groups(queue: &Mutex<mpsc::Receiver<Group>>, batch_max: usize) -> Vec<Group> {
    let mut queue = queue.lock().await;
    let (mut groups, mut purchases) = (Vec::new(), 0);
    let mut next = queue.recv().await;
    while let Some(group) = next {
        purchases += group.purchases.len();
        groups.push(group);
        next = if purchases < batch_max { queue.try_recv().ok() } else { None };
    }
    groups
}

struct Lane {
    ledger: Ledger,
    notifier: Notifier,
    pulse: Arc<Pulse>,
    number: usize,
    connection: Option<LaneConnection>,
}

/// A lane's own connection. The pool would test it before each commit, which costs a sixth of a commit's time.
struct LaneConnection {
    connection: PoolConnection<Postgres>,
    used: Instant,
    /// The count of primary changes before the connection was taken.
    changes: u64,
}

/// A connection that was idle for longer is tested before use.
const IDLE_MAX: Duration = Duration::from_millis(500);

impl Lane {
    async fn run(mut self, queue: Arc<Mutex<mpsc::Receiver<Group>>>, batch_max: usize) {
        loop {
            let groups = next_groups(&queue, batch_max).await;
            let Some(oldest) = groups.iter().map(|group| group.queued_at).min() else { return };
            self.pulse.note_wait(oldest.elapsed());
            let (mut rows, mut replies) = (Vec::new(), Vec::with_capacity(groups.len()));
            for group in groups {
                replies.push((group.purchases.len(), group.reply));
                rows.extend(group.purchases);
            }
            self.pulse.queued.fetch_sub(rows.len(), Ordering::Relaxed);
            metrics::histogram!("seckill_commit_batch_size").record(rows.len() as f64);
            let mut outcomes = self.write(&rows).await.into_iter();
            for (size, reply) in replies {
                let _ = reply.send(outcomes.by_ref().take(size).collect());
            }
            self.notifier.outbox_changed();
        }
    }

    async fn write(&mut self, rows: &[Purchase]) -> Vec<CommitOutcome> {
        die_at!("commit.before");
        let mut span = Span::group("commit group", rows.len(), rows.iter().filter_map(Purchase::trace));
        let began = Instant::now();
        let ledger = self.ledger.clone();
        let pulse = Arc::clone(&self.pulse);
        pulse.began[self.number].store(pulse.now_ms(), Ordering::Relaxed);
        let mut outages = ledger.outages();
        let written = tokio::select! {
            biased;
            written = Database::within(COMMIT_MAX, self.commit(&ledger, rows)) => written,
            // The server is away, or another server is the primary now. This connection may never answer.
            _ = outages.changed() => Err(LedgerError::Unreachable(sqlx::Error::PoolTimedOut)),
        };
        pulse.began[self.number].store(0, Ordering::Relaxed);
        metrics::histogram!("seckill_commit_seconds").record(began.elapsed());
        die_at!("commit.after");
        pulse.healthy.store(written.is_ok(), Ordering::Relaxed);
        written.unwrap_or_else(|error| {
            tracing::warn!(%error, purchases = rows.len(), "not known whether purchases were committed");
            span.iter_mut().for_each(|span| span.fail(error.to_string()));
            vec![CommitOutcome::Unknown; rows.len()]
        })
    }

    /// Commits on the lane's own connection. A connection that failed or was interrupted is not used again.
    async fn commit(&mut self, ledger: &Ledger, rows: &[Purchase]) -> Result<Vec<CommitOutcome>, LedgerError> {
        let changes = ledger.primary_changes();
        let mut connection = match self.connection.take() {
            Some(own) if own.used.elapsed() < IDLE_MAX && own.changes == changes => own.connection,
            idle => {
                drop(idle); // the pool tests it before the next use
                let mut connection = ledger.reserved.acquire().await?;
                connection.execute(LOCK_WAIT).await?;
                connection
            }
        };
        let written = commit_on(&mut connection, rows, &self.pulse.locked).await;
        match &written {
            Ok(_) => self.connection = Some(LaneConnection { connection, used: Instant::now(), changes }),
            Err(_) => _ = connection.detach(),
        }
        written
    }
}
