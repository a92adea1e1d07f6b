//! At most `limit` permits in flight. A grant is a lease: the holder gives it back, or it runs out. So the place of a
//! holder that crashed becomes free by itself.

use uuid::Uuid;

use super::Verdict;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concurrency {
    pub(super) limit: i64,
    pub(super) lease_us: i64,
}

/// The leases that were granted.
#[derive(Debug, Clone, Default)]
pub struct Leases {
    at_us: i64,
    held: Vec<Lease>,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    id: Uuid,
    permits: i64,
    ends_us: i64,
}

impl Concurrency {
    pub(super) const fn new(limit: i64, lease_ms: i64) -> Self {
        Self { limit, lease_us: lease_ms * 1000 }
    }

    pub(super) fn take(&self, leases: &mut Leases, now_us: i64, permits: i64, id: Uuid) -> Verdict {
        let at = now_us.max(leases.at_us);
        let mut live: Vec<Lease> = leases.held.iter().copied().filter(|lease| lease.ends_us > at).collect();
        live.sort_by_key(|lease| lease.ends_us);
        let in_flight: i64 = live.iter().map(|lease| lease.permits).sum();
        let last_end = live.last().map_or(at, |lease| lease.ends_us);
        if in_flight + permits > self.limit {
            let mut left = in_flight;
            let frees = live.iter().find(|lease| {
                left -= lease.permits;
                left + permits <= self.limit
            });
            let retry_us = frees.map_or(last_end, |lease| lease.ends_us) - now_us;
            return Verdict::refused(at, (self.limit - in_flight).max(0), retry_us, last_end - now_us);
        }
        let ends_us = at + self.lease_us;
        live.push(Lease { id, permits, ends_us });
        *leases = Leases { at_us: at, held: live };
        Verdict::granted(at, self.limit - in_flight - permits, last_end.max(ends_us) - now_us, 0, 0)
    }
}

impl Leases {
    /// Returns `false` when there is no lease of this id.
    pub(super) fn release(&mut self, id: Uuid) -> bool {
        let before = self.held.len();
        self.held.retain(|lease| lease.id != id);
        self.held.len() < before
    }
}
