//! The pace of an outflow: the distance of its slots, so that the receiver never sees more than the rate in any second.
//!
//! A request of slot `t` arrives between `t` and `t + LATENESS + jitter`: it is never sent early, it is given up when it would be more than
//! `LATENESS` late, and the network is trusted to differ by at most `jitter`. So requests that are `n` slots apart arrive at least
//! `n * gap - LATENESS - jitter` apart, and `gap` makes that more than a second. docs/delivery.md has the details.

use std::time::Duration;

use super::ids::Invalid;

/// A request is claimed at most this long before its slot: time to commit the claim and to connect.
pub const LOOKAHEAD: Duration = Duration::from_millis(100);
/// A request is claimed at least this long before its slot.
pub const LEAD: Duration = Duration::from_millis(40);
/// How late after its slot a request may still be sent.
pub const LATENESS: Duration = Duration::from_millis(25);
/// Requests are usually not later than this: timers have a resolution of a millisecond. A later request moves the slots behind it.
pub const PROMPT: Duration = Duration::from_millis(8);

/// A rate per second, which the receiver sees up to this jitter of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    rate: u32,
    jitter_ms: u32,
}

impl Pace {
    /// The pace of slots that are claimed one by one: up to 100 per second.
    pub fn parse(rate: i64, jitter_ms: i64) -> Result<Self, Invalid> {
        Self::of(rate, jitter_ms, 100, "must be 1 to 100 per second")
    }

    /// The pace of slots that are claimed several at a time: up to 10000 per second.
    pub fn claimed_in_groups(rate: i64, jitter_ms: i64) -> Result<Self, Invalid> {
        Self::of(rate, jitter_ms, 10_000, "must be 1 to 10000 per second")
    }

    fn of(rate: i64, jitter_ms: i64, max: u32, problem: &'static str) -> Result<Self, Invalid> {
        let rate = u32::try_from(rate).ok().filter(|rate| (1..=max).contains(rate));
        let jitter_ms = u32::try_from(jitter_ms).ok().filter(|ms| *ms <= 10_000);
        Ok(Self {
            rate: rate.ok_or(Invalid::new("rate", problem))?,
            jitter_ms: jitter_ms.ok_or(Invalid::new("jitter_ms", "must be 0 to 10000"))?,
        })
    }

    pub fn rate(self) -> u32 {
        self.rate
    }

    pub fn jitter_ms(self) -> u32 {
        self.jitter_ms
    }

    /// From one slot to the next, in microseconds: more than a second and the spread of arrivals for every `rate` of them.
    pub fn gap_us(self) -> i64 {
        let spread_us = LATENESS.as_micros() as u64 + u64::from(self.jitter_ms) * 1_000;
        ((1_000_000 + spread_us) / u64::from(self.rate) + 1).cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_margin_costs_little() -> Result<(), Invalid> {
        for rate in 1..=100 {
            let gap_us = Pace::parse(rate, 15)?.gap_us();
            assert!(rate * gap_us > 1_040_000, "{rate}: too close");
            assert!(rate * gap_us < 1_040_200, "{rate}: slower than it must be");
        }
        for (rate, jitter) in [(0, 0), (101, 0), (-1, 0), (1, -1), (1, 10_001), (i64::MAX, i64::MAX)] {
            assert!(Pace::parse(rate, jitter).is_err());
        }
        Ok(())
    }

    proptest! {
        /// However late within the bounds each request is, and whichever slots stay empty.
        #[test]
        fn no_second_sees_more_than_the_rate(
            rate in 1_i64..=100,
            jitter_ms in 0_i64..100,
            steps in prop::collection::vec((0.0..=1.0_f64, 0.0..=1.0_f64, 0_i64..3), 1..300),
        ) {
            let gap_us = Pace::parse(rate, jitter_ms).map_err(|e| TestCaseError::fail(e.to_string()))?.gap_us();
            let (mut slot, mut arrivals) = (0, Vec::new());
            for (late, jitter, idle) in steps {
                let spread = late * LATENESS.as_micros() as f64 + jitter * 1_000.0 * jitter_ms as f64;
                arrivals.push(slot + spread as i64);
                slot += gap_us + idle * 700; // a slot that begins later than it could
            }
            arrivals.sort_unstable();
            for pair in arrivals.windows(usize::try_from(rate).unwrap_or(0) + 1) {
                prop_assert!(pair[pair.len() - 1] - pair[0] > 1_000_000, "{pair:?}");
            }
        }
    }
}
