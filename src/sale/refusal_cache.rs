//! Callers who were told "too many requests", remembered until their time is up: one who ignores it is refused again
//! without anybody being asked.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::domain::admission::{Limit, Limits};
use crate::domain::ids::SaleId;

/// One worker thread's memory of them. A caller is a buyer or an address; the alphabets of the two do not meet.
#[derive(Default)]
pub struct RefusalCache {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    /// What they were refused under: other limits may let them in.
    limits: Option<Limits>,
    callers: HashMap<SaleId, HashMap<Box<str>, (Instant, Limit)>>,
    count: usize,
}

impl RefusalCache {
    /// Callers that are remembered at once; beyond, the memory starts afresh.
    const CALLERS_MAX: usize = 50_000;

    /// Whether one of a request's two callers is to wait: for which limit, and for how many milliseconds more.
    pub fn recall(&self, sale: SaleId, buyer: &str, address: &str, limits: &Limits) -> Option<(Limit, u64)> {
        let inner = self.inner.borrow();
        let callers = inner.callers.get(&sale)?;
        if inner.limits.as_ref() != Some(limits) {
            return None;
        }
        let (until, limit) =
            [buyer, address].into_iter().filter_map(|caller| callers.get(caller)).max_by_key(|b| b.0)?;
        let left = until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then(|| (*limit, u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1)))
    }

    /// Remembers what a caller was told. The limit of the sale itself bars nobody in particular.
    pub fn note(&self, sale: SaleId, caller: &str, limit: Limit, wait_ms: u64, limits: Limits) {
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
    fn who_is_barred_waits_unless_the_limits_have_changed() {
        let (barred, sale) = (RefusalCache::default(), SaleId::from_db(7));
        barred.note(sale, "ann", Limit::Buyer, 60_000, limits(5));
        let recall = |user, max| barred.recall(sale, user, "10.0.0.1", &limits(max)).map(|(limit, _)| limit);
        assert_eq!(recall("ann", 5), Some(Limit::Buyer));
        assert_eq!(recall("ben", 5), None);
        assert_eq!(recall("ann", 6), None, "another limit may let her in");
        barred.note(sale, "10.0.0.1", Limit::Address, 60_000, limits(5));
        assert_eq!(recall("ben", 5), Some(Limit::Address));
        assert_eq!(barred.recall(SaleId::from_db(8), "ann", "10.0.0.1", &limits(5)), None);
    }

    #[test]
    fn time_sets_free() {
        let (barred, sale) = (RefusalCache::default(), SaleId::from_db(7));
        barred.note(sale, "ann", Limit::Buyer, 0, limits(5));
        assert_eq!(barred.recall(sale, "ann", "10.0.0.1", &limits(5)), None);
    }
}
