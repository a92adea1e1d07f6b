//! An instance's share of a limit, granted from its own memory while the limiter's Redis cannot be asked.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use uuid::Uuid;

use crate::domain::limiter::{Algorithm, Parameters, State, Verdict};

/// One policy's keys, by the pure models that the scripts are tested against. What was counted in Redis is not known
/// here: for a window's length after the change, both may be used up.
pub struct LocalLimiter {
    began: Instant,
    keys: Mutex<HashMap<Box<str>, State>>,
}

impl Default for LocalLimiter {
    fn default() -> Self {
        Self { began: Instant::now(), keys: Mutex::default() }
    }
}

impl LocalLimiter {
    /// Keys that are kept at once; beyond, a new one is refused.
    const KEYS_MAX: usize = 10_000;
    /// When a refused caller may ask again, where nothing better is known.
    const RETRY_MS: i64 = 1_000;

    /// Takes permits from this instance's part; `share_of` says how much of a number that is.
    pub fn take(&self, whole: &Algorithm, key: &str, permits: u32, share_of: impl Fn(i64) -> i64) -> Verdict {
        let refused = Verdict { granted: false, remaining: 0, retry_after_ms: Self::RETRY_MS, ..Verdict::UNLIMITED };
        let Some(part) = part(whole, share_of) else { return refused };
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= Self::KEYS_MAX && !keys.contains_key(key) {
            return refused;
        }
        let now_us = i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX);
        let state = keys.entry(key.into()).or_default();
        part.take(state, now_us, permits.into(), Uuid::new_v4()).unwrap_or(refused)
    }
}

/// The same algorithm for a part of it: `None` where a part of nothing is left.
fn part(whole: &Algorithm, share_of: impl Fn(i64) -> i64) -> Option<Algorithm> {
    let was = whole.parameters();
    let share = |number: Option<i64>| number.map(&share_of);
    let parts = Parameters { limit: share(was.limit), capacity: share(was.capacity), rate: share(was.rate), ..was };
    Algorithm::new(whole.kind(), &parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::limiter::AlgorithmKind;

    #[test]
    fn the_parts_of_all_make_the_limit() {
        let window = Parameters { limit: Some(7), window_ms: Some(1000), ..Parameters::default() };
        let whole = Algorithm::new(AlgorithmKind::FixedWindow, &window).unwrap();
        let granted = |rank: i64| {
            let local = LocalLimiter { began: Instant::now(), ..LocalLimiter::default() };
            let share = |limit: i64| limit / 3 + i64::from(rank < limit % 3);
            (0..10).filter(|_| local.take(&whole, "k", 1, share).granted).count()
        };
        assert_eq!([granted(0), granted(1), granted(2)], [3, 2, 2]);
        let one = Algorithm::new(AlgorithmKind::FixedWindow, &Parameters { limit: Some(1), ..window }).unwrap();
        assert!(!LocalLimiter::default().take(&one, "k", 1, |_| 0).granted, "an instance may have no part at all");
    }
}
