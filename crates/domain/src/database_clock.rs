//! The database's time. A process never reads its own wall clock.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// A slower answer does not set the clock: it says little about the time now.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// PostgreSQL's clock when it was last read, plus the monotonic clock since.
#[derive(Debug)]
pub struct DatabaseClock {
    started: Instant,
    /// PostgreSQL's time at `started`, in milliseconds since the epoch.
    base_ms: AtomicI64,
}

impl DatabaseClock {
    pub fn set_to(now_ms: i64) -> Self {
        Self { started: Instant::now(), base_ms: AtomicI64::new(now_ms) }
    }

    /// Sets the clock to PostgreSQL's answer to a question at `asked_at`.
    pub fn set(&self, now_ms: i64, asked_at: Instant) {
        if asked_at.elapsed() <= ANSWER_MAX {
            self.base_ms.store(now_ms - self.elapsed_ms(), Ordering::Relaxed);
        }
    }

    /// Milliseconds since the epoch.
    pub fn now_ms(&self) -> i64 {
        self.base_ms.load(Ordering::Relaxed) + self.elapsed_ms()
    }

    fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}
