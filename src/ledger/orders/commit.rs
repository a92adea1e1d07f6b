//! Commits purchase rows in groups: a purchase is durable before it is answered (protocol, rule 3).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::die_at;
use crate::domain::admission::Hold;
use crate::domain::ids::{OrderId, SaleId};
use crate::domain::trace_context::TraceContext;
use crate::ledger::notices::Notifier;
use crate::ledger::{Ledger, LedgerError};
use crate::telemetry::spans::Span;

/// A purchase row to be committed.
#[derive(Debug, Clone)]
pub struct Purchase {
    pub order: OrderId,
    pub sale: SaleId,
    pub user: String,
    pub units: i32,
    /// Where it came from, as the limits see it, if that is still known.
    pub address: Option<String>,
    pub hold: Hold,
    /// The step that writes it, if it is traced.
    pub trace: Option<Box<TraceContext>>,
}

impl Purchase {
    fn trace(&self) -> Option<&TraceContext> {
        self.trace.as_deref()
    }
}

/// What became of a purchase row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// The row is committed, now or since an earlier try.
    Durable,
    /// The sale has another epoch: the hold may no longer exist.
    StaleEpoch,
    /// The commit failed, or its outcome is unknown.
    Unknown,
}

impl Ledger {
    /// Commits purchase rows. One bad row does not fail its group (rule 4).
    ///
    /// # Errors
    /// Only an outage of PostgreSQL.
    pub async fn commit_purchases(&self, purchases: &[Purchase]) -> Result<Vec<Committed>, LedgerError> {
        commit_on(&mut *self.pool.acquire().await?, purchases).await
    }

    /// Checks that purchase rows can be written, without writing one: a server that is read-only, or lacks the table, cannot.
    pub async fn can_commit(&self) -> Result<(), LedgerError> {
        insert_on(&mut *self.reserved.acquire().await?, &[]).await.map(drop)
    }
}

async fn commit_on(connection: &mut PgConnection, purchases: &[Purchase]) -> Result<Vec<Committed>, LedgerError> {
    match insert_on(connection, purchases).await {
        Ok(outcomes) => return Ok(outcomes),
        Err(error) if error.is_outage() => return Err(error),
        Err(error) => {
            tracing::error!(%error, rows = purchases.len(), "group of purchase rows failed; trying one by one");
        }
    }
    let mut outcomes = Vec::with_capacity(purchases.len());
    for purchase in purchases {
        match insert_on(connection, std::slice::from_ref(purchase)).await {
            Ok(outcome) => outcomes.extend(outcome),
            Err(error) if error.is_outage() => return Err(error),
            Err(error) => {
                let trace_id = purchase.trace().map(TraceContext::trace_id);
                tracing::error!(%error, order = %purchase.order, trace_id, "purchase row failed");
                outcomes.push(Committed::Unknown);
            }
        }
    }
    Ok(outcomes)
}

/// Inserts purchase rows in one transaction, each only if its epoch is still the sale's. Returns for each whether it is
/// in the table afterwards.
async fn insert_on(connection: &mut PgConnection, purchases: &[Purchase]) -> Result<Vec<Committed>, LedgerError> {
    let orders: Vec<Uuid> = purchases.iter().map(|p| p.order.0).collect();
    let sales: Vec<i64> = purchases.iter().map(|p| p.sale.get()).collect();
    let users: Vec<&str> = purchases.iter().map(|p| p.user.as_str()).collect();
    let units: Vec<i32> = purchases.iter().map(|p| p.units).collect();
    let addresses: Vec<Option<&str>> = purchases.iter().map(|p| p.address.as_deref()).collect();
    let epochs: Vec<i64> = purchases.iter().map(|p| p.hold.epoch.0).collect();
    let shards: Vec<i16> = purchases.iter().map(|p| p.hold.shard.0).collect();
    let traces = traces_of(purchases);
    // One statement: one round trip and one commit. FOR SHARE makes a refill wait for this insert, or this insert see
    // the new epoch. The order by key keeps two groups with the same rows from a deadlock.
    let inserted = sqlx::query!(
        "WITH current AS MATERIALIZED (
               SELECT sale_id, epoch FROM sale_epochs WHERE sale_id = ANY($2) ORDER BY sale_id FOR SHARE)
             INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard, address, trace)
             SELECT 'order_placed', p.order_id, p.sale_id, p.user_id, p.quantity, p.epoch, p.shard, p.address, p.trace
             FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::integer[], $5::bigint[], $6::smallint[], $7::text[], $8::text[])
                    AS p (order_id, sale_id, user_id, quantity, epoch, shard, address, trace)
             JOIN current USING (sale_id, epoch)
             ORDER BY p.order_id
             ON CONFLICT (kind, order_id) DO NOTHING",
        &orders,
        &sales,
        &users as &[&str],
        &units,
        &epochs,
        &shards,
        &addresses as &[Option<&str>],
        &traces as &[Option<String>]
    )
    .execute(&mut *connection)
    .await?;
    if inserted.rows_affected() == purchases.len() as u64 {
        return Ok(vec![Committed::Durable; purchases.len()]);
    }
    let present: HashSet<Uuid> =
        sqlx::query_scalar!("SELECT order_id FROM outbox WHERE kind = 'order_placed' AND order_id = ANY($1)", &orders)
            .fetch_all(connection)
            .await?
            .into_iter()
            .collect();
    let outcome = |id| if present.contains(id) { Committed::Durable } else { Committed::StaleEpoch };
    Ok(orders.iter().map(outcome).collect())
}

