//! At most `limit` permits in any window, in little memory: counts of 125 sub-windows. The oldest one overlaps the window only in part, and
//! counts in full. So no window ever holds more than the limit, and at least 125/126 (99.2 %) of the limit is granted.

use std::collections::BTreeMap;

use super::{Receipt, Verdict, Window};

/// Sub-windows of a window. Each is a whole number of microseconds, because 125 divides 1000. 126 counts and one more field fit the compact
/// form of a Redis hash, which ends at 128 fields.
const PARTS: i64 = 125;

/// Permits by the number of their sub-window since the epoch.
#[derive(Debug, Clone, Default)]
pub struct SubWindows {
    at_us: i64,
    width_us: i64,
    counts: BTreeMap<i64, i64>,
}

impl SubWindows {
    pub(super) fn take(&mut self, of: Window, now_us: i64, permits: i64) -> Verdict {
        let width = of.window_us / PARTS;
        let at = now_us.max(self.at_us);
        let mut counts = self.counts_by(width);
        let oldest = (at - of.window_us + 1).div_euclid(width);
        counts.retain(|part, _| *part >= oldest);
        let live: i64 = counts.values().sum();
        // A sub-window stops counting when its last microsecond is one window old.
        let free_us = |part: i64| (part + 1) * width + of.window_us - 1 - now_us;
        if live + permits > of.limit {
            let newest = self.at_us.div_euclid(width); // of the last grant, even if that was given back
            let mut left = live;
            let leaves = counts.iter().find_map(|(part, count)| {
                left -= count;
                (left + permits <= of.limit).then_some(*part)
            });
            let retry_us = free_us(leaves.unwrap_or(newest));
            return Verdict::refused(at, (of.limit - live).max(0), retry_us, free_us(newest));
        }
        let part = at.div_euclid(width);
        *counts.entry(part).or_default() += permits;
        *self = Self { at_us: at, width_us: width, counts };
        Verdict::granted(at, of.limit - live - permits, free_us(part), part, width)
    }

    /// The counts in sub-windows of another width. Each moves to the latest possible time of its grants, so that none is forgotten early.
    fn counts_by(&self, width_us: i64) -> BTreeMap<i64, i64> {
        if self.width_us == width_us {
            return self.counts.clone();
        }
        let mut counts = BTreeMap::new();
        for (part, count) in &self.counts {
            let latest = ((part + 1) * self.width_us - 1).min(self.at_us);
            *counts.entry(latest.div_euclid(width_us)).or_default() += count;
        }
        counts
    }

    pub(super) fn give_back(&mut self, permits: i64, receipt: Receipt) {
        if self.width_us != receipt.detail {
            return;
        }
        if let Some(count) = self.counts.get_mut(&receipt.mark) {
            *count -= permits;
            if *count <= 0 {
                self.counts.remove(&receipt.mark);
            }
        }
    }
}
