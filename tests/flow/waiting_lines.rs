//! Waiting in line: in the order of arrival, for a bounded time, with a bounded number of waiters.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use futures_util::future::join_all;
use seckill_domain::limiter::{Algorithm, AlgorithmKind, SlotKey};
use seckill_redis::limiter::Take;
use seckill_redis::limiter::line::{LINE_MAX, Pauses, Turn, Waiter};
use uuid::Uuid;

use crate::test_limiter::{Bench, DAWN, bucket, leases, slot, take, window};

const SECOND: i64 = 1_000_000;

/// A line at one limiter, at times that the test sets.
struct Line {
    bench: Bench,
    slot: SlotKey,
    algorithm: Algorithm,
}

impl Line {
    async fn at(algorithm: Algorithm) -> Self {
        Self { bench: Bench::new().await, slot: slot("line", "k"), algorithm }
    }

    /// Uses all permits of the limiter, so that the next caller must wait.
    async fn used_up(self) -> Self {
        let permits = u32::try_from(self.algorithm.max_permits()).unwrap();
        let takes = [take(&self.slot, &self.algorithm, permits)];
        assert!(self.bench.limiter.at(DAWN).acquire(&takes).await.unwrap().granted);
        self
    }

    async fn ask(&self, us: i64, waiter: &Waiter) -> Turn {
        let take = take(&self.slot, &self.algorithm, 1);
        self.bench.limiter.at(DAWN + us).wait_in_line(&take, waiter).await.unwrap()
    }

    /// The position in line, or 0 after a grant.
    async fn place(&self, us: i64, waiter: &Waiter) -> i64 {
        match self.ask(us, waiter).await {
            Turn::Granted(_) => 0,
            Turn::Wait { position, .. } => position,
            other => panic!("{other:?}"),
        }
    }

    /// These waiters ask one after another, and get these positions.
    async fn places(&self, us: i64, expected: &[(&Waiter, i64)]) {
        for (number, (waiter, position)) in expected.iter().enumerate() {
            assert_eq!(self.place(us, waiter).await, *position, "ask {number} of {}, at {us} us", expected.len());
        }
    }

    /// All waiters ask at once, and ask again exactly when they are told to. Returns the times and indices of the grants, and the calls.
    async fn serve(&self, waiters: &[Waiter]) -> (Vec<i64>, Vec<usize>, usize) {
        let mut asks: BinaryHeap<_> = (0..waiters.len()).map(|index| Reverse((0, index))).collect();
        let (mut served, mut calls) = (Vec::new(), 0);
        while let Some(Reverse((at_us, index))) = asks.pop() {
            calls += 1;
            match self.ask(at_us, &waiters[index]).await {
                Turn::Granted(_) => served.push((at_us, index)),
                Turn::Wait { ask_again, .. } => {
                    asks.push(Reverse((at_us + i64::try_from(ask_again.as_micros()).unwrap(), index)));
                }
                turn => panic!("{turn:?}"),
            }
        }
        let (times, order): (Vec<i64>, Vec<usize>) = served.into_iter().unzip();
        assert!(order.is_sorted(), "{:?}: {order:?}", self.algorithm);
        (times, order, calls)
    }
}

fn waiter() -> Waiter {
    let pauses = Pauses { shortest: Duration::from_millis(5), longest: Duration::from_millis(400) };
    Waiter { id: Uuid::new_v4(), is_new: true, patience: Duration::from_secs(10), line_max: 10, pauses }
}

fn waiters<const N: usize>() -> [Waiter; N] {
    std::array::from_fn(|_| waiter())
}

#[tokio::test]
async fn waiters_are_served_in_the_order_of_arrival() {
    let line = Line::at(bucket(AlgorithmKind::TokenBucket, 1, 1, 1000)).await.used_up().await;
    let [a, b, c, late] = waiters();
    line.places(0, &[(&a, 1), (&b, 2), (&c, 3)]).await;
    // All ask once more before there is a token.
    line.places(SECOND / 2, &[(&c, 3), (&b, 2), (&a, 1)]).await;
    // There is a token now; it belongs to the first waiter, even if others ask earlier. Then all move up, and the served one is last.
    line.places(SECOND, &[(&late, 4), (&c, 3), (&b, 2), (&a, 0), (&b, 1), (&a, 4)]).await;
}

