//! One thread of a rush: it sends its share of the schedule as it becomes due, and reads the answers.
//!
//! Arrivals do not wait for answers, so a slow service does not slow them down. Waits count from the schedule.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use super::answer::Answer;
use super::connections::{Connections, NoAnswer};
use super::crowd::Crowd;
use super::measurements::{Measurements, Settled};
use super::plan::{Arrival, Role};
use super::reply::{AnswerKind, Reply};

/// One run of a schedule. All its times count from `begun`.
pub(crate) struct Rush {
    pub crowd: Arc<Crowd>,
    pub arrivals: Arc<[Arrival]>,
    /// The end of each request.
    pub ending: Vec<u8>,
    pub retries: bool,
    pub begun: Instant,
    pub counters: Counters,
    /// No request is sent any more; requests in flight are awaited.
    pub broken_off: AtomicBool,
}

/// Counts for the progress bar and for noticing a silent service. The report is computed from the measurements.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub arrived: AtomicU64,
    pub answered: AtomicU64,
    pub accepted: AtomicU64,
    pub sold_out: AtomicU64,
    pub settled: AtomicU64,
}

/// The system's timer rounds up to whole milliseconds. Sending this much earlier keeps arrivals from being late for it.
const TIMER_SLACK: Duration = Duration::from_millis(1);
/// Requests that are sent before answers are looked at, so that neither waits for the other for long.
const SENDS_A_TURN: usize = 32;
/// The longest pause between two turns, which bounds how late the end of the rush is noticed.
const TURN_MAX: Duration = Duration::from_millis(50);
/// A buyer without a definite answer retries for this long after the first request, and at most this often.
const RETRY_FOR: Duration = Duration::from_secs(30);
const MAX_RETRIES: u32 = 24;
/// First pause before a retry if there is no Retry-After; it doubles up to the second value.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(2);
/// A longer Retry-After is cut to this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);

/// A request to be sent for an arrival, or in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Attempt {
    arrival: usize,
    /// Requests already sent for it.
    tries: u32,
    first_sent: Instant,
    sent: Instant,
    /// How late the first request was although a connection was free.
    own_lag: Duration,
}

pub(crate) struct Player<'a> {
    rush: &'a Rush,
    /// This thread plays every so many-th arrival, beginning with this one.
    first: usize,
    step: usize,
    /// The arrivals of this thread: how many there are, are due, were sent, and had their last answer.
    all: usize,
    arrived: usize,
    sent: usize,
    settled: usize,
    /// Who tries again, and when: the next one first.
    retries: BinaryHeap<Reverse<(Instant, Attempt)>>,
    measured: Measurements,
    /// The request that is being sent.
    request: Vec<u8>,
}

impl<'a> Player<'a> {
    /// The player of the arrivals `first`, `first + step` and so on.
    pub(crate) fn new(rush: &'a Rush, first: usize, step: usize) -> Self {
        let all = rush.arrivals.len().saturating_sub(first).div_ceil(step.max(1));
        Self {
            rush,
            first,
            step,
            all,
            arrived: 0,
            sent: 0,
            settled: 0,
            retries: BinaryHeap::new(),
            measured: Measurements::default(),
            request: Vec::new(),
        }
    }

    /// Plays until every arrival has had its last answer, or the rush is broken off.
    pub(crate) fn play(mut self, mut connections: Connections<Attempt>) -> io::Result<Measurements> {
        self.measured.settled.reserve(self.all);
        while self.settled < self.all {
            let within = if !self.rush.broken_off.load(Relaxed) {
                self.send_due(&mut connections);
                self.pause(&connections)
            } else if connections.in_flight() > 0 {
                TURN_MAX
            } else {
                break;
            };
            connections.answers(within, |attempt, answer| self.record(attempt, answer))?;
        }
        Ok(self.measured)
    }

    /// Sends the due requests, while connections are free.
    fn send_due(&mut self, connections: &mut Connections<Attempt>) {
        self.count_arrived();
        for _ in 0..SENDS_A_TURN {
            let now = Instant::now();
            let Some(mut attempt) = connections.has_room().then(|| self.next(now, connections.room_since())).flatten()
            else {
                return;
            };
            attempt.sent = now;
            let arrival = &self.rush.arrivals[attempt.arrival];
            self.rush.crowd.write(arrival, &self.rush.ending, &mut self.request);
            if let Err(why) = connections.send(attempt, &self.request, now) {
                self.record(attempt, Err(why));
            }
        }
    }

    /// Counts the arrivals that are due, for the progress bar and to notice that the service is silent.
    fn count_arrived(&mut self) {
        let (before, now) = (self.arrived, Instant::now() + TIMER_SLACK);
        while self.due(self.arrived).is_some_and(|due| due <= now) {
            self.arrived += 1;
        }
        self.rush.counters.arrived.fetch_add((self.arrived - before) as u64, Relaxed);
    }