/// The traces of purchases. An array that is too short is filled up with NULL, so one that is all NULL is empty.
fn traces_of(purchases: &[Purchase]) -> Vec<Option<String>> {
    if purchases.iter().all(|purchase| purchase.trace.is_none()) {
        return Vec::new();
    }
    purchases.iter().map(|purchase| purchase.trace().map(TraceContext::to_text)).collect()
}

/// Purchases that are answered together, and so are committed together.
struct Group {
    purchases: Vec<Purchase>,
    queued_at: Instant,
    reply: oneshot::Sender<Vec<Committed>>,
}

/// Purchases that may wait for their commit; more are refused before they touch the stock.
const BACKLOG_MAX: usize = 8192;
/// A commit that takes longer holds up the purchases that come after it.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// How long a measured wait for a commit counts.
const WAIT_VALID: Duration = Duration::from_millis(100);
/// A commit that takes longer is given up; whether it took effect is unknown.
const COMMIT_MAX: Duration = Duration::from_secs(5);

/// Commits the groups together that have arrived while the last ones were being written.
#[derive(Clone)]
pub struct Committer {
    queue: mpsc::Sender<Group>,
    pulse: Arc<Pulse>,
    notifier: Notifier,
}

/// What is known of PostgreSQL's ability to commit.
struct Pulse {
    healthy: AtomicBool,
    started: Instant,
    /// When each lane began its present commit, in milliseconds after `started`; 0 when it has none.
    began: Vec<AtomicU64>,
    /// The purchases in the queue.
    queued: AtomicUsize,
    /// How long the oldest group of the last commit had waited, in microseconds, and when that was measured.
    wait_us: AtomicU64,
    measured_ms: AtomicU64,
}

