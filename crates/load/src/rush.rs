//! The schedule played: arrivals are let into the line when they are due, and idle connections take them from there.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::LoadError;
use super::client::Link;
use super::crowd::Crowd;
use super::plan::{Arrival, Role};
use super::progress::{Counters, Progress};
use super::tally::{Kind, Outcome, Reply, Sample, Tally};

/// The timer works in whole milliseconds and rounds up; so much ahead, nobody is late because of it.
const TIMER_SLACK: Duration = Duration::from_millis(1);
/// A buyer without a definite answer keeps asking for so long after the first request, and so often.
const RETRY_FOR: Duration = Duration::from_secs(30);
const MAX_RETRIES: u32 = 24;
/// First pause without a Retry-After; it doubles up to the second value.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(2);
/// A longer Retry-After is cut to this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);
/// With people in line and no answer for so long, the rush is over.
const MAX_SILENCE: Duration = Duration::from_secs(60);
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// One request to be sent for an arrival.
#[derive(Clone, Copy)]
struct Attempt {
    arrival: usize,
    /// Requests already sent for it.
    tries: u32,
    first_sent: Option<Instant>,
}

/// One playing of a schedule, from a common beginning.
pub struct Rush {
    crowd: Arc<Crowd>,
    arrivals: Vec<Arrival>,
    body: Bytes,
    paced: bool,
    begun: Instant,
    links: Mutex<Vec<Link>>,
    /// Those whose time has come; one permit each. Closed when everybody has been served.
    line: Mutex<VecDeque<Attempt>>,
    permits: Semaphore,
    counters: Counters,
}

impl Rush {
    /// Opens the connections, then starts the clock: the crowd had the page open before.
    pub async fn begin(
        crowd: Arc<Crowd>,
        arrivals: Vec<Arrival>,
        key: &str,
        paced: bool,
        connections: usize,
    ) -> Arc<Self> {
        let links = join_all((0..connections.max(1)).map(|_| Link::new(crowd.target()).warm())).await;
        Arc::new(Self {
            crowd,
            arrivals,
            body: serde_json::json!({ "key": key }).to_string().into(),
            paced,
            begun: Instant::now(),
            links: Mutex::new(links),
            line: Mutex::default(),
            permits: Semaphore::new(0),
            counters: Counters::default(),
        })
    }

    /// Plays the schedule to its end. Dropping the future ends it at once.
    pub async fn play(self: Arc<Self>, progress: &Progress) -> Result<(Vec<Arrival>, Tally), LoadError> {
        progress.rushing(self.arrivals.len() as u64);
        let mut connections = JoinSet::new();
        let links = std::mem::take(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner));
        for link in links {
            connections.spawn(Arc::clone(&self).serve(link));
        }
        let mut helpers = JoinSet::new();
        helpers.spawn(Arc::clone(&self).let_in());
        helpers.spawn(Arc::clone(&self).watch(progress.clone()));

