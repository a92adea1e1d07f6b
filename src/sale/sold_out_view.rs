//! Whether sales are sold out, as pages show it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::domain::ids::SaleId;

/// One worker thread's cache: many pages cause few calls to Redis.
#[derive(Default)]
pub struct SoldOutView {
    seen: RefCell<HashMap<SaleId, (Instant, bool)>>,
}

impl SoldOutView {
    const GOOD_FOR: Duration = Duration::from_millis(200);
    const SALES_MAX: usize = 1024;

    pub(super) fn find(&self, sale: SaleId) -> Option<bool> {
        let seen = self.seen.borrow();
        seen.get(&sale).filter(|(at, _)| at.elapsed() < Self::GOOD_FOR).map(|(_, sold_out)| *sold_out)
    }

    pub(super) fn insert(&self, sale: SaleId, sold_out: bool) {
        let mut seen = self.seen.borrow_mut();
        if seen.len() >= Self::SALES_MAX {
            seen.clear();
        }
        seen.insert(sale, (Instant::now(), sold_out));
    }
}
