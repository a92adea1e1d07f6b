//! The pace at which a thread answers the purchases that it sheds.

use std::time::{Duration, Instant};

/// The pause between the answers to two shed purchases: of a thread's time these take a few hundredths then.
const ANSWERS_APART: Duration = Duration::from_millis(1);
/// The longest pause before such an answer, however many wait.
const HELD_BACK_FOR: Duration = Duration::from_secs(2);

/// When the purchases that a thread sheds are answered. Such an answer sets a connection free, which brings the next request of the
/// crowd at once: without a pace, a thread that sheds would soon do little else.
#[derive(Debug, Default)]
pub struct ShedPace {
    /// When the next one may be answered.
    next: Option<Instant>,
}

impl ShedPace {
    /// For how long to hold back the answer to another one.
    pub fn delay(&mut self, now: Instant) -> Duration {
        let at = self.next.map_or(now, |next| next.clamp(now, now + HELD_BACK_FOR));
        self.next = Some(at + ANSWERS_APART);
        at - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_a_crowd_are_spread() {
        let start = Instant::now();
        let mut pace = ShedPace::default();
        assert_eq!(pace.delay(start), Duration::ZERO, "the first is answered at once");
        for n in 1..=3 {
            assert_eq!(pace.delay(start), ANSWERS_APART * n);
        }
        assert_eq!(pace.delay(start + ANSWERS_APART * 3), ANSWERS_APART);
        assert_eq!(pace.delay(start + ANSWERS_APART * 9), Duration::ZERO, "the crowd has been answered");
        let longest = (0..10_000).map(|_| pace.delay(start)).max();
        assert_eq!(longest, Some(HELD_BACK_FOR), "a larger crowd waits no longer");
    }
}