    /// The n-th arrival of this thread.
    fn arrival(&self, n: usize) -> Option<&'a Arrival> {
        self.rush.arrivals.get(self.first + n * self.step)
    }

    fn due(&self, n: usize) -> Option<Instant> {
        self.arrival(n).map(|arrival| self.rush.begun + arrival.due)
    }

    /// When the next arrival and the next retry are due.
    fn next_times(&self) -> (Option<Instant>, Option<Instant>) {
        let arrival = self.arrival(self.sent).map(|arrival| self.rush.begun + arrival.due.saturating_sub(TIMER_SLACK));
        (arrival, self.retries.peek().map(|Reverse((at, _))| *at))
    }

    /// The attempt whose time has come, the earliest first. `room_since`: from then on a connection was free for it.
    fn next(&mut self, now: Instant, room_since: Instant) -> Option<Attempt> {
        let (arrival_at, retry_at) = self.next_times();
        if retry_at.is_some_and(|at| at <= now && arrival_at.is_none_or(|arrival_at| at <= arrival_at)) {
            return self.retries.pop().map(|Reverse((_, attempt))| attempt);
        }
        if arrival_at.is_none_or(|at| at > now) {
            return None;
        }
        let due = self.due(self.sent)?;
        let own_lag = now.saturating_duration_since(due.max(room_since));
        let arrival = self.first + self.sent * self.step;
        self.sent += 1;
        Some(Attempt { arrival, tries: 0, first_sent: now, sent: now, own_lag })
    }

    /// How long no request is due.
    fn pause(&self, connections: &Connections<Attempt>) -> Duration {
        let (arrival_at, retry_at) = self.next_times();
        match [arrival_at, retry_at].into_iter().flatten().min() {
            Some(next) if connections.has_room() => next.saturating_duration_since(Instant::now()).min(TURN_MAX),
            // An answer makes room, or a time-out.
            Some(_) | None => TURN_MAX,
        }
    }

    /// Measures the end of a request, and decides whether another one follows.
    fn record(&mut self, attempt: Attempt, answer: Result<Answer<'_>, NoAnswer>) {
        let answered = Instant::now();
        let rush = self.rush;
        let arrival = &rush.arrivals[attempt.arrival];
        let retry_after = answer.ok().and_then(|answer| answer.retry_after);
        let Reply { status, code, kind, may_retry, order_id } = Reply::read(answer);
        let pause = retry_pause(arrival.role, may_retry, attempt.tries, retry_after, rand::random())
            .filter(|pause| rush.retries && answered + *pause < attempt.first_sent + RETRY_FOR);

        let answered_us = micros(answered - rush.begun);
        self.measured.count(arrival.role, status, &code, 1);
        self.measured.ended(micros(attempt.sent - rush.begun), answered_us, kind);
        self.measured.retries += u64::from(attempt.tries > 0);
        if let Some(order_id) = order_id {
            self.measured.promise(arrival.caller, order_id.into_owned(), answered_us);
        }
        let counters = &rush.counters;
        counters.answered.fetch_add(u64::from(status != 0), Relaxed);
        counters.accepted.fetch_add(u64::from(kind == AnswerKind::Accepted), Relaxed);
        counters.sold_out.fetch_add(u64::from(kind == AnswerKind::SoldOut), Relaxed);
        match pause {
            Some(pause) => {
                let next = Attempt { tries: attempt.tries + 1, ..attempt };
                self.retries.push(Reverse((answered + pause, next)));
            }
            None => self.settle(attempt, answered, kind),
        }
    }

    fn settle(&mut self, attempt: Attempt, answered: Instant, kind: AnswerKind) {
        let rush = self.rush;
        let due = rush.begun + rush.arrivals[attempt.arrival].due;
        // From the schedule, however late the request was sent; otherwise the wait for a late generator, or for a connection
        // that a slow service holds, would be left out.
        let from = due.min(attempt.first_sent);
        self.measured.settled.push(Settled {
            arrival: attempt.arrival,
            answered_us: micros(answered - rush.begun),
            waited_us: micros(answered - from),
            lag_us: micros(attempt.first_sent.saturating_duration_since(due)),
            own_lag_us: micros(attempt.own_lag),
            kind,
        });
        self.settled += 1;
        rush.counters.settled.fetch_add(1, Relaxed);
    }
}

/// The pause before a retry, or `None` if the answer is final. `jitter` is in 0..1.
fn retry_pause(
    role: Role,
    may_retry: bool,
    tries: u32,
    retry_after: Option<Duration>,
    jitter: f64,
) -> Option<Duration> {
    // Only a buyer retries: the Idempotency-Key makes the repeated request the same purchase.
    if role != Role::Buyer || !may_retry || tries >= MAX_RETRIES {
        return None;
    }
    let default = RETRY_PAUSE.saturating_mul(1 << tries.min(10)).min(MAX_RETRY_PAUSE);
    let pause = retry_after.map_or(default, |retry_after| retry_after.clamp(RETRY_PAUSE, MAX_RETRY_AFTER));
    // Up to a quarter longer, so that callers who failed together do not retry together.
    Some(pause.mul_f64(1.0 + jitter / 4.0))
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buyer_retries_and_a_bot_does_not() {
        let pause = |role, tries, retry_after| retry_pause(role, true, tries, retry_after, 0.0);
        assert_eq!(pause(Role::Buyer, 0, None), Some(RETRY_PAUSE));
        assert_eq!(pause(Role::Buyer, 2, None), Some(RETRY_PAUSE * 4));
        assert_eq!(pause(Role::Buyer, 20, None), Some(MAX_RETRY_PAUSE));
        assert_eq!(pause(Role::Buyer, 0, Some(Duration::from_secs(3))), Some(Duration::from_secs(3)));
        assert_eq!(pause(Role::Buyer, 0, Some(Duration::from_secs(900))), Some(MAX_RETRY_AFTER));
        assert_eq!(pause(Role::Buyer, MAX_RETRIES, None), None);
        assert_eq!(pause(Role::Bot, 0, None), None);
        assert_eq!(retry_pause(Role::Buyer, false, 0, None, 0.0), None);
    }
}
