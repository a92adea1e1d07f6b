//! Reads orders by their ids, many in one statement: what has been asked for while the last statement ran is read by the next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::SaleError;
use crate::domain::ids::{OrderId, UserId};
use crate::domain::pressure::Pressure;
use crate::ledger::Ledger;
use crate::ledger::orders::read::OwnedOrder;

/// Orders in one statement.
const BATCH_MAX: usize = 256;
/// How long a statement may take, and how long the reader rests after one that has taken longer: its connection comes back to
/// the pool in that time, or is given up.
const READ_MAX: Duration = Duration::from_secs(2);
/// How long a read may wait for its answer.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a statement for tickets may take: as long as those who wait for them.
const TICKETS_READ_MAX: Duration = WAIT_MAX;
/// The most tickets that are waited for.
const TICKETS_MAX: usize = 10_000;

type Found = Result<Option<OwnedOrder>, SaleError>;
type Queued = (OrderId, UserId, oneshot::Sender<Found>);

/// A reader of a process; clones share it.
#[derive(Clone)]
pub struct OrderReader {
    queue: mpsc::Sender<Queued>,
}

impl OrderReader {
    /// Starts the task that reads for those who look at their orders. While purchases wait, it rests after each statement. When more
    /// than `line_max` reads wait, others are refused at once.
    pub fn start(ledger: Ledger, pressure: Arc<Pressure>, line_max: usize, tasks: &TaskTracker) -> Self {
        let rest = move |took| pressure.read_rest(took, Instant::now());
        Self::start_with(ledger, READ_MAX, rest, line_max, tasks)
    }

    /// Starts the task that reads for those who repeat a purchase. It gives way to nobody, and keeps a connection of those that no other
    /// read can take.
    pub fn start_for_tickets(ledger: &Ledger, tasks: &TaskTracker) -> Self {
        Self::start_with(ledger.with_reserved(), TICKETS_READ_MAX, |_| Duration::ZERO, TICKETS_MAX, tasks)
    }

    /// The task ends when the last handle is dropped.
    fn start_with(
        ledger: Ledger,
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

    /// An order as it is at a moment after this call, for the buyer who asks for it. It may belong to another.
    ///
    /// # Errors
    /// `Overloaded`: too many wait, the answer took too long, or PostgreSQL cannot be reached.
    pub async fn read(&self, order: OrderId, user: &UserId) -> Found {
        let (reply, found) = oneshot::channel();
        self.queue.try_send((order, user.clone(), reply)).map_err(|_| SaleError::Overloaded("orders"))?;
        match tokio::time::timeout(WAIT_MAX, found).await {
            Ok(Ok(found)) => found,
            _ => Err(SaleError::Overloaded("orders")),
        }
    }
}

async fn answer(ledger: &Ledger, read_max: Duration, batch: &mut Vec<Queued>) {
    // Nothing is read for callers who have gone away.
    batch.retain(|(_, _, reply)| !reply.is_closed());
    let asked: Vec<(OrderId, &str)> = batch.iter().map(|(order, user, _)| (*order, user.as_str())).collect();
    let found = Ledger::within(read_max, ledger.orders_of_buyers(&asked)).await;
    match found {
        Ok(found) => {
            for (order, _, reply) in batch.drain(..) {
                let found = match found.get(&order) {
                    None => Ok(None),
                    Some(Some(found)) => Ok(Some(found.clone())),
                    Some(None) => Err(SaleError::Overloaded("orders")),
                };
                let _ = reply.send(found);
            }
        }
        Err(error) => {
            tracing::warn!(%error, orders = batch.len(), "orders not read");
            for (_, _, reply) in batch.drain(..) {
                let _ = reply.send(Err(SaleError::Overloaded("orders")));
            }
        }
    }
}
