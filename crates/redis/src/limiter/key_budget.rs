//! Bounds the memory of Redis for the limiters of one application. A key contains its caller's text and lives for a window: without a
//! budget, one caller could fill the memory that all share.
//!
//! Each instance counts its own keys, by the sizes of crates/domain/src/limiter/footprint.rs. So an application's share is at most the budget times
//! the number of instances. After a restart, an instance counts only keys that are used again.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::Take;

/// Ended keys that one call removes.
const ENDED_MAX: usize = 20;
/// When a caller without room for its key may ask again.
const RETRY_MIN_MS: u64 = 1_000;
const RETRY_MAX_MS: u64 = 60_000;

pub(super) struct KeyBudget {
    bytes_max: u64,
    began: Instant,
    hasher: RandomState,
    apps: Mutex<HashMap<String, AppKeys>>,
    /// Redis has too little memory for more keys.
    is_scarce: AtomicBool,
}

/// The live keys of one application.
#[derive(Default)]
struct AppKeys {
    bytes: u64,
    by_id: HashMap<u64, LiveKey>,
    /// By end. The end of an id may be too early here.
    by_end: BTreeSet<(u64, u64)>,
}

struct LiveKey {
    bytes: u64,
    grants: u64,
    ends_ms: u64,
    /// The end in `by_end`.
    listed_ms: u64,
}

impl KeyBudget {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let (began, hasher) = (Instant::now(), RandomState::new());
        Self { bytes_max, began, hasher, apps: Mutex::default(), is_scarce: AtomicBool::new(false) }
    }

    pub(crate) fn set_scarce(&self, is_scarce: bool) {
        self.is_scarce.store(is_scarce, Ordering::Relaxed);
    }

    /// Counts the bytes that a grant would add.
    ///
    /// # Errors
    /// There is no room; when the caller may ask again, in ms. A grant that adds nothing needs no room.
    pub(crate) fn claim(&self, take: &Take<'_>) -> Result<(), u64> {
        let (slot, algorithm) = (take.slot, take.algorithm);
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let ends_ms = now_ms.saturating_add(algorithm.life_ms());
        let id = self.hasher.hash_one((slot, algorithm.kind()));
        let (grant_bytes, grants_max) = algorithm.grant_bytes(take.permits);
        let mut apps = self.apps.lock();
        if !apps.contains_key(slot.app()) {
            apps.insert(slot.app().to_owned(), AppKeys::default());
        }
        let Some(keys) = apps.get_mut(slot.app()) else { return Ok(()) };
        keys.remove_ended(now_ms);
        let known = keys.by_id.get(&id);
        let own = if known.is_some() { 0 } else { algorithm.key_bytes(slot) };
        let grows = grant_bytes > 0 && known.is_none_or(|key| key.grants < grants_max);
        let added = own + if grows { grant_bytes } else { 0 };
        let has_room = keys.bytes + added <= self.bytes_max && !self.is_scarce.load(Ordering::Relaxed);
        if added > 0 && !has_room {
            let first_ends_ms = keys.by_end.first().map_or(now_ms, |(ends_ms, _)| *ends_ms);
            return Err(first_ends_ms.saturating_sub(now_ms).clamp(RETRY_MIN_MS, RETRY_MAX_MS));
        }
        keys.bytes += added;
        let key = keys.by_id.entry(id).or_insert_with(|| {
            keys.by_end.insert((ends_ms, id));
            LiveKey { bytes: 0, grants: 0, ends_ms, listed_ms: ends_ms }
        });
        key.bytes += added;
        key.grants += u64::from(grows);
        key.ends_ms = key.ends_ms.max(ends_ms);
        Ok(())
    }

    /// Corrects the count of a key by its permits in use: it has at most as many grants, and does not exist without any.
    pub(crate) fn correct(&self, take: &Take<'_>, in_use: u64) {
        let id = self.hasher.hash_one((take.slot, take.algorithm.kind()));
        let mut apps = self.apps.lock();
        let Some(keys) = apps.get_mut(take.slot.app()) else { return };
        let Some(key) = keys.by_id.get_mut(&id) else { return };
        key.grants = key.grants.min(in_use);
        let (most_a_grant, _) = take.algorithm.grant_bytes(u32::MAX);
        let most = if in_use == 0 { 0 } else { take.algorithm.key_bytes(take.slot) + key.grants * most_a_grant };
        keys.bytes -= key.bytes.saturating_sub(most);
        key.bytes = key.bytes.min(most);
        if in_use == 0 {
            keys.by_end.remove(&(key.listed_ms, id));
            keys.by_id.remove(&id);
        }
    }
}

