//! At most `limit` permits in any window, exactly: the time of every grant is kept. The window is `(now - window, now]`: a permit is free
//! again exactly one window later.

use std::collections::VecDeque;

use super::{Receipt, Verdict, Window};

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

impl Log {
    pub(super) fn take(&mut self, of: Window, now_us: i64, permits: i64) -> Verdict {
        let newest = self.grants.back().copied();
        let last = newest.map_or(0, |grant| grant.time);
        let at = now_us.max(last);
        let begins = at - of.window_us;
        let dead = self.grants.partition_point(|grant| grant.time <= begins);
        let live: i64 = self.grants.range(dead..).map(|grant| grant.permits).sum();
        let free_us = |time: i64| time + of.window_us - now_us;
        let excess = live + permits - of.limit;
        if excess > 0 {
            // There is room when the `excess` oldest permits have left the window.
            let mut left = 0;
            let reaches = self.grants.range(dead..).find(|grant| {
                left += grant.permits;
                left >= excess
            });
            let leaves = reaches.map_or(last, |grant| grant.time);
            return Verdict::refused(at, (of.limit - live).max(0), free_us(leaves), free_us(last));
        }
        let place = newest.filter(|grant| grant.time == at).map_or(0, |grant| grant.place + grant.permits);
        self.grants.drain(..dead.min(DEAD_MAX));
        self.grants.push_back(Grant { time: at, place, permits });
        Verdict::granted(at, of.limit - live - permits, free_us(at), at, place)
    }

    pub(super) fn give_back(&mut self, receipt: Receipt) {
        let oldest = self.grants.len().saturating_sub(NEWEST_MAX);
        let is_of = |grant: &Grant| (grant.time, grant.place) == (receipt.mark, receipt.detail);
        if let Some(position) = (oldest..self.grants.len()).rev().find(|position| is_of(&self.grants[*position])) {
            self.grants.remove(position);
        }
    }
}
