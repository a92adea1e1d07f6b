//! Sales with a row that another transaction keeps locked. Work on them is put off for a while, so that it does not delay other sales.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::ids::SaleId;

/// The sales that were found locked a moment ago, shared by all tasks that use them.
#[derive(Debug)]
pub struct LockedSales {
    put_off_for: Duration,
    until: Mutex<HashMap<SaleId, Instant>>,
    /// Saves the lock while there is none.
    is_any: AtomicBool,
}

impl LockedSales {
    pub fn new(put_off_for: Duration) -> Self {
        Self { put_off_for, until: Mutex::default(), is_any: AtomicBool::new(false) }
    }

    pub fn put_off_for(&self) -> Duration {
        self.put_off_for
    }

    pub fn insert(&self, sale: SaleId) {
        self.until.lock().insert(sale, Instant::now() + self.put_off_for);
        self.is_any.store(true, Ordering::Release);
    }

    pub fn is_any(&self) -> bool {
        if !self.is_any.load(Ordering::Acquire) {
            return false;
        }
        let (mut until, now) = (self.until.lock(), Instant::now());
        until.retain(|_, until| now < *until);
        self.is_any.store(!until.is_empty(), Ordering::Release);
        !until.is_empty()
    }

    pub fn all(&self) -> Vec<SaleId> {
        if self.is_any() { self.until.lock().keys().copied().collect() } else { Vec::new() }
    }

    pub fn contains(&self, sale: SaleId) -> bool {
        self.is_any() && self.until.lock().contains_key(&sale)
    }
}