        let mut tally = Tally::default();
        while let Some(served) = connections.join_next().await {
            tally.merge(served?);
        }
        Ok((self.arrivals.clone(), tally))
    }

    /// Puts arrivals into the line as they become due.
    async fn let_in(self: Arc<Self>) {
        if self.arrivals.is_empty() {
            self.permits.close();
        }
        let mut next = 0;
        while let Some(arrival) = self.arrivals.get(next) {
            sleep_until(self.begun + arrival.due.saturating_sub(TIMER_SLACK)).await;
            let now = self.begun.elapsed() + TIMER_SLACK;
            let due = self.arrivals[next..].iter().take_while(|arrival| arrival.due <= now).count();
            self.queue((next..next + due).map(|arrival| Attempt { arrival, tries: 0, first_sent: None }));
            self.counters.arrived.fetch_add(due as u64, Relaxed);
            next += due;
        }
    }

    fn queue(&self, attempts: impl ExactSizeIterator<Item = Attempt>) {
        let number = attempts.len();
        self.line.lock().unwrap_or_else(PoisonError::into_inner).extend(attempts);
        self.permits.add_permits(number);
    }

    async fn next(&self) -> Option<Attempt> {
        self.permits.acquire().await.ok()?.forget();
        self.line.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// One connection's work: the next in line, until there is nobody left.
    async fn serve(self: Arc<Self>, mut link: Link) -> Tally {
        let mut tally = Tally::default();
        while let Some(mut attempt) = self.next().await {
            let arrival = &self.arrivals[attempt.arrival];
            let request = self.crowd.request(arrival, &self.body);
            let sent = Instant::now();
            let first_sent = *attempt.first_sent.get_or_insert(sent);
            let answer = link.send(request).await;
            let answered = Instant::now();

            let reply = Reply::read(&answer);
            tally.count(arrival.role, reply.status, &reply.code, 1);
            let asked_for = answer.ok().and_then(|answer| answer.retry_after);
            let pause = retry_pause(arrival.role, &reply.outcome, attempt.tries, asked_for, rand::random())
                .filter(|pause| answered + *pause < first_sent + RETRY_FOR);

            let due = self.begun + arrival.due;
            let from = if self.paced { due.min(first_sent) } else { first_sent };
            tally.samples.push(Sample {
                arrival: attempt.arrival,
                sent_us: micros(sent - self.begun),
                answered_us: micros(answered - self.begun),
                waited_us: micros(answered - from),
                lag_us: micros(first_sent.saturating_duration_since(due)),
                kind: Kind::from(&reply.outcome),
                last: pause.is_none(),
            });
            self.note(&reply);
            if let Outcome::Accepted { order_id } = reply.outcome {
                tally.promise(arrival.who, order_id, micros(answered - self.begun));
            }
            match pause {
                Some(pause) => Arc::clone(&self).ask_again(attempt, pause),
                None => self.settle(),
            }
        }
        tally
    }

    /// Back into the line after a pause, which keeps no connection waiting.
    fn ask_again(self: Arc<Self>, attempt: Attempt, pause: Duration) {
        tokio::spawn(async move {
            sleep(pause).await;
            self.queue(std::iter::once(Attempt { tries: attempt.tries + 1, ..attempt }));
        });
    }

    fn settle(&self) {
        if self.counters.settled.fetch_add(1, Relaxed) + 1 == self.arrivals.len() as u64 {
            self.permits.close();
        }
    }

    fn note(&self, reply: &Reply) {
        self.counters.answered.fetch_add(u64::from(reply.status != 0), Relaxed);
        match reply.outcome {
            Outcome::Accepted { .. } => self.counters.accepted.fetch_add(1, Relaxed),
            Outcome::SoldOut => self.counters.sold_out.fetch_add(1, Relaxed),
            Outcome::Refused | Outcome::Failed { .. } => 0,
        };
    }

    /// Draws the bar, and ends a rush to which nobody answers any more.
    async fn watch(self: Arc<Self>, progress: Progress) {
        let mut heard = (0, Instant::now());
        loop {
            sleep(SHOW_EVERY).await;
            progress.show(&self.counters);
            let answered = self.counters.answered.load(Relaxed);
            let nobody_waits = self.counters.settled.load(Relaxed) == self.counters.arrived.load(Relaxed);
            if answered != heard.0 || nobody_waits {
                heard = (answered, Instant::now());
            } else if heard.1.elapsed() > MAX_SILENCE {
                self.permits.close();
            }
        }
    }
}

/// How long to wait before asking again, or `None` where the answer stands. `chance` is in 0..1.
fn retry_pause(
    role: Role,
    outcome: &Outcome,
    tries: u32,
    asked_for: Option<Duration>,
    chance: f64,
) -> Option<Duration> {
    // Only a buyer has a request whose repetition is one and the same purchase, and the patience.
    if role != Role::Buyer || *outcome != (Outcome::Failed { may_retry: true }) || tries >= MAX_RETRIES {
        return None;
    }
    let own = RETRY_PAUSE.saturating_mul(1 << tries.min(10)).min(MAX_RETRY_PAUSE);
    let pause = asked_for.map_or(own, |asked_for| asked_for.clamp(RETRY_PAUSE, MAX_RETRY_AFTER));
    // Up to a quarter more, so that those who were refused together do not come back together.
    Some(pause.mul_f64(1.0 + chance / 4.0))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buyer_asks_again_and_a_bot_does_not() {
        let failed = Outcome::Failed { may_retry: true };
        let pause = |role, tries, asked_for| retry_pause(role, &failed, tries, asked_for, 0.0);
        assert_eq!(pause(Role::Buyer, 0, None), Some(RETRY_PAUSE));
        assert_eq!(pause(Role::Buyer, 2, None), Some(RETRY_PAUSE * 4));
        assert_eq!(pause(Role::Buyer, 20, None), Some(MAX_RETRY_PAUSE));
        assert_eq!(pause(Role::Buyer, 0, Some(Duration::from_secs(3))), Some(Duration::from_secs(3)));
        assert_eq!(pause(Role::Buyer, 0, Some(Duration::from_secs(900))), Some(MAX_RETRY_AFTER));
        assert_eq!(pause(Role::Buyer, MAX_RETRIES, None), None);
        assert_eq!(pause(Role::Bot, 0, None), None);
        assert_eq!(retry_pause(Role::Buyer, &Outcome::SoldOut, 0, None, 0.0), None);
    }
}
