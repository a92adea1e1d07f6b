//! Writes concurrent requests in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::TaskTracker;

/// Items in one transaction.
const BATCH_MAX: usize = 256;
/// Transactions under way at once.
const LANES: usize = 2;
/// From the beginning of one batch to that of the next, so that each has several items while many come; a lone item is written at once.
/// A channel that sends its callbacks one after the other gets 50 answers a second at most.
pub const PAUSE: Duration = Duration::from_millis(20);
/// While several items come together, the next batch begins after so many times what the last one took: the slower PostgreSQL is, the more
/// items share what a batch costs.
const PAUSE_OF_TIME_TAKEN: u32 = 4;
/// The longest of these pauses.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Items that wait; more are refused.
const QUEUE_MAX: usize = 20_000;
/// How long an item may take in all.
const ANSWER_MAX: Duration = Duration::from_secs(7);

/// Collects items from all threads, and writes them in batches. Each item has a reply of its own.
pub struct Batcher<T, R> {
    queue: mpsc::Sender<Queued<T, R>>,
}

/// Why an item has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Too many wait; nothing was written.
    #[error("too many requests at once")]
    TooMany,
    #[error("whether it was written is unknown")]
    Unknown,
}

type Queued<T, R> = (T, oneshot::Sender<R>);

impl<T: Send + 'static, R: Send + 'static> Batcher<T, R> {
    /// At least `pause` lies between the beginnings of two batches. `write` returns a reply for each item, in order, or `None` if it is
    /// not known what was written. The tasks end, after what is queued, when the last handle is dropped.
    pub fn open<W>(
        tasks: &TaskTracker,
        pause: Duration,
        write: impl Fn(Vec<T>) -> W + Clone + Send + Sync + 'static,
    ) -> Self
    where
        W: Future<Output = Option<Vec<R>>> + Send + 'static,
    {
        let (queue, items) = mpsc::channel(QUEUE_MAX);
        let items = Arc::new(Mutex::new((items, Instant::now())));
        let last_took_us = Arc::new(AtomicU64::new(0));
        for _ in 0..LANES {
            let (write, items, last_took_us) = (write.clone(), Arc::clone(&items), Arc::clone(&last_took_us));
            tasks.spawn(async move {
                loop {
                    let mut line = items.lock().await;
                    let (queue, next) = &mut *line;
                    let Some(first) = queue.recv().await else { return };
                    if queue.len() < BATCH_MAX {
                        sleep_until(*next).await;
                    }
                    let (batch, replies): (Vec<_>, Vec<_>) = take(first, queue).into_iter().unzip();
                    let (begun, last_took) =
                        (Instant::now(), Duration::from_micros(last_took_us.load(Ordering::Relaxed)));
                    *next = begun + (last_took * PAUSE_OF_TIME_TAKEN).min(PAUSE_MAX).max(pause);
                    drop(line);
                    if batch.is_empty() {
                        continue;
                    }
                    let are_several = batch.len() > 1;
                    let written = write(batch).await.unwrap_or_default();
                    let took_us = if are_several { begun.elapsed().as_micros() as u64 } else { 0 };
                    last_took_us.store(took_us, Ordering::Relaxed);
                    replies.into_iter().zip(written).for_each(|(reply, written)| _ = reply.send(written));
                }
            });
        }
        Self { queue }
    }

    /// Writes an item with others. An item whose caller hangs up before its turn is not written.
    ///
    /// # Errors
    /// `TooMany` if too many wait; nothing is written then. `Unknown` if it is not known whether the item was written.
    pub async fn write(&self, item: T) -> Result<R, BatchError> {
        let (reply, replied) = oneshot::channel();
        self.queue.try_send((item, reply)).map_err(|_| BatchError::TooMany)?;
        timeout(ANSWER_MAX, replied).await.ok().and_then(Result::ok).ok_or(BatchError::Unknown)
    }
}

impl<T, R> Clone for Batcher<T, R> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone() }
    }
}

/// A batch of those who still wait for their replies.
fn take<T, R>(first: Queued<T, R>, queue: &mut mpsc::Receiver<Queued<T, R>>) -> Vec<Queued<T, R>> {
    let others = std::iter::from_fn(|| queue.try_recv().ok());
    std::iter::once(first).chain(others).filter(|(_, reply)| !reply.is_closed()).take(BATCH_MAX).collect()
}
