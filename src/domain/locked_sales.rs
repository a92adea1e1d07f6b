//! Sales of which another transaction keeps a row locked. Work on them is put off for a while, so that work on other sales does
//! not wait for the same lock again and again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::ids::SaleId;

/// The sales that were found locked a moment ago; shared by all who would wait for them.
#[derive(Debug)]
pub struct LockedSales {
    put_off_for: Duration,
    until: Mutex<HashMap<SaleId, Instant>>,
    /// Whether there is one: so that the question costs nothing while there is none.
    is_any: AtomicBool,
}

impl LockedSales {
    /// A sale counts as locked for so long after it was found to be.
    pub fn new(put_off_for: Duration) -> Self {
        Self { put_off_for, until: Mutex::default(), is_any: AtomicBool::new(false) }
    }

    /// How long to put off work on such a sale.
    pub fn put_off_for(&self) -> Duration {
        self.put_off_for
    }

    /// The sale was found locked now.
    pub fn insert(&self, sale: SaleId) {
        self.until.lock().insert(sale, Instant::now() + self.put_off_for);
        self.is_any.store(true, Ordering::Release);
    }

    /// Whether any sale counts as locked.
    pub fn is_any(&self) -> bool {
        if !self.is_any.load(Ordering::Acquire) {
            return false;
        }
        let (mut until, now) = (self.until.lock(), Instant::now());
        until.retain(|_, until| now < *until);
        self.is_any.store(!until.is_empty(), Ordering::Release);
        !until.is_empty()
    }

    /// All that count as locked.
    pub fn all(&self) -> Vec<SaleId> {
        if self.is_any() { self.until.lock().keys().copied().collect() } else { Vec::new() }
    }

    /// Whether this sale counts as locked.
    pub fn contains(&self, sale: SaleId) -> bool {
        self.is_any() && self.until.lock().contains_key(&sale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sale_counts_as_locked_for_a_while_and_others_do_not() {
        let (one, other) = (SaleId::from_db(1), SaleId::from_db(2));
        let locked = LockedSales::new(Duration::from_secs(600));
        assert!(!locked.is_any() && !locked.contains(one));
        locked.insert(one);
        assert!(locked.is_any() && locked.contains(one) && !locked.contains(other));
        assert_eq!(locked.all(), [one]);
        let passed = LockedSales::new(Duration::ZERO);
        passed.insert(one);
        assert!(!passed.contains(one) && !passed.is_any());
    }
}
