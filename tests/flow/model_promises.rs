//! The promises of the models: never above the limit in any window, no fraction lost, and refusals with the exact retry time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use seckill_domain::limiter::{Algorithm, AlgorithmKind, ParameterSet, State};
use uuid::Uuid;

use crate::test_limiter::{DAWN, bucket, leases, window};

/// A time or pause, and a number of permits.
type Ask = (i64, i64);

/// Pauses and permits for a window of a second. Now and then the clock is set back.
fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let pause = prop_oneof![6 => 0_i64..5_000, 4 => 0_i64..400_000, 1 => 0_i64..3_000_000, 1 => -500_000_i64..0];
    prop::collection::vec((pause, prop_oneof![4 => Just(1_i64), 1 => 1_i64..=5]), 1..120)
}

fn grants(algorithm: Algorithm, asks: &[Ask]) -> Vec<Ask> {
    grants_of_changing(|_| algorithm, asks)
}

/// `algorithm` is that of the ask with this number.
fn grants_of_changing(algorithm: impl Fn(usize) -> Algorithm, asks: &[Ask]) -> Vec<Ask> {
    let (mut state, mut now, mut granted) = (State::default(), DAWN, Vec::new());
    for (i, (pause, permits)) in asks.iter().enumerate() {
        now += pause;
        let verdict = algorithm(i).take(&mut state, now, *permits, Uuid::new_v4());
        granted.extend(verdict.filter(|verdict| verdict.granted).map(|verdict| (verdict.at_us, *permits)));
    }
    granted
}

fn fullest_window(grants: &[Ask], window_us: i64) -> i64 {
    let within = |end: i64| grants.iter().filter(move |(at, _)| (end - window_us + 1..=end).contains(at));
    grants.iter().map(|(end, _)| within(*end).map(|(_, permits)| permits).sum()).max().unwrap_or(0)
}

