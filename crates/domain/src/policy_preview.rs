//! The preview of a policy's change: how many recorded calls it would have refused. The limiters' own models replay them.
//!
//! Calls are recorded by the minute, without their keys and permits. So each minute is replayed twice: with its calls spread evenly, and
//! all at once. The truth lies between. Every call counts as one permit of the same key.

use std::ops::AddAssign;

use uuid::Uuid;

use super::limiter::{Algorithm, ParameterSet, Parameters, State};
use super::policy::{Excess, NewPolicy};

/// The minutes that a preview shows.
pub const SHOWN_MINUTES: i64 = 60;
/// The most minutes that are replayed before them, so that a long window does not begin empty.
const LEAD_MINUTES_MAX: i64 = 24 * 60;

/// The recorded calls of a policy in one minute since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedMinute {
    pub minute: i64,
    pub granted: u64,
    pub refused: u64,
}

impl RecordedMinute {
    pub fn calls(&self) -> u64 {
        self.granted.saturating_add(self.refused)
    }
}

/// The calls that a replay refuses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[schema(as = Replayed)]
pub struct Refusals {
    /// If the calls of each minute came evenly.
    pub(crate) evenly: u64,
    /// If all calls of a minute came at once.
    pub(crate) at_once: u64,
}

impl AddAssign for Refusals {
    fn add_assign(&mut self, other: Self) {
        self.evenly = self.evenly.saturating_add(other.evenly);
        self.at_once = self.at_once.saturating_add(other.at_once);
    }
}

/// The minutes before the shown ones that an algorithm still counts.
pub fn lead_minutes(algorithm: &Algorithm) -> i64 {
    let Parameters { window_ms, lease_ms, .. } = algorithm.parameters();
    let span_ms = match algorithm.kind().parameter_set() {
        ParameterSet::Window | ParameterSet::Bucket => window_ms,
        ParameterSet::Leases => lease_ms,
    };
    (span_ms.unwrap_or(0) / MINUTE_MS + 1).min(LEAD_MINUTES_MAX)
}

/// Replays recorded minutes, oldest first. Returns the refusals of each minute.
pub fn replay(algorithm: &Algorithm, minutes: &[RecordedMinute]) -> Vec<Refusals> {
    let mut even = EvenCalls { algorithm, level: None, at_once: CallsAtOnce::new(algorithm) };
    let mut at_once = CallsAtOnce::new(algorithm);
    let refusals = minutes.iter().map(|recorded| {
        let calls = recorded.calls();
        Refusals {
            evenly: calls.saturating_sub(even.granted(recorded.minute, calls)),
            at_once: calls.saturating_sub(at_once.granted(recorded.minute, calls)),
        }
    });
    refusals.collect()
}

const MINUTE_MS: i64 = 60_000;
const MINUTE_US: i64 = 60_000_000;

/// A limiter that is called once a minute, by all the calls of that minute.
struct CallsAtOnce<'a> {
    algorithm: &'a Algorithm,
    state: State,
}

impl<'a> CallsAtOnce<'a> {
    fn new(algorithm: &'a Algorithm) -> Self {
        Self { algorithm, state: State::default() }
    }

    /// The calls that are granted at the beginning of a minute. Two steps of the model suffice, because a grant says how many permits are
    /// left.
    fn granted(&mut self, minute: i64, calls: u64) -> u64 {
        let Some(others) = calls.checked_sub(1) else { return 0 };
        if self.algorithm.is_unlimited() {
            return calls;
        }
        let mut take = |permits: i64, lease: u128| {
            let lease = Uuid::from_u128(u128::from(minute.unsigned_abs()) * 2 + lease);
            let verdict = self.algorithm.take(&mut self.state, minute * MINUTE_US, permits, lease);
            verdict.filter(|verdict| verdict.granted)
        };
        let Some(first) = take(1, 0) else { return 0 };
        let more = i64::try_from(others).unwrap_or(i64::MAX).min(first.remaining);
        if more < 1 || take(more, 1).is_none() { 1 } else { 1 + more.unsigned_abs() }
    }
}

/// A limiter whose calls are spread evenly over each minute.
struct EvenCalls<'a> {
    algorithm: &'a Algorithm,
    /// A bucket's free permits times its period in microseconds, as in the models, at the end of this minute.
    level: Option<(i64, i64)>,
    /// For windows longer than a minute.
    at_once: CallsAtOnce<'a>,
}

impl EvenCalls<'_> {
    fn granted(&mut self, minute: i64, calls: u64) -> u64 {
        let Parameters { limit, window_ms, rate, capacity, .. } = self.algorithm.parameters();
        if self.algorithm.is_unlimited() {
            return calls;
        }
        match (self.algorithm.kind().parameter_set(), limit, window_ms, rate.zip(capacity)) {
            // Each window of the minute has its share of the calls.
            (ParameterSet::Window, Some(limit), Some(ms @ 1..=MINUTE_MS), _) => {
                calls.min((limit.saturating_mul(MINUTE_MS) / ms).unsigned_abs())
            }
            (ParameterSet::Window, ..) => self.at_once.granted(minute, calls),
            (ParameterSet::Bucket, _, Some(ms), Some((rate, capacity))) => {
                self.granted_by_bucket(minute, calls, [capacity, rate, ms * 1000])
            }
            // The record lacks how long permits were held. Each is given back before the next call.
            (ParameterSet::Bucket | ParameterSet::Leases, ..) => calls,
        }
    }

    /// Permits that the bucket regains in a minute are granted in that minute.
    fn granted_by_bucket(&mut self, minute: i64, calls: u64, [capacity, rate, period_us]: [i64; 3]) -> u64 {
        let full = capacity.saturating_mul(period_us);
        let regained = rate.saturating_mul(MINUTE_US);
        let level = match self.level {
            // Minutes without calls fill the bucket.
            Some((level, end)) => full.min(regained.saturating_mul((minute - end).max(0)).saturating_add(level)),
            None => full,
        };
        let free = level.saturating_add(regained);
        let granted = i64::try_from(calls).unwrap_or(i64::MAX).min(free / period_us.max(1));
        self.level = Some((full.min(free - granted * period_us), minute + 1));
        granted.unsigned_abs()
    }
}

