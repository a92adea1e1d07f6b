//! One thread of a rush: it sends its share of the schedule as it becomes due, and reads the answers.
//!
//! Arrivals do not wait for answers, so a slow service does not slow them down. Waits count from the schedule.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::answer::Answer;
use super::attempt::Attempt;
use super::connections::{Connections, NoAnswer};
use super::measurements::{Measurements, Settled};
use super::plan::Arrival;
use super::reply::{AnswerKind, Outcome, Reply};
use super::retries::{RETRY_FOR, retry_pause};
use super::rush::Rush;

/// The system's timer rounds up to whole milliseconds. Sending this much earlier keeps arrivals from being late for it.
const TIMER_SLACK: Duration = Duration::from_millis(1);
/// Requests that are sent before answers are looked at, so that neither waits for the other for long.
const SENDS_A_TURN: usize = 32;
/// The longest pause between two turns, which bounds how late the end of the rush is noticed.
const TURN_MAX: Duration = Duration::from_millis(50);

pub struct Player<'a> {
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
    pub fn new(rush: &'a Rush, first: usize, step: usize) -> Self {
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
    ///
    /// # Errors
    /// The system cannot say which connections have something to read.
    pub fn play(mut self, mut connections: Connections<Attempt>) -> io::Result<Measurements> {
        self.measured.settled.reserve(self.all);
        while self.settled < self.all && !self.rush.is_abandoned() {
            let within = if !self.rush.is_broken_off() {
                self.send_due(&mut connections);
                self.pause(&connections)
            } else if connections.under_way() > 0 {
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
        let reply = Reply::read(answer);
        let kind = AnswerKind::from(&reply.outcome);
        let pause = retry_pause(arrival.role, &reply.outcome, attempt.tries, retry_after, rand::random())
            .filter(|pause| rush.retries && answered + *pause < attempt.first_sent + RETRY_FOR);

        let answered_us = micros(answered - rush.begun);
        self.measured.count(arrival.role, reply.status, &reply.code, 1);
        self.measured.traffic.add(micros(attempt.sent - rush.begun), answered_us, kind);
        self.measured.retries += u64::from(attempt.tries > 0);
        rush.count(&reply);
        if let Outcome::Accepted { order_id } = reply.outcome {
            rush.watchers.follow(arrival.caller, &order_id, answered.into());
            self.measured.promise(arrival.caller, order_id.into_owned(), answered_us);
        }
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
        let from = if rush.paced { due.min(attempt.first_sent) } else { attempt.first_sent };
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

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
