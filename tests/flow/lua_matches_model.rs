//! The Lua script and the Rust model of each limiter give the same answers, while policies change and permits are given back.

use futures_util::future::join_all;
use proptest::prelude::*;
use proptest::test_runner::{Config, FailurePersistence, FileFailurePersistence, TestRunner};
use seckill_domain::limiter::{Algorithm, AlgorithmKind, State, Verdict};
use seckill_redis::GateError;
use seckill_redis::limiter::{AcquireReply, Take};
use tokio::runtime::Builder;
use uuid::Uuid;

use crate::test_limiter::{Bench, DAWN, bucket, leases, of_kind, slot, take, window};

#[derive(Debug, Clone)]
enum Step {
    Take { after: After, permits: u32 },
    GiveBack { after: After, which: prop::sample::Index },
    Change(Algorithm),
}

/// The time of a step, in microseconds.
#[derive(Debug, Clone, Copy)]
enum After {
    /// After the last step.
    Us(i64),
    /// After the retry time of the last refusal.
    RetryAfter(i64),
}

fn after() -> impl Strategy<Value = After> {
    prop_oneof![
        2 => Just(After::Us(0)),
        4 => (1_i64..2_000).prop_map(After::Us),
        2 => (0_i64..3_000_000).prop_map(After::Us),
        // Whole milliseconds hit the edges of windows to the microsecond.
        5 => (0_i64..3_000).prop_map(|ms| After::Us(ms * 1000)),
        2 => (-60_000_000_i64..0).prop_map(After::Us),
        1 => (0_i64..10_000_000_000_000).prop_map(After::Us),
        5 => prop_oneof![-1001_i64..=1, Just(-1), Just(0), Just(1)].prop_map(After::RetryAfter),
    ]
}

fn step(kind: AlgorithmKind) -> impl Strategy<Value = Step> {
    let permits =
        prop_oneof![10 => 1_u32..=3, 4 => 1_u32..=12, 1 => Just(0), 1 => Just(u32::MAX), 1 => 1_u32..=1_000_000];
    prop_oneof![
        12 => (after(), permits).prop_map(|(after, permits)| Step::Take { after, permits }),
        2 => (after(), any::<prop::sample::Index>()).prop_map(|(after, which)| Step::GiveBack { after, which }),
        1 => algorithm(kind).prop_map(Step::Change),
    ]
}

fn algorithm(kind: AlgorithmKind) -> BoxedStrategy<Algorithm> {
    let few = || prop_oneof![9 => 1_i64..=12, 1 => Just(10_000)];
    let span = || {
        prop_oneof![
            3 => 100_i64..3_000,
            3 => (1_i64..=16).prop_map(|parts| parts * 125),
            1 => 100_i64..=2_678_400_000,
        ]
    };
    match kind {
        AlgorithmKind::FixedWindow | AlgorithmKind::SlidingLog | AlgorithmKind::SlidingCounter => {
            (few(), span()).prop_map(move |(limit, ms)| window(kind, limit, ms)).boxed()
        }
        AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket => {
            let many = || prop_oneof![6 => 1_i64..=12, 1 => Just(1_000_000), 1 => 1_i64..=1_000_000];
            let period = prop_oneof![3 => Just(1_000), 2 => 100_i64..=10_000, 2 => 100_i64..=3_600_000];
            let of = move |(capacity, rate, ms)| bucket(kind, capacity, rate, ms);
            (many(), many(), period).prop_map(of).boxed()
        }
        AlgorithmKind::Concurrency => (few(), span()).prop_map(|(limit, ms)| leases(limit, ms.min(86_400_000))).boxed(),
    }
}

struct ModelCall {
    call: Call,
    now: i64,
    algorithm: Algorithm,
    permits: u32,
    lease: Uuid,
}

enum Call {
    /// With the model's answer.
    Take(Option<Verdict>),
    GiveBack(Verdict),
}