/// A preview in words: the calls of the last hour, their refusals, and the refusals of the replay.
pub fn summary(calls: u64, recorded: u64, changed: Refusals) -> String {
    if calls == 0 {
        return "No call was recorded in the last hour, so there is nothing to replay.".to_owned();
    }
    let Refusals { evenly, at_once } = changed;
    format!(
        "Of {calls} calls in the last hour, {recorded} were refused when they came. The change would have refused {evenly} if the \
         calls came evenly over each minute, and {at_once} if all calls of a minute came at once."
    )
}

/// Explanations of a preview's figures.
pub fn notes(policy: &NewPolicy) -> Vec<&'static str> {
    let leases = policy.algorithm.kind().grants_leases();
    let span_minutes = lead_minutes(&policy.algorithm);
    let queues = matches!(policy.excess, Excess::Queue { .. });
    let all = [
        (
            true,
            "Calls are recorded by the minute. Fewest are refused if they came evenly over each minute, most if they came all at once.",
        ),
        (
            true,
            "A call counts as one permit. A caller that is refused often asks again: such calls are in the record, too.",
        ),
        (true, "A call that another policy refused is not in this policy's record."),
        (
            true,
            "All calls count as those of one key. Where callers give different keys, fewer are refused, down to none.",
        ),
        (
            leases,
            "How long callers held their permits is not recorded: evenly assumes that each was given back before the next call.",
        ),
        (
            span_minutes == LEAD_MINUTES_MAX,
            "The window reaches back longer than a day; calls before that are left out.",
        ),
        (
            policy.range.is_some(),
            "The threshold moves by itself; the replay takes the one that the change begins with.",
        ),
        (
            queues,
            "A call beyond the limit first waits in line: some of those that are counted as refused would be granted later.",
        ),
        (matches!(policy.excess, Excess::Shadow), "In shadow, these calls are granted, and only counted as refused."),
        (matches!(policy.excess, Excess::Degrade { .. }), "These calls would get the prepared answer."),
    ];
    all.into_iter().filter(|(applies, _)| *applies).map(|(_, note)| note).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::limiter::AlgorithmKind;
    use super::*;

    fn minutes(calls: &[u64]) -> Vec<RecordedMinute> {
        let numbered = (29_000_000..).zip(calls);
        numbered.map(|(minute, calls)| RecordedMinute { minute, granted: *calls, refused: 0 }).collect()
    }

    fn refused(algorithm: &Algorithm, calls: &[u64]) -> Vec<(u64, u64)> {
        replay(algorithm, &minutes(calls)).iter().map(|refusals| (refusals.evenly, refusals.at_once)).collect()
    }

    #[test]
    fn a_longer_window_counts_the_minutes_before() {
        // Aligned windows of ten minutes: one begins with the first minute, the next with the last.
        let ten = Algorithm::of(AlgorithmKind::FixedWindow, 10, 600_000);
        let calls = [8, 3, 0, 0, 0, 0, 0, 0, 0, 0, 8];
        let replayed = refused(&ten, &calls);
        assert_eq!((replayed[0], replayed[1], replayed[10]), ((0, 0), (1, 1), (0, 0)));
        let sliding = Algorithm::of(AlgorithmKind::SlidingLog, 10, 660_000);
        assert_eq!(refused(&sliding, &calls)[10], (8, 8));
    }

    #[test]
    fn a_bucket_has_its_capacity_and_what_it_regains() {
        // 1 a second, and 1 at once.
        let bucket = Algorithm::of(AlgorithmKind::TokenBucket, 1, 1000);
        assert_eq!(refused(&bucket, &[61, 60, 61]), [(0, 60), (0, 59), (1, 60)]);
        // An idle minute fills it again.
        assert_eq!(refused(&bucket, &[100, 0, 61])[2], (0, 60));
    }

    #[test]
    fn permits_in_flight_may_have_been_given_back_at_once() {
        let two = Algorithm::of(AlgorithmKind::Concurrency, 2, 90_000);
        assert_eq!(refused(&two, &[5, 5, 5]), [(0, 3), (0, 5), (0, 3)]);
    }

    fn any_kind() -> impl Strategy<Value = AlgorithmKind> {
        prop::sample::select(AlgorithmKind::ALL)
    }

    proptest! {
        /// The model refuses the same if it takes the calls one by one.
        #[test]
        fn two_steps_do_for_any_number_of_calls(
            kind in any_kind(), threshold in 1_i64..200, ms in 100_i64..=3_600_000,
            calls in prop::collection::vec(0_u64..300, 1..20),
        ) {
            let algorithm = Algorithm::of(kind, threshold, ms);
            let (mut at_once, mut state, mut lease) = (CallsAtOnce::new(&algorithm), State::default(), 0);
            for recorded in minutes(&calls) {
                let one_by_one = (0..recorded.calls()).filter(|_| {
                    lease += 1;
                    let taken = algorithm.take(&mut state, recorded.minute * MINUTE_US, 1, Uuid::from_u128(lease));
                    taken.is_some_and(|verdict| verdict.granted)
                });
                let one_by_one = one_by_one.count() as u64;
                prop_assert_eq!(at_once.granted(recorded.minute, recorded.calls()), one_by_one);
            }
        }
    }
}
