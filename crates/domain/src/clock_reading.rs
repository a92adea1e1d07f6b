//! Clocks of servers, compared over a network with delays.

use std::time::Instant;

/// A server's clock, and when this process asked and was answered.
#[derive(Debug, Clone, Copy)]
pub struct ClockReading {
    /// Milliseconds since the epoch.
    pub ms: i64,
    pub asked_at: Instant,
    pub answered_at: Instant,
}

impl ClockReading {
    /// How far this clock is ahead of another one, at least: the network's possible delay is not counted. Negative if it is behind.
    pub fn ahead_of_ms(&self, other: &Self) -> i64 {
        let difference = self.ms - other.ms;
        let least = difference - ms_from(other.asked_at, self.answered_at);
        let most = difference - ms_from(other.answered_at, self.asked_at);
        if least > 0 { least } else { most.min(0) }
    }
}

/// Milliseconds from one moment to another, negative if the second is earlier.
fn ms_from(from: Instant, to: Instant) -> i64 {
    let ms = |later: Instant, earlier: Instant| {
        i64::try_from(later.saturating_duration_since(earlier).as_millis()).unwrap_or(i64::MAX)
    };
    ms(to, from) - ms(from, to)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_network_is_not_taken_for_a_wrong_clock() {
        let began = Instant::now();
        let reading = |ms: i64, asked_ms: u64, answered_ms: u64| {
            let at = |ms: u64| began + Duration::from_millis(ms);
            ClockReading { ms, asked_at: at(asked_ms), answered_at: at(answered_ms) }
        };
        // Both are right: one was read 100 ms after the other.
        assert_eq!(reading(10_100, 100, 102).ahead_of_ms(&reading(10_000, 0, 2)), 0);
        assert_eq!(reading(10_000, 0, 2).ahead_of_ms(&reading(10_100, 100, 102)), 0);
        // The answer took a second: nothing is known within that second.
        assert_eq!(reading(10_900, 0, 1_000).ahead_of_ms(&reading(10_000, 0, 2)), 0);
        assert_eq!(reading(13_000, 0, 1_000).ahead_of_ms(&reading(10_000, 0, 2)), 2_000);
        assert_eq!(reading(10_000, 0, 2).ahead_of_ms(&reading(13_000, 0, 1_000)), -2_000);
        assert_eq!(reading(10_000, 5_000, 5_000).ahead_of_ms(&reading(10_000, 0, 0)), -5_000);
    }
}