impl Pulse {
    fn now_ms(&self) -> u64 {
        // Never 0, which means that there is no commit.
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    fn note_wait(&self, wait: Duration) {
        self.wait_us.store(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.measured_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn wait(&self) -> Duration {
        let age_ms = self.now_ms().saturating_sub(self.measured_ms.load(Ordering::Relaxed));
        let counts = Duration::from_millis(age_ms) < WAIT_VALID;
        if counts { Duration::from_micros(self.wait_us.load(Ordering::Relaxed)) } else { Duration::ZERO }
    }

    /// How long all lanes have been busy with the same groups.
    fn busy_for(&self) -> Duration {
        let began = self.began.iter().map(|began| began.load(Ordering::Relaxed));
        let latest = began.reduce(|latest, began| if latest == 0 || began == 0 { 0 } else { latest.max(began) });
        match latest {
            None | Some(0) => Duration::ZERO,
            Some(began) => Duration::from_millis(self.now_ms().saturating_sub(began)),
        }
    }

    fn is_healthy(&self) -> bool {
        let since = self.now_ms().saturating_sub(STALLED_AFTER.as_millis() as u64);
        self.healthy.load(Ordering::Relaxed)
            && self.began.iter().map(|began| began.load(Ordering::Relaxed)).all(|began| began == 0 || began > since)
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
        let began = (0..lanes).map(|_| AtomicU64::new(0)).collect();
        let pulse = Arc::new(Pulse {
            healthy: AtomicBool::new(true),
            started: Instant::now(),
            began,
            queued: AtomicUsize::new(0),
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

    /// Whether PostgreSQL has answered last, no commit has been waiting for its answer for long, and the queue is not too
    /// long. Otherwise no stock is touched (rule 4), so that few holds are left without a row.
    pub fn is_healthy(&self) -> bool {
        self.pulse.is_healthy() && self.pulse.queued.load(Ordering::Relaxed) <= BACKLOG_MAX
    }

    /// How long purchases have lately waited for their commit to begin.
    pub fn wait(&self) -> Duration {
        let measured = self.pulse.wait();
        let nothing_waits = self.queue.capacity() == self.queue.max_capacity();
        if nothing_waits { measured } else { measured.max(self.pulse.busy_for()) }
    }

    /// Records whether PostgreSQL has answered.
    pub fn set_healthy(&self, healthy: bool) {
        self.pulse.healthy.store(healthy, Ordering::Relaxed);
    }

    /// Notifies that another use case has added rows to the outbox.
    pub fn outbox_changed(&self) {
        self.notifier.outbox_changed();
    }

    /// Notifies that another use case has changed an order's status.
    pub fn orders_changed(&self) {
        self.notifier.orders_changed();
    }

    /// Returns once each of these purchase rows is committed, or its outcome is known to be unknown.
    pub async fn commit(&self, purchases: Vec<Purchase>) -> Vec<Committed> {
        let (size, queued_at) = (purchases.len(), Instant::now());
        let (reply, outcomes) = oneshot::channel();
        let Ok(place) = self.queue.reserve().await else { return vec![Committed::Unknown; size] };
        self.pulse.queued.fetch_add(size, Ordering::Relaxed);
        place.send(Group { purchases, queued_at, reply });
        outcomes.await.unwrap_or_else(|_| vec![Committed::Unknown; size])
    }
}

/// Waits for a group, and takes those behind it until they have `batch_max` purchases. A group is never divided. Returns none when
/// the last handle was dropped and the queue is empty.
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
    /// The lane's own connection, and when it was used last. The pool would test it each time, which costs a sixth of a
    /// commit's time.
    connection: Option<(PoolConnection<Postgres>, Instant)>,
}

/// A connection that was idle for longer is tested before it is used.
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

    async fn write(&mut self, rows: &[Purchase]) -> Vec<Committed> {
        die_at!("commit.before");
        let mut span = Span::group("commit group", rows.len(), rows.iter().filter_map(Purchase::trace));
        let began = Instant::now();
        let ledger = self.ledger.clone();
        let pulse = Arc::clone(&self.pulse);
        pulse.began[self.number].store(pulse.now_ms(), Ordering::Relaxed);
        let written = Ledger::within(COMMIT_MAX, self.commit(&ledger, rows)).await;
        pulse.began[self.number].store(0, Ordering::Relaxed);
        metrics::histogram!("seckill_commit_seconds").record(began.elapsed());
        die_at!("commit.after");
        pulse.healthy.store(written.is_ok(), Ordering::Relaxed);
        written.unwrap_or_else(|error| {
            tracing::warn!(%error, rows = rows.len(), "not known whether purchase rows were committed");
            span.iter_mut().for_each(|span| span.fail(error.to_string()));
            vec![Committed::Unknown; rows.len()]
        })
    }

    /// Commits on the lane's own connection. One that has failed, or was interrupted, is not used again.
    async fn commit(&mut self, ledger: &Ledger, rows: &[Purchase]) -> Result<Vec<Committed>, LedgerError> {
        let mut connection = match self.connection.take() {
            Some((connection, used)) if used.elapsed() < IDLE_MAX => connection,
            idle => {
                drop(idle); // back to the pool, which tests a connection before it returns it
                ledger.reserved.acquire().await?
            }
        };
        let written = commit_on(&mut connection, rows).await;
        match &written {
            Ok(_) => self.connection = Some((connection, Instant::now())),
            Err(_) => _ = connection.detach(),
        }
        written
    }
}
