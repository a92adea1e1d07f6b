//! What comes together is written together, in one transaction.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

use super::PayError;

/// Items in one transaction, and transactions under way at once.
const BATCH_MAX: usize = 256;
const LANES: usize = 2;
/// Items that wait; more are refused.
const QUEUE_MAX: usize = 20_000;
/// Between two batches of what a buyer or a channel waits for.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// Collects items from all threads, and writes them in batches. Each item has a reply of its own.
pub(super) struct Batcher<T, R> {
    queue: mpsc::Sender<Queued<T, R>>,
}

type Queued<T, R> = (T, oneshot::Sender<R>);

struct Queue<T, R> {
    items: mpsc::Receiver<Queued<T, R>>,
    next_batch: Instant,
    pause: Duration,
}

impl<T: Send + 'static, R: Send + 'static> Batcher<T, R> {
    /// A batch is written `pause` after the one before, or as soon as so many items wait that they fill it; a lone item is
    /// written at once. `write` returns a reply for each item, in order, or `None` if it is not known what was written. The tasks
    /// end, after what is queued, when the last handle is dropped.
    pub fn open<W>(
        tasks: &TaskTracker,
        pause: Duration,
        write: impl Fn(Vec<T>) -> W + Clone + Send + Sync + 'static,
    ) -> Self
    where
        W: Future<Output = Option<Vec<R>>> + Send + 'static,
    {
        let (queue, items) = mpsc::channel(QUEUE_MAX);
        let items = Arc::new(Mutex::new(Queue { items, next_batch: Instant::now(), pause }));
        for _ in 0..LANES {
            let (write, items) = (write.clone(), Arc::clone(&items));
            tasks.spawn(async move {
                while let Some(batch) = Queue::next(&items).await {
                    let (batch, replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
                    let written = write(batch).await.unwrap_or_default();
                    replies.into_iter().zip(written).for_each(|(reply, written)| _ = reply.send(written));
                }
            });
        }
        Self { queue }
    }

    /// Writes an item with others.
    ///
    /// # Errors
    /// `TooMany` if too many wait; nothing is written then. `Unknown` if it is not known whether the item was written.
    pub async fn write(&self, item: T) -> Result<R, PayError> {
        let (reply, replied) = oneshot::channel();
        self.queue.try_send((item, reply)).map_err(|_| PayError::TooMany)?;
        replied.await.map_err(|_| PayError::Unknown)
    }
}

impl<T, R> Clone for Batcher<T, R> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone() }
    }
}

impl<T, R> Queue<T, R> {
    async fn next(queue: &Mutex<Self>) -> Option<Vec<Queued<T, R>>> {
        let mut queue = queue.lock().await;
        let mut batch = vec![queue.items.recv().await?];
        if queue.items.len() < BATCH_MAX {
            sleep_until(queue.next_batch).await;
        }
        while batch.len() < BATCH_MAX
            && let Ok(item) = queue.items.try_recv()
        {
            batch.push(item);
        }
        queue.next_batch = Instant::now() + queue.pause;
        Some(batch)
    }
}
