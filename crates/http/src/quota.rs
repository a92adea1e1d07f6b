//! A limit for one caller on one instance: a fixed window, in memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// Callers in a window, about 16 MB. With more, a new window begins.
const COUNTED_MAX: usize = 500_000;

pub(crate) struct Quota {
    max: u32,
    length: Duration,
    hasher: RandomState,
    window: Mutex<Window>,
}

struct Window {
    began: Instant,
    /// By the caller's hash. After a collision two callers share a quota.
    counts: HashMap<u64, u32>,
}

/// The caller has asked too often: the limit, the length of its window, and when the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooOften {
    pub(crate) max: u32,
    pub(crate) window: Duration,
    pub(crate) retry: Duration,
}

impl Quota {
    pub(crate) fn new(max: u32, window: Duration) -> Self {
        let counts = Mutex::new(Window { began: Instant::now(), counts: HashMap::new() });
        Self { max, length: window, hasher: RandomState::new(), window: counts }
    }

    /// Counts a request, unless it is one too many.
    pub(crate) fn count(&self, caller: &str) -> Result<(), TooOften> {
        let key = self.hasher.hash_one(caller);
        let mut window = self.current();
        self.check(&window, key)?;
        *window.counts.entry(key).or_default() += 1;
        Ok(())
    }

    /// The current window, or a new one if that is over or full.
    fn current(&self) -> MutexGuard<'_, Window> {
        let mut window = self.window.lock();
        if window.began.elapsed() >= self.length || window.counts.len() >= COUNTED_MAX {
            window.began = Instant::now();
            window.counts.clear();
        }
        window
    }

    fn check(&self, window: &Window, key: u64) -> Result<(), TooOften> {
        if window.counts.get(&key).is_none_or(|count| *count < self.max) {
            return Ok(());
        }
        Err(TooOften { max: self.max, window: self.length, retry: self.length.saturating_sub(window.began.elapsed()) })
    }
}

/// A limit for buyers and one for addresses. A request that one of them refuses counts against neither.
pub struct CallerQuotas {
    buyers: Quota,
    addresses: Quota,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerTooOften {
    Buyer(TooOften),
    Address(TooOften),
}

impl CallerQuotas {
    pub fn new(buyer_max: u32, address_max: u32, window: Duration) -> Self {
        Self { buyers: Quota::new(buyer_max, window), addresses: Quota::new(address_max, window) }
    }

    /// Counts a request of this buyer from this address, unless it is one too many.
    pub fn count(&self, buyer: &str, address: &str) -> Result<(), CallerTooOften> {
        let key = self.buyers.hasher.hash_one(buyer);
        // Always locked in this order.
        let mut window = self.buyers.current();
        self.buyers.check(&window, key).map_err(CallerTooOften::Buyer)?;
        self.addresses.count(address).map_err(CallerTooOften::Address)?;
        *window.counts.entry(key).or_default() += 1;
        Ok(())
    }
}
