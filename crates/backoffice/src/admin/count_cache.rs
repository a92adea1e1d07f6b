//! Counts that take the longer, the more a sale has sold. A page that renews itself asks for them again and again; PostgreSQL is asked
//! as seldom as the live page does it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use seckill_domain::ids::SaleId;
use seckill_postgres::LedgerError;
use seckill_postgres::sales::live::REST_FACTOR;

/// Sales whose counts are kept: more than are looked at in a minute, and more than a list has.
pub(super) const SALES_SHOWN_MAX: u64 = 64;
pub(super) const SALES_LISTED_MAX: u64 = 2_000;
/// A page waits this long for a count. A longer count goes on, and the page's next renewal finds it.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// A list may begin with counts that take this long together. Later ones take at most 5 % of PostgreSQL's time, however many sales are listed.
const BURST: Duration = Duration::from_secs(2);

/// Counts of one kind, of the sales that were looked at last. One is read at a time.
pub(super) struct CountCache<T> {
    /// The last count of a sale, and when it may be read again. `None` if it could not be read in time.
    kept: Cache<SaleId, (Option<Arc<T>>, Instant)>,
    turn: Arc<Semaphore>,
    /// When PostgreSQL will have rested from all counts for lists.
    rested_at: Arc<Mutex<Instant>>,
}

impl<T: Send + Sync + 'static> CountCache<T> {
    pub(super) fn new(sales_max: u64) -> Self {
        let kept = Cache::builder().max_capacity(sales_max).eviction_policy(EvictionPolicy::lru()).build();
        Self { kept, turn: Arc::new(Semaphore::new(1)), rested_at: Arc::new(Mutex::new(Instant::now())) }
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
            let (count, _) = read_into(&kept, sale, reading).await;
            drop(turn);
            count
        });
        match timeout_at(until, reading).await {
            Ok(Ok(count)) => count,
            Ok(Err(_)) | Err(_) => self.last(sale).await,
        }
    }

    /// The last counts of a list's sales. Unknown and old ones are counted first, one after another, while the list waits. The counting
    /// goes on when it waits no longer, up to a bound, and the next list has more of them.
    pub(super) async fn of_list<F>(
        &self,
        sales: &[SaleId],
        read: impl Fn(SaleId) -> F + Send + 'static,
    ) -> Vec<Option<Arc<T>>>
    where
        F: Future<Output = Result<Option<T>, LedgerError>> + Send + 'static,
    {
        let until = tokio::time::Instant::now() + WAIT_MAX;
        let (mut unknown, mut old) = (Vec::new(), Vec::new());
        for sale in sales {
            match self.kept.get(sale).await {
                None => unknown.push(*sale),
                Some((_, due)) if Instant::now() >= due => old.push(*sale),
                Some(_) => {}
            }
        }
        unknown.append(&mut old);
        if !unknown.is_empty()
            && let Ok(Ok(turn)) = timeout_at(until, Arc::clone(&self.turn).acquire_owned()).await
        {
            let (kept, rested_at) = (self.kept.clone(), Arc::clone(&self.rested_at));
            let counting = tokio::spawn(async move {
                for sale in unknown {
                    let now = Instant::now();
                    if *rested_at.lock() > now + BURST * (REST_FACTOR + 1) {
                        break;
                    }
                    let (_, took) = read_into(&kept, sale, read(sale)).await;
                    let mut rested_at = rested_at.lock();
                    *rested_at = (*rested_at).max(now) + took * (REST_FACTOR + 1);
                }
                drop(turn);
            });
            // What is not counted in time is counted for the next list.
            _ = timeout_at(until, counting).await;
        }
        join_all(sales.iter().map(|sale| self.last(*sale))).await
    }

    async fn fresh(&self, sale: SaleId) -> Option<Option<Arc<T>>> {
        let (count, due) = self.kept.get(&sale).await?;
        (Instant::now() < due).then_some(count)
    }

    async fn last(&self, sale: SaleId) -> Option<Arc<T>> {
        self.kept.get(&sale).await.and_then(|(count, _)| count)
    }
}

/// Reads a count and keeps it. Returns it with the time that it took.
async fn read_into<T: Send + Sync + 'static>(
    kept: &Cache<SaleId, (Option<Arc<T>>, Instant)>,
    sale: SaleId,
    reading: impl Future<Output = Result<Option<T>, LedgerError>>,
) -> (Option<Arc<T>>, Duration) {
    let began = Instant::now();
    let count = reading.await.inspect_err(|error| tracing::debug!(%sale, %error, "a sale's figures not counted"));
    let took = began.elapsed();
    // A count that fails leaves the last one.
    let count = match count.ok().flatten() {
        Some(count) => Some(Arc::new(count)),
        None => kept.get(&sale).await.and_then(|(before, _)| before),
    };
    kept.insert(sale, (count.clone(), Instant::now() + took * REST_FACTOR)).await;
    (count, took)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_count_is_read_again_when_postgresql_has_rested_from_it() {
        let (counts, sale, reads) =
            (CountCache::new(SALES_SHOWN_MAX), SaleId::from_db(1), Arc::new(AtomicUsize::new(0)));
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

    /// A list of sales that are counted quickly is whole at once. Slow counts stop at the bound, and a list that is shown again and again
    /// does not go beyond it.
    #[tokio::test]
    async fn a_list_counts_its_sales_within_a_bound() {
        let sales: Vec<SaleId> = (1..=50).map(SaleId::from_db).collect();
        for (takes_ms, reads_min, reads_max) in [(0, 50, 150), (200, 2, 12)] {
            let (counts, reads) = (CountCache::new(SALES_LISTED_MAX), Arc::new(AtomicUsize::new(0)));
            let mut known = 0;
            for _ in 0..3 {
                let reads = Arc::clone(&reads);
                let read = move |_| {
                    let reads = Arc::clone(&reads);
                    async move {
                        tokio::time::sleep(Duration::from_millis(takes_ms)).await;
                        Ok(Some(reads.fetch_add(1, Ordering::Relaxed)))
                    }
                };
                // A quick count is old at once, and is read again.
                let listed = counts.of_list(&sales, read).await.iter().flatten().count();
                assert!(listed >= known && (takes_ms > 0 || listed == 50), "{listed} after {known}");
                known = listed;
            }
            let reads = reads.load(Ordering::Relaxed);
            assert!((reads_min..=reads_max).contains(&reads), "{takes_ms} ms: {reads}");
        }
    }
}
