//! One run of a schedule: what its threads share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::LoadError;
use super::attempt::Attempt;
use super::connections::{Bounds, Connections};
use super::crowd::{Crowd, ending};
use super::plan::{Arrival, Plan};
use super::progress::{Counters, Progress};
use super::reply::{Outcome, Reply};
use super::target::Target;
use super::watchers::Watchers;

/// After this long a person would reload the page. The result is unknown; a retry with the same Idempotency-Key gets it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The rush ends if arrivals wait and no answer came for this long.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// Connections that are open before the start. A crowd that needs more opens them while it buys.
const OPENED_MAX: usize = 4_000;
const REDRAW_EVERY: Duration = Duration::from_millis(100);

/// One run of a schedule. All its times count from `begun`.
pub struct Rush {
    pub crowd: Arc<Crowd>,
    pub arrivals: Arc<[Arrival]>,
    /// The end of each request.
    pub ending: Vec<u8>,
    pub paced: bool,
    pub retries: bool,
    pub begun: Instant,
    pub counters: Counters,
    pub watchers: Arc<Watchers>,
    /// No request is sent any more; requests under way are awaited.
    broken_off: AtomicBool,
    /// Nobody waits for the rush any more.
    abandoned: AtomicBool,
    /// The connections of each thread, until it plays.
    open: Mutex<Vec<Connections<Attempt>>>,
}

impl Rush {
    /// Opens the connections, then starts the clock: buyers have the page open before the start.
    ///
    /// # Errors
    /// The system gives no queue of events.
    pub async fn begin(
        target: &Target,
        crowd: Arc<Crowd>,
        arrivals: Vec<Arrival>,
        key: &str,
        plan: &Plan,
        watchers: Arc<Watchers>,
    ) -> Result<Arc<Self>, LoadError> {
        allow_connections();
        let mut opening = JoinSet::new();
        // No crowd has more requests under way than it sends.
        for most in shares(plan.connections.min(arrivals.len()), plan.threads) {
            let opened = most.min(OPENED_MAX.div_ceil(plan.threads.max(1)));
            let (to, bounds) = (target.address, Bounds { opened, most, time_out: REQUEST_TIMEOUT });
            opening.spawn_blocking(move || Connections::open(to, bounds));
        }
        let mut open = Vec::new();
        while let Some(opened) = opening.join_next().await {
            open.push(opened?.map_err(LoadError::Events)?);
        }
        Ok(Arc::new(Self {
            crowd,
            arrivals: arrivals.into(),
            ending: ending(key),
            paced: plan.paced(),
            retries: plan.retries,
            begun: Instant::now(),
            counters: Counters::default(),
            watchers,
            broken_off: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            open: Mutex::new(open),
        }))
    }

    /// Takes the connections, by thread.
    pub fn take_connections(&self) -> Vec<Connections<Attempt>> {
        std::mem::take(&mut *self.open.lock())
    }

    /// Has the threads end at once.
    pub fn abandon(&self) {
        self.abandoned.store(true, Relaxed);
    }

    pub fn is_broken_off(&self) -> bool {
        self.broken_off.load(Relaxed)
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Relaxed)
    }

    /// Counts an answer for the progress bar.
    pub fn count(&self, reply: &Reply<'_>) {
        self.counters.answered.fetch_add(u64::from(reply.status != 0), Relaxed);
        match reply.outcome {
            Outcome::Accepted { .. } => self.counters.accepted.fetch_add(1, Relaxed),
            Outcome::SoldOut => self.counters.sold_out.fetch_add(1, Relaxed),
            Outcome::Refused | Outcome::Failed { .. } => 0,
        };
    }

    /// Draws the progress bar, and breaks the rush off if the service no longer answers.
    pub async fn watch(self: Arc<Self>, progress: Progress) {
        let (mut last_answered, mut last_change) = (0, Instant::now());
        loop {
            sleep(REDRAW_EVERY).await;
            progress.show(&self.counters);
            let answered = self.counters.answered.load(Relaxed);
            let none_waiting = self.counters.settled.load(Relaxed) == self.counters.arrived.load(Relaxed);
            if answered != last_answered || none_waiting {
                (last_answered, last_change) = (answered, Instant::now());
            } else if last_change.elapsed() > MAX_SILENCE {
                self.broken_off.store(true, Relaxed);
            }
        }
    }
}

/// Many systems start processes with 1024 files and let them have more. If this fails, requests without a connection are counted.
fn allow_connections() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// How many of the connections each thread has. No thread is without one, so there may be fewer threads.
fn shares(connections: usize, threads: usize) -> impl Iterator<Item = usize> {
    let connections = connections.max(1);
    let threads = threads.clamp(1, connections);
    (0..threads).map(move |n| connections / threads + usize::from(n < connections % threads))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every connection belongs to one thread, and no thread is without one.
    #[test]
    fn connections_are_shared_evenly() {
        for (connections, threads, expected) in
            [(4, 1, vec![4]), (256, 3, vec![86, 85, 85]), (2, 8, vec![1, 1]), (0, 0, vec![1])]
        {
            assert_eq!(shares(connections, threads).collect::<Vec<_>>(), expected);
        }
    }
}
