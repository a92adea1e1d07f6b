//! Grants an instance's share of a limit from its own memory while the limiter's Redis cannot be asked.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uuid::Uuid;

use seckill_domain::limiter::{Algorithm, Parameters, Receipt, State, Verdict};
use seckill_redis::limiter::Take;

/// The keys of one policy, limited by the pure models. Redis's counts are unknown here: in the first window, callers may use up both limits.
pub(super) struct LocalLimiter {
    began: Instant,
    keys_max: usize,
    keys: Mutex<Keys>,
}

#[derive(Default)]
struct Keys {
    by_name: HashMap<Box<str>, Key>,
    /// Before this time, idle keys are not looked for again.
    search_from_us: i64,
}

/// A key, and when its state equals a new one.
#[derive(Default)]
struct Key {
    state: State,
    idle_from_us: i64,
}

impl Default for LocalLimiter {
    fn default() -> Self {
        Self { began: Instant::now(), keys_max: Self::KEYS_MAX, keys: Mutex::default() }
    }
}

impl LocalLimiter {
    /// When there are more keys, idle ones are forgotten; without idle ones, a new key is refused.
    const KEYS_MAX: usize = 10_000;
    /// The least time between two searches for idle keys, which look at all keys.
    const SEARCH_EVERY: Duration = Duration::from_millis(100);
    /// The retry delay where no limiter says it.
    const RETRY_MS: i64 = 1_000;

    /// `share_of` returns this instance's share of a number.
    pub(crate) fn take(&self, take: &Take<'_>, key: &str, share_of: impl Fn(i64) -> i64) -> Verdict {
        let refused = Verdict { granted: false, remaining: 0, retry_after_ms: Self::RETRY_MS, ..Verdict::UNLIMITED };
        let Some(share) = share(take.algorithm, share_of) else { return refused };
        let now_us = self.now_us();
        let mut keys = self.keys.lock();
        if !keys.by_name.contains_key(key) && !keys.make_room(self.keys_max, now_us) {
            return refused;
        }
        let key = keys.by_name.entry(key.into()).or_default();
        let lease = take.lease.unwrap_or_else(Uuid::new_v4);
        let verdict = share.take(&mut key.state, now_us, take.permits.into(), lease).unwrap_or(refused);
        key.idle_from_us = now_us.saturating_add(verdict.reset_ms.saturating_mul(1000));
        verdict
    }

    /// Gives permits back that were taken a moment ago.
    pub(crate) fn give_back(&self, take: &Take<'_>, key: &str, receipt: Receipt, share_of: impl Fn(i64) -> i64) {
        let (now_us, mut keys) = (self.now_us(), self.keys.lock());
        if let Some((share, key)) = share(take.algorithm, share_of).zip(keys.by_name.get_mut(key)) {
            let lease = take.lease.unwrap_or_default();
            share.give_back(&mut key.state, now_us, take.permits.into(), receipt, lease);
        }
    }

    /// Returns `false` when the lease was not granted here, or was given back before.
    pub(crate) fn release(&self, key: &str, lease: Uuid) -> bool {
        self.keys.lock().by_name.get_mut(key).is_some_and(|key| key.state.release(lease))
    }

    fn now_us(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}

impl Keys {
    /// Whether there is room for one more key.
    fn make_room(&mut self, keys_max: usize, now_us: i64) -> bool {
        if self.by_name.len() >= keys_max && now_us >= self.search_from_us {
            self.by_name.retain(|_, key| key.idle_from_us > now_us);
            self.search_from_us = now_us + LocalLimiter::SEARCH_EVERY.as_micros() as i64;
        }
        self.by_name.len() < keys_max
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
    use seckill_domain::limiter::{AlgorithmKind, Parameters, SlotKey};

    fn window(limit: i64, window_ms: i64) -> Algorithm {
        let window = Parameters { limit: Some(limit), window_ms: Some(window_ms), ..Parameters::default() };
        Algorithm::new(AlgorithmKind::FixedWindow, &window).unwrap()
    }

    /// Whether the limiter grants a permit of the share.
    fn take(local: &LocalLimiter, algorithm: &Algorithm, key: &str, lease: Uuid, share: impl Fn(i64) -> i64) -> bool {
        let slot = &SlotKey::new("shop", "1", key, false);
        local.take(&Take { slot, algorithm, permits: 1, lease: Some(lease), has_line: false }, key, share).granted
    }

    #[test]
    fn the_shares_of_all_instances_are_the_limit() {
        let granted = |rank: i64| {
            let local = LocalLimiter::default();
            let share = |limit: i64| limit / 3 + i64::from(rank < limit % 3);
            (0..10).filter(|_| take(&local, &window(7, 60_000), "k", Uuid::nil(), share)).count()
        };
        assert_eq!([granted(0), granted(1), granted(2)], [3, 2, 2]);
        let none = take(&LocalLimiter::default(), &window(1, 60_000), "k", Uuid::nil(), |_| 0);
        assert!(!none, "a share of 0 grants nothing");
    }

    #[test]
    fn a_lease_can_be_given_back_once() {
        let one = Parameters { limit: Some(1), lease_ms: Some(60_000), ..Parameters::default() };
        let places = Algorithm::new(AlgorithmKind::Concurrency, &one).unwrap();
        let (local, lease) = (LocalLimiter::default(), Uuid::new_v4());
        let take = |lease| take(&local, &places, "k", lease, |whole| whole);
        assert!(take(lease) && !take(Uuid::new_v4()));
        assert!(!local.release("k", Uuid::new_v4()));
        assert!(local.release("k", lease) && !local.release("k", lease));
        assert!(take(Uuid::new_v4()));
    }

    #[test]
    fn idle_keys_make_room_and_others_do_not() {
        let local = LocalLimiter { keys_max: 3, ..LocalLimiter::default() };
        let (day, moment) = (window(1, 86_400_000), window(1, 100));
        let take = |algorithm, key| take(&local, algorithm, key, Uuid::nil(), |whole| whole);
        assert!(take(&day, "a") && take(&day, "b") && take(&moment, "c"));
        let deadline = Instant::now() + Duration::from_secs(30);
        while !take(&day, "d") {
            assert!(Instant::now() < deadline, "the idle key was not forgotten");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!take(&day, "e"), "no key is idle");
        assert!(!take(&day, "a"), "its count was forgotten");
    }
}
