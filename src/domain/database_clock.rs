//! The database's time, as a process keeps it. The process's own wall clock is never read.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// The longest that an answer may take that sets the clock.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// PostgreSQL's clock as it was read last, carried on by the monotonic clock.
#[derive(Debug)]
pub struct DatabaseClock {
    started: Instant,
    /// PostgreSQL's time at `started`, in milliseconds since the epoch.
    base_ms: AtomicI64,
}

impl DatabaseClock {
    /// A clock that PostgreSQL's time has just been read for.
    pub fn set_to(now_ms: i64) -> Self {
        Self { started: Instant::now(), base_ms: AtomicI64::new(now_ms) }
    }

    /// Sets the clock to the time that PostgreSQL gave when it was asked at `asked_at`. An answer that took long says little
    /// about the time now, and is left out.
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
