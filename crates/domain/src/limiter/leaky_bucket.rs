//! A leaky bucket as a meter: granted permits are water, which drains by `rate` a period, and must fit under `capacity`. The verdict's delay
//! is the time until the caller's turn at the constant outflow.

use super::{Bucket, Receipt, Verdict, ceil_div, ms};

#[derive(Debug, Clone, Copy)]
pub struct Water {
    at_us: i64,
    level: i64,
    rate: i64,
    period_us: i64,
}

impl Default for Water {
    fn default() -> Self {
        Self { at_us: 0, level: 0, rate: 1, period_us: 1 }
    }
}

impl Water {
    fn drained(&self, at_us: i64) -> i64 {
        let elapsed = at_us - self.at_us;
        if elapsed >= ceil_div(self.level, self.rate) { 0 } else { self.level - elapsed * self.rate }
    }
}

impl Bucket {
    const fn holds(&self, water: &Water) -> bool {
        self.rate == water.rate && self.period_us == water.period_us
    }

    /// The water at `at_us`, drained at its own rate, converted to this bucket's period and rounded up.
    fn water_at(&self, water: &Water, at_us: i64) -> i64 {
        let level = water.drained(at_us);
        let (by, of) = (i128::from(self.period_us), i128::from(water.period_us));
        i64::try_from((i128::from(level) * by + of - 1) / of).unwrap_or(i64::MAX)
    }

    pub(super) fn take_water(&self, water: &mut Water, now_us: i64, permits: i64) -> Verdict {
        let at = now_us.max(water.at_us);
        let behind = at - now_us;
        let level = self.water_at(water, at);
        let poured = Water { at_us: at, level, rate: self.rate, period_us: self.period_us };
        let excess = level + permits * self.period_us - self.full();
        if excess > 0 {
            // As in a token bucket: a changed rate counts from the first call on, even if that call is refused.
            if water.at_us > 0 && !self.holds(water) {
                *water = poured;
            }
            let remaining = ((self.full() - level) / self.period_us).max(0);
            let (retry, reset) = (ceil_div(excess, self.rate), ceil_div(level, self.rate));
            return Verdict::refused(at, remaining, behind + retry, behind + reset);
        }
        *water = Water { level: level + permits * self.period_us, ..poured };
        let remaining = (self.full() - water.level) / self.period_us;
        let reset = behind + ceil_div(water.level, self.rate);
        let delay_ms = ms(behind + ceil_div(level, self.rate));
        Verdict { delay_ms, ..Verdict::granted(at, remaining, reset, at, level) }
    }

    /// Takes the grant's water out again, but not the part that would have drained since the grant.
    pub(super) fn give_back_water(&self, water: &mut Water, now_us: i64, permits: i64, receipt: Receipt) {
        let at_us = now_us.max(water.at_us);
        if let Some(left) = self.left_of(permits, receipt, at_us).filter(|_| self.holds(water)) {
            *water = Water { at_us, level: (water.drained(at_us) - left).max(0), ..*water };
        }
    }
}
