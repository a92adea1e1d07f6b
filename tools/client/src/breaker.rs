//! A circuit breaker: keeps the callers of an unreachable service from asking it all at once. After a few failures in a row, nobody
//! asks for a pause; then one call probes. Pure: time and randomness are parameters.

use std::time::{Duration, Instant};

use seckill_webhook::backoff_ms;

/// Failures in a row that open the breaker. One or two may be broken connections.
const OPENS_AFTER: u32 = 3;
/// The pauses between probes. They double up to the second value; each is randomly shortened to at least half.
const PAUSE_MS: u64 = 400;
const PAUSE_MAX_MS: u64 = 5_000;

/// Whether calls go to the service.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    failures: u32,
    /// The number of pauses so far, and the end of the present one. `None` while the breaker is closed.
    open: Option<(u32, Instant)>,
}

impl Breaker {
    /// Whether a call may ask now; otherwise the rest of the pause. `unit` is a random number in 0..1.
    ///
    /// A call that may ask after a pause begins the next pause: the others wait, however that call ends, even if it is dropped.
    pub(crate) fn ask(&mut self, now: Instant, unit: f64) -> Result<(), Duration> {
        match self.open {
            None => Ok(()),
            Some((_, until)) if now < until => Err(until - now),
            Some((pauses, _)) => {
                self.open = Some((pauses.saturating_add(1), now + pause(pauses.saturating_add(1), unit)));
                Ok(())
            }
        }
    }

    /// The service has answered.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// The service has not answered. Returns whether a pause begins with this failure.
    pub(crate) fn failed(&mut self, now: Instant, unit: f64) -> bool {
        self.failures = self.failures.saturating_add(1);
        let opens = self.open.is_none() && self.failures >= OPENS_AFTER;
        if opens {
            self.open = Some((1, now + pause(1, unit)));
        }
        opens
    }
}

fn pause(pauses: u32, unit: f64) -> Duration {
    Duration::from_millis(backoff_ms(pauses, PAUSE_MS, PAUSE_MAX_MS, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn after_three_failures_one_call_tries_after_each_pause() {
        let (mut breaker, begin) = (Breaker::default(), Instant::now());
        assert!(!breaker.failed(begin, 0.0) && !breaker.failed(begin, 0.0));
        assert_eq!(breaker.ask(begin, 0.0), Ok(()), "two failures are not enough");
        assert!(breaker.failed(begin, 0.0));
        assert_eq!(breaker.ask(begin, 0.0), Err(200 * MS));
        assert_eq!(breaker.ask(begin + 200 * MS, 0.0), Ok(()), "one tries");
        assert_eq!(breaker.ask(begin + 200 * MS, 0.0), Err(400 * MS), "and the others wait twice as long");
        assert!(!breaker.failed(begin + 300 * MS, 0.0), "it is known already");
        assert_eq!(breaker.ask(begin + 600 * MS, 1.0), Ok(()));
        breaker.succeeded();
        assert_eq!(breaker.ask(begin + 601 * MS, 0.0), Ok(()), "all ask again");
    }

    #[test]
    fn a_success_closes_it_and_a_pause_has_a_bound() {
        let (mut breaker, mut now) = (Breaker::default(), Instant::now());
        for _ in 0..10 {
            breaker.failed(now, 0.5);
            breaker.failed(now, 0.5);
            breaker.succeeded();
        }
        assert_eq!(breaker.ask(now, 0.5), Ok(()));
        for _ in 0..50 {
            breaker.failed(now, 1.0);
            if let Err(rest) = breaker.ask(now, 1.0) {
                assert!(rest <= Duration::from_millis(PAUSE_MAX_MS));
                now += rest;
            }
        }
    }
}
