//! Remembers refused callers until they may ask again: a caller that ignores a refusal costs no call to Redis.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The refused callers of one policy. It is bounded; Redis answers the callers that do not fit.
#[derive(Default)]
pub(super) struct RefusalCache {
    callers: Mutex<HashMap<Box<str>, Refusal>>,
}

#[derive(Clone, Copy)]
struct Refusal {
    until: Instant,
    permits: u32,
}

impl RefusalCache {
    const CALLERS_MAX: usize = 10_000;

    /// The rest of a refused caller's wait, if it asks for no fewer permits than before.
    pub(crate) fn wait_of(&self, key: &str, permits: u32) -> Option<Duration> {
        let callers = self.callers.lock();
        let refusal = callers.get(key).filter(|refusal| permits >= refusal.permits)?;
        let left = refusal.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    pub(crate) fn remember(&self, key: &str, permits: u32, wait: Duration) {
        let now = Instant::now();
        let mut callers = self.callers.lock();
        if callers.len() >= Self::CALLERS_MAX {
            callers.retain(|_, refusal| refusal.until > now);
        }
        if callers.len() < Self::CALLERS_MAX {
            callers.insert(key.into(), Refusal { until: now + wait, permits });
        }
    }

    pub(crate) fn clear(&self) {
        self.callers.lock().clear();
    }
}