impl AppKeys {
    fn remove_ended(&mut self, now_ms: u64) {
        for _ in 0..ENDED_MAX {
            let Some(&(ends_ms, id)) = self.by_end.first() else { return };
            if ends_ms > now_ms {
                return;
            }
            self.by_end.remove(&(ends_ms, id));
            match self.by_id.get_mut(&id) {
                Some(key) if key.ends_ms > now_ms => {
                    key.listed_ms = key.ends_ms;
                    self.by_end.insert((key.ends_ms, id));
                }
                Some(key) => {
                    self.bytes -= key.bytes;
                    self.by_id.remove(&id);
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seckill_domain::limiter::{Algorithm, AlgorithmKind, Parameters, SlotKey};

    fn window(window_ms: i64) -> Algorithm {
        let window = Parameters { limit: Some(10), window_ms: Some(window_ms), ..Parameters::default() };
        Algorithm::new(AlgorithmKind::FixedWindow, &window).unwrap()
    }

    fn claim(budget: &KeyBudget, app: &str, key: &str, algorithm: &Algorithm) -> bool {
        let slot = SlotKey::new(app, "policy", key, false);
        budget.claim(&Take { slot: &slot, algorithm, permits: 1, lease: None, has_line: false }).is_ok()
    }

    #[test]
    fn what_is_given_back_or_was_never_made_is_not_counted() {
        let budget = KeyBudget::new(10_000);
        let leases = Parameters { limit: Some(1_000), lease_ms: Some(60_000), ..Parameters::default() };
        let leases = Algorithm::new(AlgorithmKind::Concurrency, &leases).unwrap();
        let slot = SlotKey::new("app", "policy", "k", false);
        let take = Take { slot: &slot, algorithm: &leases, permits: 1, lease: None, has_line: false };
        for _ in 0..1_000 {
            budget.claim(&take).unwrap();
            budget.correct(&take, 2);
        }
        assert!(budget.apps.lock()["app"].bytes < 2_000);
        let window = window(86_400_000);
        for n in 0..1_000 {
            let slot = SlotKey::new("app", "policy", &n.to_string(), false);
            let refused = Take { slot: &slot, algorithm: &window, permits: 1, lease: None, has_line: false };
            budget.claim(&refused).unwrap();
            budget.correct(&refused, 0);
        }
        let apps = budget.apps.lock();
        assert_eq!((apps["app"].by_id.len(), apps["app"].by_end.len()), (1, 1));
    }

    #[test]
    fn keys_that_have_ended_make_room_and_scarce_memory_leaves_none() {
        let budget = KeyBudget::new(400);
        let mut keys = AppKeys { bytes: 400, ..AppKeys::default() };
        for (id, ends_ms) in [(1, 0), (2, u64::MAX)] {
            keys.by_id.insert(id, LiveKey { bytes: 200, grants: 0, ends_ms, listed_ms: 0 });
            keys.by_end.insert((0, id));
        }
        budget.apps.lock().insert("app".to_owned(), keys);
        let window = window(1_000);
        assert!(!claim(&budget, "app", "k", &window), "200 bytes are free");
        assert_eq!(budget.apps.lock()["app"].by_end.first(), Some(&(u64::MAX, 2)), "it was asked for again");
        let budget = KeyBudget::new(10_000);
        assert!(claim(&budget, "app", "k", &window));
        budget.set_scarce(true);
        assert_eq!([claim(&budget, "app", "k", &window), claim(&budget, "app", "new", &window)], [true, false]);
        budget.set_scarce(false);
        assert!(claim(&budget, "app", "new", &window));
    }
}