#[tokio::test]
async fn a_waiter_is_granted_when_there_is_room_for_all_ahead_too() {
    let line = Line::at(bucket(AlgorithmKind::TokenBucket, 5, 10, 1000)).await.used_up().await;
    let [a, b, c] = waiters();
    line.places(0, &[(&a, 1), (&b, 2)]).await;
    // Of two tokens, one is for the second waiter, and the other is left for the first one alone.
    line.places(SECOND / 5, &[(&c, 3), (&b, 0), (&c, 2), (&a, 0), (&c, 1)]).await;
}

/// A call over several limiters stands in no line, and does not overtake any.
#[tokio::test]
async fn who_does_not_wait_passes_nobody_who_waits() {
    let line = Line::at(bucket(AlgorithmKind::TokenBucket, 2, 2, 1000)).await.used_up().await;
    let (first, other) = (waiter(), slot("other", "k"));
    assert_eq!(line.place(0, &first).await, 1);
    let several = async |us| {
        let waits = Take { has_line: true, ..take(&line.slot, &line.algorithm, 1) };
        let takes = [take(&other, &line.algorithm, 1), waits];
        line.bench.limiter.at(DAWN + us).acquire(&takes).await.unwrap()
    };
    let one_token = SECOND / 2;
    let refused = several(one_token).await;
    assert!(!refused.granted, "the token is for the first waiter");
    assert_eq!(refused.verdicts[1].unwrap().retry_after_ms, 500, "when there is a second one");
    assert_eq!(line.place(one_token, &first).await, 0);
    assert!(several(SECOND).await.granted, "nobody waits any more");
}

#[tokio::test]
async fn a_full_line_refuses_and_does_not_change() {
    let line = Line::at(window(AlgorithmKind::FixedWindow, 3, 60_000)).await.used_up().await;
    let short = || Waiter { line_max: 2, ..waiter() };
    line.places(0, &[(&short(), 1), (&short(), 2)]).await;
    let before = line.bench.dump().await;
    assert!(matches!(line.ask(0, &short()).await, Turn::LineFull(verdict) if verdict.retry_after_ms == 60_000));
    assert_eq!(line.bench.dump().await, before);
}

#[tokio::test]
async fn a_waiter_that_crashed_does_not_block_the_line() {
    let line = Line::at(leases(1, 60_000)).await.used_up().await;
    let [dead, next] = waiters();
    line.places(0, &[(&dead, 1), (&next, 2)]).await;
    assert_eq!(line.place(SECOND - 1, &next).await, 2);
    assert_eq!(line.place(SECOND, &next).await, 1, "the first waiter was silent for a second");
}

#[tokio::test]
async fn the_wait_is_bounded_and_a_place_can_be_given_up() {
    let line = Line::at(window(AlgorithmKind::SlidingLog, 1, 60_000)).await.used_up().await;
    let hurried = Waiter { patience: Duration::from_millis(300), ..waiter() };
    let Turn::Wait { ask_again, .. } = line.ask(0, &hurried).await else { panic!("granted") };
    assert_eq!(ask_again, Duration::from_millis(300), "later than its patience");
    let behind = waiter();
    assert_eq!(line.place(100_000, &behind).await, 2);
    let hurried = Waiter { patience: Duration::ZERO, ..hurried };
    assert!(matches!(line.ask(300_000, &hurried).await, Turn::TooLate(_)));
    assert_eq!(line.place(300_000, &behind).await, 1);
    let at_once = Waiter { patience: Duration::ZERO, ..waiter() };
    assert!(matches!(line.ask(300_000, &at_once).await, Turn::TooLate(_)));

    let last = waiter();
    assert_eq!(line.place(300_000, &last).await, 2);
    assert!(line.bench.limiter.leave_line(&line.slot, behind.id).await.unwrap());
    assert!(!line.bench.limiter.leave_line(&line.slot, behind.id).await.unwrap());
    assert_eq!(line.place(300_000, &last).await, 1);
}

