//! At most `limit` permits in any window, exactly: the time of every permit is kept.
//!
//! The window is half open, `(now - window, now]`: the place of a permit is free again exactly one window later.

use std::collections::VecDeque;

use super::{Receipt, Verdict};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingLog {
    pub(super) limit: i64,
    pub(super) window_us: i64,
}

/// The permits, oldest first: the time of each, and its place among the permits of the same microsecond.
#[derive(Debug, Clone, Default)]
pub struct Log {
    entries: VecDeque<(i64, i64)>,
}

impl SlidingLog {
    pub(super) const fn new(limit: i64, window_ms: i64) -> Self {
        Self { limit, window_us: window_ms * 1000 }
    }

    pub(super) fn take(&self, log: &mut Log, now_us: i64, permits: i64) -> Verdict {
        let (newest, place) = log.entries.back().copied().unwrap_or((0, -1));
        let at = now_us.max(newest);
        let begins = at - self.window_us;
        let dead = log.entries.partition_point(|(time, _)| *time <= begins);
        let live = (log.entries.len() - dead) as u64;
        let live = live.cast_signed();
        let free_us = |time: i64| time + self.window_us - now_us;
        let excess = live + permits - self.limit;
        if excess > 0 {
            // There is room when the `excess` oldest permits have left the window.
            let last_to_leave = usize::try_from(excess - 1).unwrap_or(usize::MAX).saturating_add(dead);
            let leaves = log.entries.get(last_to_leave).map_or(newest, |(time, _)| *time);
            return Verdict::refused(at, (self.limit - live).max(0), free_us(leaves), free_us(newest));
        }
        let first = if newest == at { place + 1 } else { 0 };
        log.entries.drain(..dead);
        log.entries.extend((first..first + permits).map(|place| (at, place)));
        Verdict::granted(at, self.limit - live - permits, free_us(at), at, first)
    }
}

impl Log {
    pub(super) fn give_back(&mut self, permits: i64, receipt: Receipt) {
        let places = receipt.detail..receipt.detail + permits;
        self.entries.retain(|(time, place)| *time != receipt.mark || !places.contains(place));
    }
}
