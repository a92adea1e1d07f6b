//! At most `limit` permits in each aligned window.

use super::{Receipt, Verdict};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedWindow {
    pub(super) limit: i64,
    pub(super) window_us: i64,
}

/// The permits granted in one window: the window of `width_us` that contains `at_us`, the time of the last grant.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    at_us: i64,
    width_us: i64,
    count: i64,
}

impl FixedWindow {
    pub(super) fn take(&self, state: &mut Counted, now_us: i64, permits: i64) -> Verdict {
        let at = now_us.max(state.at_us);
        let start = at - at % self.window_us;
        // A window of another width that overlaps this one counts in full, so that a change of width forgets no grant.
        let count = if state.at_us >= start { state.count } else { 0 };
        let end_us = start + self.window_us - now_us;
        if count + permits > self.limit {
            return Verdict::refused(at, (self.limit - count).max(0), end_us, end_us);
        }
        *state = Counted { at_us: at, width_us: self.window_us, count: count + permits };
        Verdict::granted(at, self.limit - state.count, end_us, start, self.window_us)
    }
}

impl Counted {
    pub(super) fn give_back(&mut self, permits: i64, receipt: Receipt) {
        if self.width_us == receipt.detail && self.at_us - self.at_us % self.width_us == receipt.mark {
            self.count = (self.count - permits).max(0);
        }
    }
}
