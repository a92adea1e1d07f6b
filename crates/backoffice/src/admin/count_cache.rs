//! Counts that take the longer, the more a sale has sold. A page that renews itself asks for them again and again; PostgreSQL is asked
//! as seldom as the live page does it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moka::future::Cache;
use moka::policy::EvictionPolicy;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use seckill_domain::ids::SaleId;
use seckill_postgres::LedgerError;
use seckill_postgres::sales::live::REST_FACTOR;

/// Sales whose counts are kept: more than are looked at in a minute.
const SALES_MAX: u64 = 64;
/// A page waits this long for a count. A longer count goes on, and the page's next renewal finds it.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Counts of one kind, of the sales that were looked at last. One is read at a time.
pub(super) struct CountCache<T> {
    /// The last count of a sale, and when it may be read again. `None` if it could not be read in time.
    kept: Cache<SaleId, (Option<Arc<T>>, Instant)>,
    turn: Arc<Semaphore>,
}

impl<T: Send + Sync + 'static> CountCache<T> {
    pub(super) fn new() -> Self {
        let kept = Cache::builder().max_capacity(SALES_MAX).eviction_policy(EvictionPolicy::lru()).build();
        Self { kept, turn: Arc::new(Semaphore::new(1)) }
    }

    /// A sale's count: the last one until PostgreSQL has rested from it, then a new one. `None` if it is not known and takes too long.
    /// `read` always runs to its end, even when the page waits no longer, so that no connection is left in the middle of a statement.
    pub(super) async fn of<F>(&self, sale: SaleId, read: impl FnOnce() -> F) -> Option<Arc<T>>
    where
        F: Future<Output = Result<Option<T>, LedgerError>> + Send + 'static,
    {
        let until = tokio::time::Instant::now() + WAIT_MAX;
        if let Some(count) = self.fresh(sale).await {
            return count;
        }
        let Ok(Ok(turn)) = timeout_at(until, Arc::clone(&self.turn).acquire_owned()).await else {
            return self.last(sale).await;
        };
        // Another request may have read it while this one waited.
        if let Some(count) = self.fresh(sale).await {
            return count;
        }
        let (kept, reading) = (self.kept.clone(), read());
        let reading = tokio::spawn(async move {
            let began = Instant::now();
            let count =
                reading.await.inspect_err(|error| tracing::debug!(%sale, %error, "a sale's figures not counted"));
            let count = count.ok().flatten().map(Arc::new);
            let now = Instant::now();
            kept.insert(sale, (count.clone(), now + (now - began) * REST_FACTOR)).await;
            drop(turn);
            count
        });
        match timeout_at(until, reading).await {
            Ok(Ok(count)) => count,
            Ok(Err(_)) | Err(_) => self.last(sale).await,
        }
    }

    async fn fresh(&self, sale: SaleId) -> Option<Option<Arc<T>>> {
        let (count, due) = self.kept.get(&sale).await?;
        (Instant::now() < due).then_some(count)
    }

    async fn last(&self, sale: SaleId) -> Option<Arc<T>> {
        self.kept.get(&sale).await.and_then(|(count, _)| count)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_count_is_read_again_when_postgresql_has_rested_from_it() {
        let (counts, sale, reads) = (CountCache::new(), SaleId::from_db(1), Arc::new(AtomicUsize::new(0)));
        let read = |takes| {
            let reads = Arc::clone(&reads);
            async move {
                tokio::time::sleep(takes).await;
                Ok(Some(reads.fetch_add(1, Ordering::Relaxed)))
            }
        };
        // It rests for 9.5 s, longer than this test takes.
        let slow = Duration::from_millis(500);
        // If this thread is held up, the page waits too long, and the next page finds the count.
        let first = loop {
            if let Some(first) = counts.of(sale, || read(slow)).await {
                break first;
            }
        };
        assert_eq!(*first, 0);
        assert_eq!(counts.of(sale, || read(slow)).await.as_deref(), Some(&0));
        assert_eq!(counts.of(SaleId::from_db(2), || read(Duration::ZERO)).await.as_deref(), Some(&1));
        assert_eq!(reads.load(Ordering::Relaxed), 2);
    }
}
