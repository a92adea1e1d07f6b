//! Circuit breakers. A breaker stops the calls to something that keeps failing, and after a while lets a few probes through (Nygard,
//! Release It!; states and thresholds as in resilience4j). Time is a parameter, in milliseconds of a clock that never goes back.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ids::Invalid;

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = BreakerTerms)]
pub struct BreakerSettings {
    /// The breaker opens when this share of calls failed, in percent.
    #[schema(minimum = 1, maximum = 100)]
    pub error_percent: u32,
    /// The breaker opens when this share of calls was slow, in percent.
    #[schema(minimum = 1, maximum = 100)]
    pub slow_percent: u32,
    /// A call that took at least this long is slow.
    #[schema(minimum = 10, maximum = 3_600_000)]
    pub slow_ms: u64,
    /// With fewer calls than this in the window, the breaker stays closed.
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub min_calls: u32,
    #[schema(minimum = 10, maximum = 3_600_000)]
    pub window_ms: u64,
    /// How long the breaker stays open before it lets probes through.
    #[schema(minimum = 10, maximum = 3_600_000)]
    pub open_ms: u64,
    /// The number of probes; the breaker closes when all of them succeed.
    #[schema(minimum = 1, maximum = 1000)]
    pub probes: u32,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            error_percent: 50,
            slow_percent: 80,
            slow_ms: 1_000,
            min_calls: 20,
            window_ms: 10_000,
            open_ms: 5_000,
            probes: 3,
        }
    }
}

impl BreakerSettings {
    pub(crate) fn check(self) -> Result<Self, Invalid> {
        let wrong = |problem| Err(Invalid::new("breaker", problem));
        if !(1..=100).contains(&self.error_percent) || !(1..=100).contains(&self.slow_percent) {
            return wrong("takes 1 to 100 percent");
        }
        if !(1..=1_000_000).contains(&self.min_calls) || !(1..=1000).contains(&self.probes) {
            return wrong("takes 1 to 1000000 min_calls and 1 to 1000 probes");
        }
        let times = [self.slow_ms, self.window_ms, self.open_ms];
        if times.iter().any(|ms| !(10..=3_600_000).contains(ms)) {
            return wrong("takes times of 10 to 3600000 ms");
        }
        Ok(self)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallOutcome {
    pub failed: bool,
    pub took_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    Call,
    /// One of a few calls that test whether all is well again. Its report must carry a `ProbeId`.
    Probe,
}

/// The name of a probe, chosen by its caller, so that it counts once.
pub type ProbeId = u128;

#[derive(Debug, Clone)]
enum State {
    Closed,
    Open {
        until_ms: u64,
    },
    /// `left` probes are still to be admitted. After `until_ms`, missing probes are sent again.
    HalfOpen {
        left: u32,
        succeeded: Vec<ProbeId>,
        until_ms: u64,
    },
}

/// The calls in one part of the window.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    slot: u64,
    calls: u32,
    failed: u32,
    slow: u32,
}

const BUCKETS: u64 = 10;

#[derive(Debug)]
pub struct Breaker {
    terms: BreakerSettings,
    state: State,
    buckets: [Bucket; BUCKETS as usize],
}

impl Breaker {
    pub fn new(terms: BreakerSettings) -> Self {
        Self { terms, state: State::Closed, buckets: Default::default() }
    }

    /// Admits a call, or returns after how many milliseconds to ask again.
    pub fn admit(&mut self, now_ms: u64) -> Result<Admission, u64> {
        match self.state {
            State::Closed => return Ok(Admission::Call),
            State::Open { until_ms } if now_ms < until_ms => return Err(until_ms - now_ms),
            State::HalfOpen { left: 0, until_ms, .. } if now_ms < until_ms => return Err(until_ms - now_ms),
            // The time is over, or the last probes were never reported.
            State::Open { .. } | State::HalfOpen { left: 0, .. } => {
                let (left, until_ms) = (self.terms.probes, now_ms + self.terms.open_ms);
                self.state = State::HalfOpen { left, succeeded: vec![], until_ms };
            }
            State::HalfOpen { .. } => {}
        }
        if let State::HalfOpen { left, .. } = &mut self.state {
            *left -= 1;
        }
        Ok(Admission::Probe)
    }

    /// Takes back an admission: the call was not made.
    pub fn withdraw(&mut self, admission: Admission) {
        if let (State::HalfOpen { left, .. }, Admission::Probe) = (&mut self.state, admission) {
            *left = (*left + 1).min(self.terms.probes);
        }
    }

    /// Records how a call or probe ended. While the breaker is half-open, only probes count, each once. Returns whether the breaker
    /// opened because of this call.
    pub fn report(&mut self, now_ms: u64, outcome: CallOutcome, probe: Option<ProbeId>) -> bool {
        let bad = outcome.failed || outcome.took_ms >= self.terms.slow_ms;
        match (&mut self.state, probe) {
            // A late report of an earlier call.
            (State::Open { .. }, _) | (State::HalfOpen { .. }, None) => return false,
            (State::HalfOpen { .. }, Some(_)) if bad => return self.open(now_ms),
            (State::HalfOpen { succeeded, .. }, Some(probe)) => {
                if !succeeded.contains(&probe) {
                    succeeded.push(probe);
                }
                if succeeded.len() >= self.terms.probes as usize {
                    self.state = State::Closed;
                    self.buckets = Default::default();
                }
                return false;
            }
            (State::Closed, _) => {}
        }
        let slot = now_ms / (self.terms.window_ms / BUCKETS).max(1);
        let bucket = &mut self.buckets[(slot % BUCKETS) as usize];
        if bucket.slot != slot {
            *bucket = Bucket { slot, ..Bucket::default() };
        }
        bucket.calls += 1;
        bucket.failed += u32::from(outcome.failed);
        bucket.slow += u32::from(outcome.took_ms >= self.terms.slow_ms);
        if self.exceeds_terms(slot) { self.open(now_ms) } else { false }
    }

