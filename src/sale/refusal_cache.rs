//! Callers who were refused by a limit. Until they may try again, a worker thread refuses them from memory, without a
//! call to Redis.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::domain::admission::{Limit, Limits};
use crate::domain::ids::SaleId;

/// One worker thread's cache. A caller is a buyer or an address, and no buyer's id is an address.
#[derive(Default)]
pub struct RefusalCache {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The limits that they were refused under. Other limits may admit them.
    limits: Option<Limits>,
    callers: HashMap<SaleId, HashMap<Box<str>, (Instant, Limit)>>,
    count: usize,
}

impl RefusalCache {
    /// Callers in the cache. One more empties the cache first.
    const CALLERS_MAX: usize = 50_000;

    /// The limit that still refuses this buyer or this address, and for how many milliseconds more.
    pub fn find(&self, sale: SaleId, buyer: &str, address: &str, limits: &Limits) -> Option<(Limit, u64)> {
        let inner = self.inner.borrow();
        let callers = inner.callers.get(&sale)?;
        if inner.limits.as_ref() != Some(limits) {
            return None;
        }
        let (until, limit) =
            [buyer, address].into_iter().filter_map(|caller| callers.get(caller)).max_by_key(|refused| refused.0)?;
        let left = until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then(|| (*limit, u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1)))
    }

    /// Remembers that a limit refuses this caller for `wait_ms`.
    pub fn insert(&self, sale: SaleId, caller: &str, limit: Limit, wait_ms: u64, limits: Limits) {
        let mut inner = self.inner.borrow_mut();
        if inner.count >= Self::CALLERS_MAX || inner.limits != Some(limits) {
            *inner = Inner { limits: Some(limits), ..Inner::default() };
        }
        let until = Instant::now() + Duration::from_millis(wait_ms);
        let known = inner.callers.entry(sale).or_default().insert(caller.into(), (until, limit));
        inner.count += usize::from(known.is_none());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::admission::Window;

    fn limits(max: i64) -> Limits {
        let window = Window { max, window_ms: 60_000 };
        Limits { buyer: window, address: window, sale: window }
    }

    #[test]
    fn a_refused_caller_waits_unless_the_limits_have_changed() {
        let (cache, sale) = (RefusalCache::default(), SaleId::from_db(7));
        cache.insert(sale, "ann", Limit::Buyer, 60_000, limits(5));
        let find = |user, max| cache.find(sale, user, "10.0.0.1", &limits(max)).map(|(limit, _)| limit);
        assert_eq!(find("ann", 5), Some(Limit::Buyer));
        assert_eq!(find("ben", 5), None);
        assert_eq!(find("ann", 6), None, "another limit may admit her");
        cache.insert(sale, "10.0.0.1", Limit::Address, 60_000, limits(5));
        assert_eq!(find("ben", 5), Some(Limit::Address));
        assert_eq!(cache.find(SaleId::from_db(8), "ann", "10.0.0.1", &limits(5)), None);
    }

    #[test]
    fn a_refusal_ends_with_its_time() {
        let (cache, sale) = (RefusalCache::default(), SaleId::from_db(7));
        cache.insert(sale, "ann", Limit::Buyer, 0, limits(5));
        assert_eq!(cache.find(sale, "ann", "10.0.0.1", &limits(5)), None);
    }
}
