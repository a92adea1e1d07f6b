//! The Lua and the model give the same answers: to any costs, at any times, through changes of policy and returns.

use futures_util::future::join_all;
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};
use seckill::domain::limiter::{Algorithm, AlgorithmKind, State, Verdict};
use seckill::gate::GateError;
use seckill::gate::limiter::{AcquireReply, Take};
use tokio::runtime::Builder;
use uuid::Uuid;

use crate::test_limiter::{Bench, DAWN, bucket, leases, one_of_each, slot, take, window};

#[derive(Debug, Clone)]
enum Step {
    Take { after: After, permits: u32 },
    GiveBack { after: After, which: prop::sample::Index },
    Change(Algorithm),
}

/// When a step happens, seen from the one before.
#[derive(Debug, Clone, Copy)]
enum After {
    Us(i64),
    /// So many microseconds beside the moment that the last refusal named.
    RetryAfter(i64),
}

fn after() -> impl Strategy<Value = After> {
    prop_oneof![
        2 => Just(After::Us(0)),
        4 => (1_i64..2_000).prop_map(After::Us),
        2 => (0_i64..3_000_000).prop_map(After::Us),
        // Whole milliseconds meet the edges of windows to the microsecond.
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

/// A call that a story makes, and what the model says to it.
enum Call {
    Take { expected: Option<Verdict> },
    GiveBack(Verdict),
}

struct ChannelReport {
    call: Call,
    now: i64,
    algorithm: Algorithm,
    permits: u32,
    lease: Uuid,
}

/// What the model makes of a story.
fn tell(first: Algorithm, steps: Vec<Step>) -> Vec<ChannelReport> {
    let (mut algorithm, mut state, mut now, mut retry_at) = (first, State::default(), DAWN, DAWN);
    let (mut grants, mut told) = (Vec::new(), Vec::new());
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
                told.push(ChannelReport { call: Call::GiveBack(verdict), now, algorithm, permits, lease });
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
                told.push(ChannelReport { call: Call::Take { expected }, now, algorithm, permits, lease });
            }
        }
    }
    told
}

/// The same story in Redis. All calls are sent at once, in order, over the one connection: that is how it gets done in
/// seconds.
async fn compare(bench: &Bench, told: &[ChannelReport]) -> Result<(), TestCaseError> {
    let slot = slot("agreement", &Uuid::new_v4().to_string());
    let calls = told.iter().map(|ChannelReport { call, now, algorithm, permits, lease }| {
        let (limiter, slot) = (bench.limiter.at(*now), &slot);
        async move {
            let take = [Take { slot, algorithm, permits: *permits, lease: Some(*lease) }];
            match call {
                Call::Take { .. } => limiter.acquire(&take).await.map(|answer| answer.verdicts[0]),
                Call::GiveBack(verdict) => {
                    let answer = AcquireReply { granted: true, verdicts: vec![Some(*verdict)] };
                    limiter.give_back(&take, &answer).await.map(|()| None)
                }
            }
        }
    });
    for (got, told) in join_all(calls).await.into_iter().zip(told) {
        match (got, &told.call) {
            (Ok(None), Call::GiveBack(_)) | (Err(GateError::Impossible), Call::Take { expected: None }) => {}
            (Ok(Some(got)), Call::Take { expected: Some(expected) }) => {
                prop_assert_eq!(got, *expected, "{} permits of {:?} at {}", told.permits, told.algorithm, told.now);
            }
            (got, _) => prop_assert!(false, "{got:?} to {} permits of {:?}", told.permits, told.algorithm),
        }
    }
    Ok(())
}

/// Both scripts in the server's cache: one that was missing would be asked again, out of order.
async fn load(bench: &Bench, kind: AlgorithmKind) {
    let algorithm = one_of_each().into_iter().find(|algorithm| algorithm.kind() == kind).unwrap();
    let slot = slot("load", "");
    let take = [take(&slot, &algorithm, 1)];
    let answer = bench.limiter.acquire(&take).await.unwrap();
    bench.limiter.give_back(&take, &answer).await.unwrap();
}

fn agree(kind: AlgorithmKind) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let bench = runtime.block_on(Bench::new());
    runtime.block_on(load(&bench, kind));
    let persistence = Box::new(FileFailurePersistence::WithSource("regressions"));
    let config = Config {
        cases: 2_000,
        source_file: Some(file!()),
        failure_persistence: Some(persistence),
        ..Config::default()
    };
    let story = (algorithm(kind), prop::collection::vec(step(kind), 1..13));
    let told =
        TestRunner::new(config).run(&story, |(first, steps)| runtime.block_on(compare(&bench, &tell(first, steps))));
    runtime.block_on(bench.clear());
    told.unwrap();
}

#[test]
fn on_fixed_windows() {
    agree(AlgorithmKind::FixedWindow);
}

#[test]
fn on_sliding_logs() {
    agree(AlgorithmKind::SlidingLog);
}

#[test]
fn on_sliding_counters() {
    agree(AlgorithmKind::SlidingCounter);
}

#[test]
fn on_token_buckets() {
    agree(AlgorithmKind::TokenBucket);
}

#[test]
fn on_leaky_buckets() {
    agree(AlgorithmKind::LeakyBucket);
}

#[test]
fn on_concurrency() {
    agree(AlgorithmKind::Concurrency);
}
