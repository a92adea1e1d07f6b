//! At most `limit` permits in each aligned window.

use super::{Receipt, Verdict, Window};

/// The permits granted in one window: the window of `width_us` that contains `at_us`, the time of the last grant.
#[derive(Debug, Clone, Copy, Default)]
pub struct WindowCount {
    at_us: i64,
    width_us: i64,
    count: i64,
}

impl WindowCount {
    pub(super) fn take(&mut self, of: Window, now_us: i64, permits: i64) -> Verdict {
        let at = now_us.max(self.at_us);
        let start = at - at % of.window_us;
        // A window of another width that overlaps this one counts in full, so that a change of width forgets no grant.
        let count = if self.at_us >= start { self.count } else { 0 };
        let end_us = start + of.window_us - now_us;
        if count + permits > of.limit {
            return Verdict::refused(at, (of.limit - count).max(0), end_us, end_us);
        }
        *self = Self { at_us: at, width_us: of.window_us, count: count + permits };
        Verdict::granted(at, of.limit - self.count, end_us, start, of.window_us)
    }

    pub(super) fn give_back(&mut self, permits: i64, receipt: Receipt) {
        if self.width_us == receipt.detail && self.at_us - self.at_us % self.width_us == receipt.mark {
            self.count = (self.count - permits).max(0);
        }
    }
}
