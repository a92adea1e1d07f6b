//! The lines of leases that are given back in the background.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Leases that wait to be given back, and how many of them are under way at once. A lease beyond the first number ends by itself
/// after its policy's time, as one does whose holder died.
const WAITING_MAX: usize = 1024;
const AT_ONCE_MAX: usize = 16;
/// How often a drain looks whether it is done.
const DRAIN_POLL: Duration = Duration::from_millis(10);

/// The leases on their way back: bounded in number, and few at once, so that a crowd whose permits end together is no storm.
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
    /// Waits until no lease is on its way.
    pub(crate) async fn drain(&self, within: Duration) -> bool {
        let empty = async {
            while self.waiting.available_permits() < WAITING_MAX {
                sleep(DRAIN_POLL).await;
            }
        };
        timeout(within, empty).await.is_ok()
    }
}
