//! At most `limit` permits in any window, exactly: the time of every grant is kept. The window is `(now - window, now]`: a permit is free
//! again exactly one window later.

use std::collections::VecDeque;

use super::{Receipt, Verdict};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingLog {
    pub(super) limit: i64,
    pub(super) window_us: i64,
}

/// The grants, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Log {
    grants: VecDeque<Grant>,
}

#[derive(Debug, Clone, Copy)]
struct Grant {
    time: i64,
    /// The number of permits granted before it in the same microsecond.
    place: i64,
    permits: i64,
}

/// A call removes at most this many grants that have left the window.
const DEAD_MAX: usize = 50;
/// A grant can be given back while it is among this many newest ones.
const NEWEST_MAX: usize = 50;

impl SlidingLog {
    pub(super) fn take(&self, log: &mut Log, now_us: i64, permits: i64) -> Verdict {
        let newest = log.grants.back().copied();
        let last = newest.map_or(0, |grant| grant.time);
        let at = now_us.max(last);
        let begins = at - self.window_us;
        let dead = log.grants.partition_point(|grant| grant.time <= begins);
        let live: i64 = log.grants.range(dead..).map(|grant| grant.permits).sum();
        let free_us = |time: i64| time + self.window_us - now_us;
        let excess = live + permits - self.limit;
        if excess > 0 {
            // There is room when the `excess` oldest permits have left the window.
            let mut left = 0;
            let reaches = log.grants.range(dead..).find(|grant| {
                left += grant.permits;
                left >= excess
            });
            let leaves = reaches.map_or(last, |grant| grant.time);
            return Verdict::refused(at, (self.limit - live).max(0), free_us(leaves), free_us(last));
        }
        let place = newest.filter(|grant| grant.time == at).map_or(0, |grant| grant.place + grant.permits);
        log.grants.drain(..dead.min(DEAD_MAX));
        log.grants.push_back(Grant { time: at, place, permits });
        Verdict::granted(at, self.limit - live - permits, free_us(at), at, place)
    }
}

impl Log {
    pub(super) fn give_back(&mut self, receipt: Receipt) {
        let oldest = self.grants.len().saturating_sub(NEWEST_MAX);
        let is_of = |grant: &Grant| (grant.time, grant.place) == (receipt.mark, receipt.detail);
        if let Some(position) = (oldest..self.grants.len()).rev().find(|position| is_of(&self.grants[*position])) {
            self.grants.remove(position);
        }
    }
}