    fn exceeds_terms(&self, slot: u64) -> bool {
        let recent = self.buckets.iter().filter(|bucket| slot - bucket.slot.min(slot) < BUCKETS);
        let (calls, failed, slow) = recent.fold((0, 0, 0), |(calls, failed, slow), bucket| {
            (calls + bucket.calls, failed + bucket.failed, slow + bucket.slow)
        });
        calls >= self.terms.min_calls
            && (failed * 100 >= calls * self.terms.error_percent || slow * 100 >= calls * self.terms.slow_percent)
    }

    fn open(&mut self, now_ms: u64) -> bool {
        self.state = State::Open { until_ms: now_ms + self.terms.open_ms };
        self.buckets = Default::default();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: CallOutcome = CallOutcome { failed: false, took_ms: 5 };
    const BROKEN: CallOutcome = CallOutcome { failed: true, took_ms: 5 };
    const SLOW: CallOutcome = CallOutcome { failed: false, took_ms: 2_000 };

    fn breaker() -> Breaker {
        Breaker::new(BreakerSettings { min_calls: 10, ..BreakerSettings::default() })
    }

    /// A breaker that opened at 0.
    fn open_breaker() -> Breaker {
        let mut breaker = breaker();
        (0..10).for_each(|_| _ = breaker.report(0, BROKEN, None));
        breaker
    }

    #[test]
    fn a_breaker_opens_at_the_share_and_not_before() {
        for bad in [BROKEN, SLOW] {
            let mut breaker = breaker();
            let share = if bad.failed { 5 } else { 8 };
            (0..10 - share).for_each(|_| assert!(!breaker.report(100, FINE, None)));
            (1..share).for_each(|_| assert!(!breaker.report(100, bad, None)));
            assert_eq!(breaker.admit(100), Ok(Admission::Call));
            assert!(breaker.report(100, bad, None));
            assert_eq!(breaker.admit(100), Err(5_000));
            assert_eq!(breaker.admit(5_099), Err(1));
        }
    }

    #[test]
    fn calls_older_than_the_window_do_not_count() {
        let mut breaker = breaker();
        (0..9).for_each(|_| _ = breaker.report(0, BROKEN, None));
        assert!(!breaker.report(10_000, BROKEN, None));
        assert!(matches!(breaker.state, State::Closed));
    }

    #[test]
    fn a_breaker_closes_only_when_all_probes_succeed() {
        let mut breaker = open_breaker();
        (0..3).for_each(|_| assert_eq!(breaker.admit(5_000), Ok(Admission::Probe)));
        assert!(breaker.admit(5_000).is_err(), "a fourth probe was admitted");
        assert!(matches!(breaker.state, State::HalfOpen { .. }));
        breaker.report(5_010, FINE, Some(1));
        assert!(breaker.report(5_010, BROKEN, Some(2)), "a failed probe did not open the breaker");
        assert_eq!(breaker.admit(5_010), Err(5_000));
        (0..3).for_each(|_| assert_eq!(breaker.admit(10_010), Ok(Admission::Probe)));
        (0..3).for_each(|probe| _ = breaker.report(10_011, FINE, Some(probe)));
        assert!(matches!(breaker.state, State::Closed));
    }

    #[test]
    fn reports_of_other_calls_are_no_probes_and_a_probe_counts_once() {
        let mut breaker = open_breaker();
        assert_eq!(breaker.admit(5_000), Ok(Admission::Probe));
        // Calls that were admitted before the breaker opened, and end only now.
        (0..9).for_each(|_| _ = breaker.report(5_001, FINE, None));
        assert!(!breaker.report(5_001, BROKEN, None));
        (0..9).for_each(|_| _ = breaker.report(5_001, FINE, Some(7)));
        assert!(matches!(breaker.state, State::HalfOpen { .. }));
        breaker.withdraw(Admission::Call);
        assert_eq!([breaker.admit(5_002), breaker.admit(5_002)], [Ok(Admission::Probe); 2]);
        assert!(breaker.admit(5_002).is_err(), "a call that was no probe gave one back");
        (8..10).for_each(|probe| _ = breaker.report(5_003, FINE, Some(probe)));
        assert!(matches!(breaker.state, State::Closed));
    }

    #[test]
    fn probes_that_are_never_reported_are_sent_again() {
        let mut breaker = open_breaker();
        (0..3).for_each(|_| assert_eq!(breaker.admit(5_000), Ok(Admission::Probe)));
        assert_eq!(breaker.admit(9_999), Err(1));
        assert_eq!(breaker.admit(10_000), Ok(Admission::Probe));
    }
}
