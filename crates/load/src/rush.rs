//! Plays the schedule: arrivals enter a queue when they are due, and idle connections take them from the queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::LoadError;
use super::client::Link;
use super::crowd::Crowd;
use super::measurements::{AnswerKind, Measurements, Outcome, Reply, Sample};
use super::plan::{Arrival, Plan, Role};
use super::progress::{Counters, Progress};
use super::watchers::Watchers;

/// The timer rounds up to whole milliseconds. Waking this much earlier keeps arrivals from being late for it.
const TIMER_SLACK: Duration = Duration::from_millis(1);
/// A buyer without a definite answer retries for this long after the first request, and at most this often.
const RETRY_FOR: Duration = Duration::from_secs(30);
const MAX_RETRIES: u32 = 24;
/// First pause before a retry if there is no Retry-After; it doubles up to the second value.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(2);
/// A longer Retry-After is cut to this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);
/// The rush ends if arrivals wait and no answer came for this long.
const MAX_SILENCE: Duration = Duration::from_secs(60);
const REDRAW_EVERY: Duration = Duration::from_millis(100);

/// One request to be sent for an arrival.
#[derive(Clone, Copy)]
struct Attempt {
    arrival: usize,
    /// Requests already sent for it.
    tries: u32,
    first_sent: Option<Instant>,
}

/// One run of a schedule. All its times count from `begun`.
pub struct Rush {
    crowd: Arc<Crowd>,
    arrivals: Vec<Arrival>,
    body: Bytes,
    paced: bool,
    retries: bool,
    begun: Instant,
    links: Mutex<Vec<Link>>,
    queue: Mutex<VecDeque<Attempt>>,
    /// One permit for each queued attempt. Closed when every arrival has had its last answer.
    queued: Semaphore,
    counters: Counters,
    watchers: Arc<Watchers>,
}

impl Rush {
    /// Opens the connections, then starts the clock: buyers have the page open before the start.
    pub async fn begin(
        crowd: Arc<Crowd>,
        arrivals: Vec<Arrival>,
        key: &str,
        plan: &Plan,
        watchers: Arc<Watchers>,
    ) -> Arc<Self> {
        let links = join_all((0..plan.connections.max(1)).map(|_| Link::new(crowd.target()).warm())).await;
        Arc::new(Self {
            crowd,
            arrivals,
            body: serde_json::json!({ "key": key }).to_string().into(),
            paced: plan.paced(),
            retries: plan.retries,
            begun: Instant::now(),
            links: Mutex::new(links),
            queue: Mutex::default(),
            queued: Semaphore::new(0),
            counters: Counters::default(),
            watchers,
        })
    }

    /// Plays the schedule to its end. Dropping the future ends it at once.
    pub async fn play(self: Arc<Self>, progress: &Progress) -> Result<(Vec<Arrival>, Measurements), LoadError> {
        progress.rushing(self.arrivals.len() as u64);
        let mut connections = JoinSet::new();
        let links = std::mem::take(&mut *self.links.lock());
        for link in links {
            connections.spawn(Arc::clone(&self).serve(link));
        }
        // Aborted when this future ends.
        let mut background = JoinSet::new();
        background.spawn(Arc::clone(&self).queue_due());
        background.spawn(Arc::clone(&self).watch(progress.clone()));

        let mut measured = Measurements::default();
        while let Some(result) = connections.join_next().await {
            measured.merge(result?);
        }
        Ok((self.arrivals.clone(), measured))
    }

    /// Queues arrivals as they become due.
    async fn queue_due(self: Arc<Self>) {
        if self.arrivals.is_empty() {
            self.queued.close();
        }
        let mut next = 0;
        while let Some(arrival) = self.arrivals.get(next) {
            sleep_until(self.begun + arrival.due.saturating_sub(TIMER_SLACK)).await;
            let now = self.begun.elapsed() + TIMER_SLACK;
            let due = self.arrivals[next..].iter().take_while(|arrival| arrival.due <= now).count();
            self.add_to_queue((next..next + due).map(|arrival| Attempt { arrival, tries: 0, first_sent: None }));
            self.counters.arrived.fetch_add(due as u64, Relaxed);
            next += due;
        }
    }

    fn add_to_queue(&self, attempts: impl ExactSizeIterator<Item = Attempt>) {
        let number = attempts.len();
        self.queue.lock().extend(attempts);
        self.queued.add_permits(number);
    }

    async fn next(&self) -> Option<Attempt> {
        self.queued.acquire().await.ok()?.forget();
        self.queue.lock().pop_front()
    }

