//! Waiting in line: in the order of arrival, for a bounded time, in a bounded number.

use std::time::Duration;

use futures_util::future::join_all;
use seckill::domain::limiter::{Algorithm, AlgorithmKind, SlotKey};
use seckill::gate::limiter::{Take, Turn, Waiter};
use uuid::Uuid;

use crate::test_limiter::{Bench, DAWN, bucket, leases, slot, take, window};

const SECOND: i64 = 1_000_000;

/// A line before one limiter, at times of the test's own.
struct Line {
    bench: Bench,
    slot: SlotKey,
    algorithm: Algorithm,
}

impl Line {
    async fn before(algorithm: Algorithm) -> Self {
        Self { bench: Bench::new().await, slot: slot("line", "k"), algorithm }
    }

    /// Uses the limiter up, so that whoever comes must wait.
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
}

fn waiter() -> Waiter {
    Waiter { id: Uuid::new_v4(), patience: Duration::from_secs(10), line_max: 10 }
}

/// The place in line, or 0 for who was granted.
fn place(turn: Turn) -> i64 {
    match turn {
        Turn::Granted(_) => 0,
        Turn::Wait { position, .. } => position,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn whoever_came_first_is_served_first() {
    let line = Line::before(bucket(AlgorithmKind::TokenBucket, 1, 1, 1000)).await.used_up().await;
    let [a, b, c, late] = std::array::from_fn(|_| waiter());
    for (expected, waiter) in [(1, &a), (2, &b), (3, &c)] {
        assert_eq!(place(line.ask(0, waiter).await), expected);
    }
    // Everybody is heard of once more, before there is a token.
    for waiter in [&c, &b, &a] {
        assert_ne!(place(line.ask(SECOND / 2, waiter).await), 0);
    }
    // There is one: but it is the first one's, whoever asks before.
    assert_eq!(place(line.ask(SECOND, &late).await), 4);
    assert_eq!(place(line.ask(SECOND, &c).await), 3);
    assert_eq!(place(line.ask(SECOND, &b).await), 2);
    assert_eq!(place(line.ask(SECOND, &a).await), 0);
    assert_eq!(place(line.ask(SECOND, &b).await), 1, "moved up");
    assert_eq!(place(line.ask(SECOND, &a).await), 4, "served, and last again");
    line.bench.clear().await;
}

#[tokio::test]
async fn who_finds_room_for_all_ahead_and_himself_need_not_wait() {
    let line = Line::before(bucket(AlgorithmKind::TokenBucket, 5, 10, 1000)).await.used_up().await;
    let [a, b, c] = std::array::from_fn(|_| waiter());
    assert_eq!(place(line.ask(0, &a).await), 1);
    assert_eq!(place(line.ask(0, &b).await), 2);
    let two_tokens = SECOND / 5;
    assert_eq!(place(line.ask(two_tokens, &c).await), 3);
    assert_eq!(place(line.ask(two_tokens, &b).await), 0, "one is left for the first");
    assert_eq!(place(line.ask(two_tokens, &c).await), 2, "and it is not this one's");
    assert_eq!(place(line.ask(two_tokens, &a).await), 0);
    assert_eq!(place(line.ask(two_tokens, &c).await), 1);
    line.bench.clear().await;
}

#[tokio::test]
async fn a_full_line_takes_nobody_and_is_not_touched() {
    let line = Line::before(window(AlgorithmKind::FixedWindow, 3, 60_000)).await.used_up().await;
    let short = || Waiter { line_max: 2, ..waiter() };
    assert_eq!(place(line.ask(0, &short()).await), 1);
    assert_eq!(place(line.ask(0, &short()).await), 2);
    let before = line.bench.dump().await;
    assert!(matches!(line.ask(0, &short()).await, Turn::LineFull(verdict) if verdict.retry_after_ms == 60_000));
    assert_eq!(line.bench.dump().await, before);
    line.bench.clear().await;
}

#[tokio::test]
async fn a_waiter_that_died_holds_nobody_up() {
    let line = Line::before(leases(1, 60_000)).await.used_up().await;
    let [dead, next] = std::array::from_fn(|_| waiter());
    assert_eq!(place(line.ask(0, &dead).await), 1);
    assert_eq!(place(line.ask(0, &next).await), 2);
    assert_eq!(place(line.ask(SECOND - 1, &next).await), 2);
    assert_eq!(place(line.ask(SECOND, &next).await), 1, "not heard of for a second");
    line.bench.clear().await;
}

#[tokio::test]
async fn the_time_is_bounded_and_a_place_can_be_given_up() {
    let line = Line::before(window(AlgorithmKind::SlidingLog, 1, 60_000)).await.used_up().await;
    let hurried = Waiter { patience: Duration::from_millis(300), ..waiter() };
    let Turn::Wait { ask_again, .. } = line.ask(0, &hurried).await else { panic!("granted") };
    assert_eq!(ask_again, Duration::from_millis(300), "not after its time");
    let behind = waiter();
    assert_eq!(place(line.ask(100_000, &behind).await), 2);
    assert!(matches!(line.ask(300_000, &hurried).await, Turn::TooLate(_)));
    assert_eq!(place(line.ask(300_000, &behind).await), 1);
    let at_once = Waiter { patience: Duration::ZERO, ..waiter() };
    assert!(matches!(line.ask(300_000, &at_once).await, Turn::TooLate(_)));

    let last = waiter();
    assert_eq!(place(line.ask(300_000, &last).await), 2);
    assert!(line.bench.limiter.leave_line(&line.slot, behind.id).await.unwrap());
    assert!(!line.bench.limiter.leave_line(&line.slot, behind.id).await.unwrap());
    assert_eq!(place(line.ask(300_000, &last).await), 1);
    line.bench.clear().await;
}

/// By the server's clock: a dozen callers that do as they are told, one every 25 ms.
#[tokio::test]
async fn callers_that_do_as_they_are_told_are_served_in_order_at_the_rate() {
    let bench = Bench::new().await;
    let (slot, algorithm) = (slot("line", "real"), bucket(AlgorithmKind::TokenBucket, 1, 40, 1000));
    let first = bench.limiter.acquire(&[take(&slot, &algorithm, 1)]).await.unwrap();
    assert!(first.granted);
    let wait = async |waiter: Waiter, take: Take<'_>| loop {
        match bench.limiter.wait_in_line(&take, &waiter).await.unwrap() {
            Turn::Granted(verdict) => return verdict.at_us,
            Turn::Wait { ask_again, .. } => tokio::time::sleep(ask_again).await,
            other => panic!("{other:?}"),
        }
    };
    let mut waiting = Vec::new();
    for expected in 1..=12 {
        let (waiter, take) = (Waiter { line_max: 20, ..waiter() }, take(&slot, &algorithm, 1));
        // Somebody may have been served meanwhile; nobody stands before those who came earlier.
        assert!(place(bench.limiter.wait_in_line(&take, &waiter).await.unwrap()) <= expected);
        waiting.push(wait(waiter, take));
    }
    let served = join_all(waiting).await;
    assert!(served.is_sorted(), "{served:?}");
    let gaps: Vec<i64> = served.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let all = served[11] - first.verdicts[0].unwrap().at_us;
    assert!(all >= 12 * 25_000, "faster than the rate: {gaps:?}");
    bench.clear().await;
}