fn any_kind() -> impl Strategy<Value = Algorithm> {
    let kind = prop::sample::select(AlgorithmKind::ALL);
    (kind, 5_i64..30, 1_i64..30).prop_map(|(kind, limit, rate)| match kind.parameter_set() {
        ParameterSet::Window => window(kind, limit, 1000),
        ParameterSet::Bucket => bucket(kind, limit, rate, 1000),
        ParameterSet::Leases => leases(limit, 1000),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: Some(Box::new(
        proptest::test_runner::FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::with_cases(500) })]

    #[test]
    fn never_above_the_limit_in_any_window(asks in asks(), limit in 5_i64..30, rate in 1_i64..30) {
        for kind in [AlgorithmKind::SlidingLog, AlgorithmKind::SlidingCounter] {
            let fullest = fullest_window(&grants(window(kind, limit, 1000), &asks), 1_000_000);
            prop_assert!(fullest <= limit, "{fullest} of {limit}, {kind:?}");
        }
        let fullest = fullest_window(&grants(leases(limit, 1000), &asks), 1_000_000);
        prop_assert!(fullest <= limit, "{fullest} of {limit} in flight");

        let mut aligned = BTreeMap::<i64, i64>::new();
        for (at, permits) in grants(window(AlgorithmKind::FixedWindow, limit, 1000), &asks) {
            *aligned.entry(at / 1_000_000).or_default() += permits;
        }
        prop_assert!(aligned.values().all(|count| *count <= limit), "{aligned:?} of {limit}");

        // Buckets: from any grant to any later one, at most the capacity and the flow in between.
        for kind in [AlgorithmKind::TokenBucket, AlgorithmKind::LeakyBucket] {
            let granted = grants(bucket(kind, limit, rate, 1000), &asks);
            for from in 0..granted.len() {
                let mut permits = 0;
                for (at, of_grant) in &granted[from..] {
                    permits += of_grant;
                    let flowed = (at - granted[from].0) * rate;
                    prop_assert!((permits - limit) * 1_000_000 <= flowed, "{permits} of {limit}, {kind:?}");
                }
            }
        }
    }

    #[test]
    fn a_refusal_says_to_the_millisecond_when_the_call_would_be_granted(
        algorithm in any_kind(), asks in asks(), permits in 1_i64..=5,
    ) {
        let (mut state, mut now) = (State::default(), DAWN);
        for (pause, permits) in asks {
            now += pause;
            algorithm.take(&mut state, now, permits, Uuid::new_v4());
        }
        let verdict = algorithm.take(&mut state, now, permits, Uuid::new_v4()).unwrap();
        if !verdict.granted {
            let at = |after_ms: i64| {
                algorithm.take(&mut state.clone(), now + after_ms * 1000, permits, Uuid::new_v4()).unwrap()
            };
            prop_assert!(at(verdict.retry_after_ms).granted, "not granted at the time it said: {verdict:?}");
            let earlier = at(verdict.retry_after_ms - 1);
            prop_assert!(!earlier.granted, "granted before the time it said: {verdict:?} {earlier:?}");
            prop_assert_eq!(at(verdict.reset_ms).remaining, algorithm.max_permits() - permits, "not everything is available at the reset");
        }
    }

    #[test]
    fn a_token_bucket_loses_no_fraction(
        pauses in prop::collection::vec(0_i64..3_000_000, 1..200), capacity in 1_i64..10, rate in 1_i64..10,
        period_ms in prop_oneof![Just(1000_i64), 100_i64..10_000],
    ) {
        // The same bucket by the time at which it is full, in microseconds times the rate.
        let (bucket, per_token) = (bucket(AlgorithmKind::TokenBucket, capacity, rate, period_ms), i128::from(period_ms) * 1000);
        let (mut state, mut now, mut full_at) = (State::default(), DAWN, i128::MIN);
        for pause in pauses {
            now += pause;
            let moment = i128::from(now) * i128::from(rate);
            let would_be_full_at = full_at.max(moment) + per_token;
            let due = would_be_full_at - moment <= per_token * i128::from(capacity);
            if due {
                full_at = would_be_full_at;
            }
            prop_assert_eq!(bucket.take(&mut state, now, 1, Uuid::nil()).unwrap().granted, due, "at {}", now);
        }
    }

    #[test]
    fn changing_the_width_back_and_forth_keeps_the_limit(asks in asks(), limit in 5_i64..10) {
        // The sub-windows are 8 ms and 480 ms wide.
        for kind in [AlgorithmKind::SlidingLog, AlgorithmKind::SlidingCounter] {
            let (narrow, wide) = (window(kind, limit, 1000), window(kind, limit, 60_000));
            let granted = grants_of_changing(|i| if i % 3 == 0 { wide } else { narrow }, &asks);
            let fullest = fullest_window(&granted, 1_000_000);
            prop_assert!(fullest <= limit, "{fullest} of {limit}, {kind:?}");
        }
    }

    #[test]
    fn changing_a_bucket_back_and_forth_grants_no_more_than_the_larger_one(
        asks in asks(), kind in prop_oneof![Just(AlgorithmKind::TokenBucket), Just(AlgorithmKind::LeakyBucket)], small in 1_i64..5,
    ) {
        // In any order of the two policies, the grants do not exceed those of the larger one alone.
        let (large, smaller) = (bucket(kind, 10, 7, 1000), bucket(kind, small, 3, 700));
        let granted = grants_of_changing(|i| if i % 2 == 0 { large } else { smaller }, &asks);
        let total: i64 = granted.iter().map(|(_, permits)| permits).sum();
        let lasted = granted.last().map_or(0, |(at, _)| at - granted[0].0);
        prop_assert!((total - 10) * 1_000_000 <= lasted * 7, "{total} in {lasted} us");
    }
}

#[test]
fn a_leaky_bucket_spaces_its_grants_evenly() {
    let bucket = bucket(AlgorithmKind::LeakyBucket, 5, 2, 1000);
    let mut state = State::default();
    let mut take = |after_ms: i64| bucket.take(&mut state, DAWN + after_ms * 1000, 1, Uuid::nil()).unwrap();
    let turns: Vec<i64> = (0..5).map(|_| take(0).delay_ms).collect();
    assert_eq!(turns, [0, 500, 1000, 1500, 2000]);
    assert!(!take(499).granted);
    assert_eq!(take(500).delay_ms, 2000, "its turn is at 2.5 s");
}

#[test]
fn a_larger_bucket_does_not_start_full_and_old_time_counts_at_the_old_rate() {
    let (slow, fast) =
        (bucket(AlgorithmKind::TokenBucket, 2, 1, 1000), bucket(AlgorithmKind::TokenBucket, 100, 50, 1000));
    let mut state = State::default();
    assert!(slow.take(&mut state, DAWN, 2, Uuid::nil()).unwrap().granted);
    let verdict = fast.take(&mut state, DAWN + 1_500_000, 2, Uuid::nil()).unwrap();
    assert_eq!((verdict.granted, verdict.remaining), (false, 1), "1.5 tokens, at the old rate");
    assert_eq!(verdict.retry_after_ms, 10, "half a token, at the new rate");
    assert!(fast.take(&mut state, DAWN + 1_510_000, 2, Uuid::nil()).unwrap().granted);
}