/// The permits of waiters who left do not hold back the waiters behind them.
#[tokio::test]
async fn waiters_who_leave_from_the_middle_are_skipped() {
    let line = Line::at(bucket(AlgorithmKind::TokenBucket, 1, 10, 1000)).await.used_up().await;
    let [a, b, c, d] = waiters();
    line.places(0, &[(&a, 1), (&b, 2), (&c, 3), (&d, 4)]).await;
    for gone in [&b, &c] {
        assert!(line.bench.limiter.leave_line(&line.slot, gone.id).await.unwrap());
    }
    let token = SECOND / 10;
    line.places(token, &[(&d, 2), (&a, 0), (&d, 1)]).await;
    assert_eq!(line.place(2 * token, &d).await, 0);
}

/// No call reads the whole line: with this many places, Lua's stack would overflow.
#[tokio::test]
async fn a_line_may_be_long() {
    // One token an hour: Redis keeps the bucket for longer than ten thousand calls take on any machine.
    let line = Line::at(bucket(AlgorithmKind::TokenBucket, 1, 1, 3_600_000)).await.used_up().await;
    let waiters: Vec<Waiter> = (0..10_000).map(|_| Waiter { line_max: LINE_MAX, ..waiter() }).collect();
    assert_eq!(line.place(0, &waiters[0]).await, 1);
    let mut places = 2..;
    // This many calls are sent at once, in order, over one connection.
    for few in waiters[1..].chunks(30) {
        for place in join_all(few.iter().map(|waiter| line.place(0, waiter))).await {
            assert_eq!(Some(place), places.next());
        }
    }
    line.places(SECOND - 1, &[(&waiters[9_999], 10_000), (&waiters[0], 1)]).await;
    // All others have been silent for a second: a few are removed with each call, until none is left.
    for _ in 0..100 {
        line.ask(SECOND, &waiters[9_999]).await;
    }
    line.places(SECOND, &[(&waiters[9_999], 2), (&waiters[0], 1)]).await;
}

/// A crowd waits at a limiter of each kind with short windows. Each caller asks a few times, at any place in line.
#[tokio::test]
async fn a_crowd_asks_a_few_times_each() {
    const CROWD: usize = 300;
    let buckets = [AlgorithmKind::TokenBucket, AlgorithmKind::LeakyBucket].map(|kind| bucket(kind, 10, 10, 100));
    let windows = [AlgorithmKind::FixedWindow, AlgorithmKind::SlidingLog, AlgorithmKind::SlidingCounter]
        .map(|kind| window(kind, 10, 100));
    for algorithm in buckets.into_iter().chain(windows).chain([leases(10, 100)]) {
        let line = Line::at(algorithm).await.used_up().await;
        let (kind, pauses) = (algorithm.kind(), Pauses { longest: Duration::from_secs(4), ..waiter().pauses });
        let crowd: [Waiter; CROWD] =
            waiters().map(|one| Waiter { line_max: 1_000, patience: Duration::from_secs(60), pauses, ..one });
        let (times, order, calls) = line.serve(&crowd).await;
        assert_eq!(order.len(), CROWD, "{kind:?}");
        // Leases may be given back at any moment, so their waiters look now and then.
        let each = if kind.grants_leases() { 12 } else { 3 };
        assert!(calls <= each * CROWD, "{kind:?}: {calls} calls for {CROWD} waiters");
        // Ten every 100 ms are 3 s.
        let end_us = times.last();
        assert!(end_us.is_some_and(|us| (2_900_000..=4_000_000).contains(us)), "{kind:?}: served after {end_us:?} us");
    }
}
