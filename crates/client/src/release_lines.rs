//! The queue of leases that are returned in the background.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Leases that may be queued for their return, and how many are in flight at once. Further leases are left to expire, like those of
/// a dead holder.
const WAITING_MAX: usize = 1024;
const AT_ONCE_MAX: usize = 16;
/// The interval at which a drain checks whether it is done.
const DRAIN_POLL: Duration = Duration::from_millis(10);

/// The leases to return. Their number and those in flight are bounded, so permits that end together cause no burst.
#[derive(Debug, Clone)]
pub(crate) struct ReleaseLines {
    pub waiting: Arc<Semaphore>,
    pub at_once: Arc<Semaphore>,
}

impl Default for ReleaseLines {
    fn default() -> Self {
        Self { waiting: Arc::new(Semaphore::new(WAITING_MAX)), at_once: Arc::new(Semaphore::new(AT_ONCE_MAX)) }
    }
}

impl ReleaseLines {
    /// Waits until all leases are settled.
    pub(crate) async fn drain(&self, within: Duration) -> bool {
        let empty = async {
            while self.waiting.available_permits() < WAITING_MAX {
                sleep(DRAIN_POLL).await;
            }
        };
        timeout(within, empty).await.is_ok()
    }
}
