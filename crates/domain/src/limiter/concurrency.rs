//! At most `limit` permits in flight. A grant is a lease: the holder gives it back, or it ends, as that of a crashed holder does.

use uuid::Uuid;

use super::{Verdict, Window};

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

/// A call removes at most this many ended leases; further ones still count.
const DEAD_MAX: usize = 50;
/// A refused call looks through this many leases for the time at which there will be room. If they do not suffice, the caller is told to
/// ask again when the last of them has ended.
const WALKED_MAX: usize = 50;

impl Leases {
    pub(super) fn take(&mut self, of: Window, now_us: i64, permits: i64, id: Uuid) -> Verdict {
        let at = now_us.max(self.at_us);
        self.held.sort_by_key(|lease| lease.ends_us);
        let dead = self.held.partition_point(|lease| lease.ends_us <= at);
        if dead > 0 {
            self.held.drain(..dead.min(DEAD_MAX));
            // A clock that is set back must not find room in their place.
            self.at_us = at;
        }
        let in_flight: i64 = self.held.iter().map(|lease| lease.permits).sum();
        let last_end = self.held.last().map_or(at, |lease| lease.ends_us.max(at));
        if in_flight + permits > of.limit {
            let (mut left, mut frees_us) = (in_flight, last_end);
            for lease in self.held.iter().filter(|lease| lease.ends_us > at).take(WALKED_MAX) {
                (left, frees_us) = (left - lease.permits, lease.ends_us);
                if left + permits <= of.limit {
                    break;
                }
            }
            let retry_us = frees_us - now_us;
            return Verdict::refused(at, (of.limit - in_flight).max(0), retry_us, last_end - now_us);
        }
        let ends_us = at + of.window_us;
        self.held.push(Lease { id, permits, ends_us });
        self.at_us = at;
        Verdict::granted(at, of.limit - in_flight - permits, last_end.max(ends_us) - now_us, 0, 0)
    }

    pub(super) fn release(&mut self, id: Uuid) -> bool {
        let before = self.held.len();
        self.held.retain(|lease| lease.id != id);
        self.held.len() < before
    }
}
