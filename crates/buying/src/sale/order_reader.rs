//! Reads orders by their ids: one statement reads all orders that were asked for during the last one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::SaleError;
use seckill_domain::ids::{OrderId, UserId};
use seckill_domain::pressure::Pressure;
use seckill_postgres::orders::read::OwnedOrder;
use seckill_postgres::{Database, Orders};

const BATCH_MAX: usize = 256;
/// How long a statement may take, and how long the reader rests after a slower one: the pool gets its connection back meanwhile, or gives it
/// up.
const READ_MAX: Duration = Duration::from_secs(2);
/// How long a read may wait for its answer.
const WAIT_MAX: Duration = Duration::from_secs(5);
const TICKETS_MAX: usize = 10_000;

type Found = Result<Option<OwnedOrder>, SaleError>;
type Queued = (OrderId, UserId, oneshot::Sender<Found>);

/// A reader of a process; clones share it.
#[derive(Clone)]
pub struct OrderReader {
    queue: mpsc::Sender<Queued>,
}

impl OrderReader {
    /// Starts the reader for buyers who look at their orders. While purchases wait, it rests after each statement. With `line_max` reads in
    /// the queue, others are refused at once.
    pub fn start(ledger: Orders, pressure: Arc<Pressure>, line_max: usize, tasks: &TaskTracker) -> Self {
        let rest = move |took| pressure.read_rest(took, Instant::now());
        Self::start_with(ledger, READ_MAX, rest, line_max, tasks)
    }

    /// Starts the reader for repeated purchases. It never rests. `ledger` should use a reserved connection.
    pub fn start_for_tickets(ledger: Orders, tasks: &TaskTracker) -> Self {
        Self::start_with(ledger, WAIT_MAX, |_| Duration::ZERO, TICKETS_MAX, tasks)
    }

    /// The task ends when the last handle is dropped.
    fn start_with(
        ledger: Orders,
        read_max: Duration,
        rest: impl Fn(Duration) -> Duration + Send + 'static,
        line_max: usize,
        tasks: &TaskTracker,
    ) -> Self {
        let (queue, mut reads) = mpsc::channel(line_max);
        tasks.spawn(async move {
            let mut batch: Vec<Queued> = Vec::with_capacity(BATCH_MAX);
            while reads.recv_many(&mut batch, BATCH_MAX).await > 0 {
                let began = Instant::now();
                answer(&ledger, read_max, &mut batch).await;
                let took = began.elapsed();
                let rest = if took < read_max { rest(took) } else { READ_MAX };
                if !rest.is_zero() {
                    tokio::time::sleep(rest).await;
                }
            }
        });
        Self { queue }
    }

    /// Reads an order at or after the time of this call. The order may belong to another buyer.
    ///
    /// # Errors
    /// `Overloaded`: the queue is full, or there is no answer in time.
    pub(crate) async fn read(&self, order: OrderId, user: &UserId) -> Found {
        let (reply, found) = oneshot::channel();
        self.queue.try_send((order, user.clone(), reply)).map_err(|_| SaleError::Overloaded("orders"))?;
        match tokio::time::timeout(WAIT_MAX, found).await {
            Ok(Ok(found)) => found,
            _ => Err(SaleError::Overloaded("orders")),
        }
    }
}

async fn answer(ledger: &Orders, read_max: Duration, batch: &mut Vec<Queued>) {
    // Nothing is read for callers who have gone away.
    batch.retain(|(_, _, reply)| !reply.is_closed());
    let asked: Vec<(OrderId, &str)> = batch.iter().map(|(order, user, _)| (*order, user.as_str())).collect();
    let found = Database::within(read_max, ledger.orders_of_buyers(&asked)).await;
    let found = found.inspect_err(|error| tracing::warn!(%error, orders = asked.len(), "orders not read")).ok();
    for (order, _, reply) in batch.drain(..) {
        let answer = match found.as_ref().map(|found| found.get(&order)) {
            Some(None) => Ok(None),
            Some(Some(Some(found))) => Ok(Some(found.clone())),
            Some(Some(None)) | None => Err(SaleError::Overloaded("orders")),
        };
        let _ = reply.send(answer);
    }
}
