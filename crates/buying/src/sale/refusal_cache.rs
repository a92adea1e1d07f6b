//! Remembers callers whom a limit has refused. Until they may try again, a worker thread refuses them without a call to Redis.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use seckill_domain::admission::{Limit, Limits};
use seckill_domain::client_address::ClientAddress;
use seckill_domain::ids::{SaleId, UserId};

#[derive(Default)]
pub struct RefusalCache {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The limits that refused them. Other limits may admit them.
    limits: Option<Limits>,
    sales: HashMap<SaleId, SaleRefusals>,
    count: usize,
}

#[derive(Default)]
struct SaleRefusals {
    buyers: HashMap<UserId, Instant>,
    addresses: HashMap<ClientAddress, Instant>,
}

impl RefusalCache {
    /// One more caller empties the cache.
    const CALLERS_MAX: usize = 50_000;

    /// The limit that still refuses this buyer or this address, and the rest of the time in ms.
    pub(crate) fn find(
        &self,
        sale: SaleId,
        buyer: &UserId,
        address: ClientAddress,
        limits: &Limits,
    ) -> Option<(Limit, u64)> {
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

    /// A refusal by the limit of a whole sale is not kept.
    pub(crate) fn insert(
        &self,
        sale: SaleId,
        (limit, wait_ms): (Limit, u64),
        buyer: &UserId,
        address: ClientAddress,
        limits: Limits,
    ) {
        let mut inner = self.inner.borrow_mut();
        if inner.count >= Self::CALLERS_MAX || inner.limits != Some(limits) {
            *inner = Inner { limits: Some(limits), ..Inner::default() };
        }
        let until = Instant::now() + Duration::from_millis(wait_ms);
        let known = match limit {
            Limit::Buyer => inner.sales.entry(sale).or_default().buyers.insert(buyer.clone(), until),
            Limit::Address => inner.sales.entry(sale).or_default().addresses.insert(address, until),
            Limit::Sale => return,
        };
        inner.count += usize::from(known.is_none());
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use seckill_domain::admission::Window;

    #[test]
    fn a_refused_caller_waits_unless_the_limits_have_changed() {
        let [sale, other] = [7, 8].map(SaleId::from_db);
        let [ann, ben] = ["ann", "ben"].map(|name| UserId::parse(name).unwrap());
        let [here, there] = [1, 2].map(|last| ClientAddress::from(IpAddr::from([10, 0, 0, last])));
        let limits = |max| {
            let window = Window { max, window_ms: 60_000 };
            Limits { buyer: window, address: window, sale: window }
        };
        let cache = RefusalCache::default();
        let find = |sale, user, max| cache.find(sale, user, here, &limits(max)).map(|(limit, _)| limit);
        cache.insert(sale, (Limit::Buyer, 60_000), &ann, there, limits(5));
        assert_eq!((find(sale, &ann, 5), find(sale, &ben, 5)), (Some(Limit::Buyer), None));
        assert_eq!(find(sale, &ann, 6), None, "another limit may admit her");
        cache.insert(sale, (Limit::Address, 60_000), &ann, here, limits(5));
        assert_eq!((find(sale, &ben, 5), find(other, &ann, 5)), (Some(Limit::Address), None));
        cache.insert(other, (Limit::Buyer, 0), &ann, there, limits(5));
        assert_eq!(find(other, &ann, 5), None, "its time is over");
    }
}
