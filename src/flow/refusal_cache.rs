//! Callers who were refused, remembered until their time is up: one who ignores it is refused again at no cost.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Those of one policy. Bounded: beyond, Redis is asked as if nobody remembered.
#[derive(Default)]
pub struct RefusalCache {
    until: Mutex<HashMap<Box<str>, Bar>>,
}

#[derive(Clone, Copy)]
struct Bar {
    until: Instant,
    permits: u32,
}

impl RefusalCache {
    const CALLERS_MAX: usize = 10_000;

    /// For how much longer this caller is to wait, if he was told so and asks for no less than then.
    pub fn recall(&self, key: &str, permits: u32) -> Option<Duration> {
        let until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = until.get(key).filter(|bar| permits >= bar.permits)?;
        let left = bar.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Remembers what a caller was told.
    pub fn note(&self, key: &str, permits: u32, wait: Duration) {
        let now = Instant::now();
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        if until.len() >= Self::CALLERS_MAX {
            until.retain(|_, bar| bar.until > now);
        }
        if until.len() < Self::CALLERS_MAX {
            until.insert(key.into(), Bar { until: now + wait, permits });
        }
    }

    /// Something was given back: what was told may be true no more.
    pub fn forget(&self) {
        self.until.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