fn run_model(first: Algorithm, steps: Vec<Step>) -> Vec<ModelCall> {
    let (mut algorithm, mut state, mut now, mut retry_at) = (first, State::default(), DAWN, DAWN);
    let (mut grants, mut calls) = (Vec::new(), Vec::new());
    for step in steps {
        if let Step::Take { after, .. } | Step::GiveBack { after, .. } = step {
            now = match after {
                After::Us(us) => now + us,
                After::RetryAfter(us) => retry_at + us,
            };
        }
        match step {
            Step::Change(other) => algorithm = other,
            Step::GiveBack { which, .. } if !grants.is_empty() => {
                let (algorithm, permits, lease, verdict): (Algorithm, u32, Uuid, Verdict) =
                    grants.remove(which.index(grants.len()));
                algorithm.give_back(&mut state, now, permits.into(), verdict.receipt, lease);
                calls.push(ModelCall { call: Call::GiveBack(verdict), now, algorithm, permits, lease });
            }
            Step::GiveBack { .. } => {}
            Step::Take { permits, .. } => {
                let lease = Uuid::new_v4();
                let expected = algorithm.take(&mut state, now, permits.into(), lease);
                match expected {
                    Some(verdict) if verdict.granted => grants.push((algorithm, permits, lease, verdict)),
                    Some(verdict) => retry_at = now + verdict.retry_after_ms * 1000,
                    None => {}
                }
                calls.push(ModelCall { call: Call::Take(expected), now, algorithm, permits, lease });
            }
        }
    }
    calls
}

/// Makes the same calls in Redis, and compares the answers. All calls are sent at once, in order, over one connection.
async fn compare(bench: &Bench, model: &[ModelCall]) -> Result<(), TestCaseError> {
    let slot = slot("agreement", &Uuid::new_v4().to_string());
    let calls = model.iter().map(|ModelCall { call, now, algorithm, permits, lease }| {
        let (limiter, slot) = (bench.limiter.at(*now), &slot);
        async move {
            let take = [Take { slot, algorithm, permits: *permits, lease: Some(*lease), has_line: false }];
            match call {
                Call::Take(_) => limiter.acquire(&take).await.map(|answer| answer.verdicts[0]),
                Call::GiveBack(verdict) => {
                    let answer = AcquireReply { granted: true, verdicts: vec![Some(*verdict)] };
                    limiter.give_back(&take, &answer).await.map(|()| None)
                }
            }
        }
    });
    for (got, model) in join_all(calls).await.into_iter().zip(model) {
        match (got, &model.call) {
            (Ok(None), Call::GiveBack(_)) | (Err(GateError::InvalidRequest), Call::Take(None)) => {}
            (Ok(Some(got)), Call::Take(Some(expected))) => {
                prop_assert_eq!(got, *expected, "{} permits of {:?} at {}", model.permits, model.algorithm, model.now);
            }
            (got, _) => prop_assert!(false, "{got:?} to {} permits of {:?}", model.permits, model.algorithm),
        }
    }
    Ok(())
}

fn compare_random_calls(kind: AlgorithmKind) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let bench = runtime.block_on(Bench::new());
    // Loads both scripts: a missing one would be called again, out of order.
    runtime.block_on(async {
        let (algorithm, slot) = (of_kind(kind), slot("load", ""));
        let take = [take(&slot, &algorithm, 1)];
        let answer = bench.limiter.acquire(&take).await.unwrap();
        bench.limiter.give_back(&take, &answer).await.unwrap();
    });
    let failure_persistence: Option<Box<dyn FailurePersistence>> =
        Some(Box::new(FileFailurePersistence::WithSource("regressions")));
    let config = Config { cases: 2_000, source_file: Some(file!()), failure_persistence, ..Config::default() };
    let calls = (algorithm(kind), prop::collection::vec(step(kind), 1..13));
    let compare = |(first, steps)| runtime.block_on(compare(&bench, &run_model(first, steps)));
    let result = TestRunner::new(config).run(&calls, compare);
    runtime.block_on(bench.clear());
    result.unwrap();
}

macro_rules! compared {
    ($($name:ident: $kind:ident,)+) => {
        $(#[test]
        fn $name() {
            compare_random_calls(AlgorithmKind::$kind);
        })+

        #[test]
        fn every_algorithm_is_compared() {
            assert_eq!([$(AlgorithmKind::$kind),+], AlgorithmKind::ALL);
        }
    };
}

compared! {
    fixed_window: FixedWindow,
    sliding_log: SlidingLog,
    sliding_counter: SlidingCounter,
    token_bucket: TokenBucket,
    leaky_bucket: LeakyBucket,
    concurrency: Concurrency,
}