    /// The work of one connection: takes attempts from the queue until the queue is closed.
    async fn serve(self: Arc<Self>, mut link: Link) -> Measurements {
        let mut measured = Measurements::default();
        while let Some(mut attempt) = self.next().await {
            let arrival = &self.arrivals[attempt.arrival];
            let request = self.crowd.request(arrival, &self.body);
            let sent = Instant::now();
            let first_sent = *attempt.first_sent.get_or_insert(sent);
            let answer = link.send(request).await;
            let answered = Instant::now();

            let reply = Reply::read(&answer);
            measured.count(arrival.role, reply.status, &reply.code, 1);
            let retry_after = answer.ok().and_then(|answer| answer.retry_after);
            let pause = retry_pause(arrival.role, &reply.outcome, attempt.tries, retry_after, rand::random())
                .filter(|pause| self.retries && answered + *pause < first_sent + RETRY_FOR);

            let due = self.begun + arrival.due;
            let from = if self.paced { due.min(first_sent) } else { first_sent };
            measured.samples.push(Sample {
                arrival: attempt.arrival,
                sent_us: micros(sent - self.begun),
                answered_us: micros(answered - self.begun),
                waited_us: micros(answered - from),
                lag_us: micros(first_sent.saturating_duration_since(due)),
                kind: AnswerKind::from(&reply.outcome),
                last: pause.is_none(),
            });
            self.count(&reply);
            if let Outcome::Accepted { order_id } = reply.outcome {
                self.watchers.follow(arrival.caller, &order_id, answered);
                measured.promise(arrival.caller, order_id, micros(answered - self.begun));
            }
            match pause {
                Some(pause) => Arc::clone(&self).retry(attempt, pause),
                None => self.settle(),
            }
        }
        measured
    }

    /// Queues the next attempt after a pause. The connection is free meanwhile.
    fn retry(self: Arc<Self>, attempt: Attempt, pause: Duration) {
        tokio::spawn(async move {
            sleep(pause).await;
            self.add_to_queue(std::iter::once(Attempt { tries: attempt.tries + 1, ..attempt }));
        });
    }

    fn settle(&self) {
        if self.counters.settled.fetch_add(1, Relaxed) + 1 == self.arrivals.len() as u64 {
            self.queued.close();
        }
    }

    fn count(&self, reply: &Reply) {
        self.counters.answered.fetch_add(u64::from(reply.status != 0), Relaxed);
        match reply.outcome {
            Outcome::Accepted { .. } => self.counters.accepted.fetch_add(1, Relaxed),
            Outcome::SoldOut => self.counters.sold_out.fetch_add(1, Relaxed),
            Outcome::Refused | Outcome::Failed { .. } => 0,
        };
    }

    /// Draws the progress bar, and ends the rush if the service no longer answers.
    async fn watch(self: Arc<Self>, progress: Progress) {
        let (mut last_answered, mut last_change) = (0, Instant::now());
        loop {
            sleep(REDRAW_EVERY).await;
            progress.show(&self.counters);
            let answered = self.counters.answered.load(Relaxed);
            let none_waiting = self.counters.settled.load(Relaxed) == self.counters.arrived.load(Relaxed);
            if answered != last_answered || none_waiting {
                (last_answered, last_change) = (answered, Instant::now());
            } else if last_change.elapsed() > MAX_SILENCE {
                self.queued.close();
            }
        }
    }
}

/// The pause before a retry, or `None` if the answer is final. `jitter` is in 0..1.
fn retry_pause(
    role: Role,
    outcome: &Outcome,
    tries: u32,
    retry_after: Option<Duration>,
    jitter: f64,
) -> Option<Duration> {
    // Only a buyer retries: the Idempotency-Key makes the repeated request the same purchase.
    if role != Role::Buyer || *outcome != (Outcome::Failed { may_retry: true }) || tries >= MAX_RETRIES {
        return None;
    }
    let default = RETRY_PAUSE.saturating_mul(1 << tries.min(10)).min(MAX_RETRY_PAUSE);
    let pause = retry_after.map_or(default, |retry_after| retry_after.clamp(RETRY_PAUSE, MAX_RETRY_AFTER));
    // Up to a quarter longer, so that callers who failed together do not retry together.
    Some(pause.mul_f64(1.0 + jitter / 4.0))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buyer_retries_and_a_bot_does_not() {
        let failed = Outcome::Failed { may_retry: true };
        let pause = |role, tries, retry_after| retry_pause(role, &failed, tries, retry_after, 0.0);
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
