//! Grants an instance's share of a limit from its own memory while the limiter's Redis cannot be asked.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::Mutex;
use uuid::Uuid;

use crate::domain::limiter::{Algorithm, Parameters, State, Verdict};

/// The keys of one policy, limited by the pure models. The counts in Redis are not known here: in the first window after
/// the change, callers may use up both limits.
pub(super) struct LocalLimiter {
    began: Instant,
    keys: Mutex<HashMap<Box<str>, State>>,
}

impl Default for LocalLimiter {
    fn default() -> Self {
        Self { began: Instant::now(), keys: Mutex::default() }
    }
}

impl LocalLimiter {
    /// The most keys; when there are more, a new key is refused.
    const KEYS_MAX: usize = 10_000;
    /// When a refused caller may ask again, where no limiter says it.
    const RETRY_MS: i64 = 1_000;

    /// Takes permits from this instance's share; `share_of` returns its share of a number.
    pub fn take(&self, whole: &Algorithm, key: &str, permits: u32, share_of: impl Fn(i64) -> i64) -> Verdict {
        let refused = Verdict { granted: false, remaining: 0, retry_after_ms: Self::RETRY_MS, ..Verdict::UNLIMITED };
        let Some(share) = share(whole, share_of) else { return refused };
        let mut keys = self.keys.lock();
        if keys.len() >= Self::KEYS_MAX && !keys.contains_key(key) {
            return refused;
        }
        let now_us = i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX);
        let state = keys.entry(key.into()).or_default();
        share.take(state, now_us, permits.into(), Uuid::new_v4()).unwrap_or(refused)
    }
}

/// The same algorithm with a share of its permits; `None` where the share is 0.
fn share(whole: &Algorithm, share_of: impl Fn(i64) -> i64) -> Option<Algorithm> {
    let Parameters { limit, capacity, rate, window_ms, lease_ms } = whole.parameters();
    let (limit, capacity, rate) = (limit.map(&share_of), capacity.map(&share_of), rate.map(&share_of));
    Algorithm::new(whole.kind(), &Parameters { limit, capacity, rate, window_ms, lease_ms }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::limiter::AlgorithmKind;

    #[test]
    fn the_shares_of_all_instances_are_the_limit() {
        let window = Parameters { limit: Some(7), window_ms: Some(1000), ..Parameters::default() };
        let whole = Algorithm::new(AlgorithmKind::FixedWindow, &window).unwrap();
        let granted = |rank: i64| {
            let local = LocalLimiter { began: Instant::now(), ..LocalLimiter::default() };
            let share = |limit: i64| limit / 3 + i64::from(rank < limit % 3);
            (0..10).filter(|_| local.take(&whole, "k", 1, share).granted).count()
        };
        assert_eq!([granted(0), granted(1), granted(2)], [3, 2, 2]);
        let one = Algorithm::new(AlgorithmKind::FixedWindow, &Parameters { limit: Some(1), ..window }).unwrap();
        assert!(!LocalLimiter::default().take(&one, "k", 1, |_| 0).granted, "a share of 0 grants nothing");
    }
}
