//! Remembers callers whom a limit has refused. Until they may try again, a worker thread refuses them without a call to Redis.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::domain::admission::{Limit, Limits};
use crate::domain::client_address::ClientAddress;
use crate::domain::ids::{SaleId, UserId};

#[derive(Clone, Copy)]
pub enum Caller<'a> {
    Buyer(&'a UserId),
    Address(ClientAddress),
}

#[derive(Default)]
pub struct RefusalCache {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The limits that refused them. Other limits may admit them.
    limits: Option<Limits>,
    sales: HashMap<SaleId, Refused>,
    count: usize,
}

#[derive(Default)]
struct Refused {
    buyers: HashMap<UserId, Instant>,
    addresses: HashMap<ClientAddress, Instant>,
}

impl RefusalCache {
    /// One more caller empties the cache.
    const CALLERS_MAX: usize = 50_000;

    /// The limit that still refuses this buyer or this address, and the rest of the time in ms.
    pub fn find(&self, sale: SaleId, buyer: &UserId, address: ClientAddress, limits: &Limits) -> Option<(Limit, u64)> {
        let inner = self.inner.borrow();
        let refused = inner.sales.get(&sale)?;
        if inner.limits.as_ref() != Some(limits) {
            return None;
        }
        let buyer = refused.buyers.get(buyer).map(|until| (*until, Limit::Buyer));
        let address = refused.addresses.get(&address).map(|until| (*until, Limit::Address));
        let (until, limit) = buyer.into_iter().chain(address).max_by_key(|(until, _)| *until)?;
        let left = until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then(|| (limit, u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1)))
    }

    pub fn insert(&self, sale: SaleId, caller: Caller<'_>, wait_ms: u64, limits: Limits) {
        let mut inner = self.inner.borrow_mut();
        if inner.count >= Self::CALLERS_MAX || inner.limits != Some(limits) {
            *inner = Inner { limits: Some(limits), ..Inner::default() };
        }
        let until = Instant::now() + Duration::from_millis(wait_ms);
        let refused = inner.sales.entry(sale).or_default();
        let known = match caller {
            Caller::Buyer(user) => refused.buyers.insert(user.clone(), until),
            Caller::Address(address) => refused.addresses.insert(address, until),
        };
        inner.count += usize::from(known.is_none());
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::domain::admission::Window;

    fn limits(max: i64) -> Limits {
        let window = Window { max, window_ms: 60_000 };
        Limits { buyer: window, address: window, sale: window }
    }

    fn user(name: &str) -> UserId {
        UserId::parse(name).unwrap()
    }

    fn address() -> ClientAddress {
        IpAddr::from([10, 0, 0, 1]).into()
    }

    #[test]
    fn a_refused_caller_waits_unless_the_limits_have_changed() {
        let (cache, sale) = (RefusalCache::default(), SaleId::from_db(7));
        cache.insert(sale, Caller::Buyer(&user("ann")), 60_000, limits(5));
        let find = |name, max| cache.find(sale, &user(name), address(), &limits(max)).map(|(limit, _)| limit);
        assert_eq!(find("ann", 5), Some(Limit::Buyer));
        assert_eq!(find("ben", 5), None);
        assert_eq!(find("ann", 6), None, "another limit may admit her");
        cache.insert(sale, Caller::Address(address()), 60_000, limits(5));
        assert_eq!(find("ben", 5), Some(Limit::Address));
        let other = SaleId::from_db(8);
        assert_eq!(cache.find(other, &user("ann"), address(), &limits(5)), None);
        cache.insert(other, Caller::Buyer(&user("ann")), 0, limits(5));
        assert_eq!(cache.find(other, &user("ann"), address(), &limits(5)), None, "its time is over");
    }
}
