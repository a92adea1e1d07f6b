//! Batches concurrent requests into one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::TaskTracker;

const BATCH_MAX: usize = 256;
const LANES: usize = 2;
/// The shortest time between the starts of two batches, so that batches grow under load. A lone item is written at once. A channel that
/// sends callbacks one after another gets at most 50 answers per second.
pub const PAUSE: Duration = Duration::from_millis(20);
/// After a batch of several items, the next one starts this many times the batch's duration after it. If PostgreSQL is slow, batches grow.
const PAUSE_OF_TIME_TAKEN: u32 = 4;
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Queue limit in items. More are refused.
const QUEUE_MAX: usize = 20_000;
/// Time limit per item, with its wait.
const ANSWER_MAX: Duration = Duration::from_secs(7);

/// Collects items from all threads, and writes them in batches. Each item gets its own reply.
pub struct Batcher<T, R> {
    queue: mpsc::Sender<Queued<T, R>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The queue is full. Nothing was written.
    #[error("too many requests at once")]
    TooMany,
    #[error("whether it was written is unknown")]
    Unknown,
}

type Queued<T, R> = (T, oneshot::Sender<R>);

impl<T: Send + 'static, R: Send + 'static> Batcher<T, R> {
    /// `pause`: the shortest time between the starts of two batches. `write` returns a reply for each item, in order; `None` if the outcome
    /// is unknown. When the last handle is dropped, the tasks finish the queue and end.
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
            let (write, items, last_took_us) = (write.clone(), items.clone(), last_took_us.clone());
            tasks.spawn(async move {
                loop {
                    let mut line = items.lock().await;
                    let (queue, next) = &mut *line;
                    let Some(first) = queue.recv().await else { return };
                    if queue.len() < BATCH_MAX {
                        sleep_until(*next).await;
                    }
                    let (batch, replies): (Vec<_>, Vec<_>) = take(first, queue).into_iter().unzip();
                    let begun = Instant::now();
                    let last_took = Duration::from_micros(last_took_us.load(Ordering::Relaxed));
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

    /// Writes an item with others. If the caller hangs up before the write, the item is skipped.
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

/// Takes a batch, without items of callers that hung up.
fn take<T, R>(first: Queued<T, R>, queue: &mut mpsc::Receiver<Queued<T, R>>) -> Vec<Queued<T, R>> {
    let others = std::iter::from_fn(|| queue.try_recv().ok());
    std::iter::once(first).chain(others).filter(|(_, reply)| !reply.is_closed()).take(BATCH_MAX).collect()
}
