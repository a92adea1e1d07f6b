//! One run of a schedule: each thread sends a share of it over a share of the connections (see `player`).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::LoadError;
use super::connections::{Bounds, Connections};
use super::crowd::{Crowd, ending};
use super::measurements::Measurements;
use super::plan::{Arrival, Plan};
use super::player::{Attempt, Counters, Player, Rush};
use super::target::Target;

/// After this long a person would reload the page. The result is unknown; a retry with the same Idempotency-Key gets it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The rush ends if arrivals wait and no answer came for this long.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// Connections that are open before the start. A crowd that needs more opens them while it buys.
const OPENED_MAX: usize = 4_000;
const REDRAW_EVERY: Duration = Duration::from_millis(100);

type Open = Vec<Connections<Attempt>>;

impl Rush {
    /// Opens the connections, then starts the clock: buyers have the page open before the start.
    pub(crate) async fn begin(
        target: &Target,
        crowd: Arc<Crowd>,
        arrivals: Vec<Arrival>,
        key: &str,
        plan: &Plan,
    ) -> Result<(Arc<Self>, Open), LoadError> {
        allow_connections();
        let mut opening = JoinSet::new();
        // No crowd has more requests in flight than it sends.
        for most in shares(plan.connections.min(arrivals.len()), plan.threads) {
            let opened = most.min(OPENED_MAX.div_ceil(plan.threads.max(1)));
            let (to, bounds) = (target.address, Bounds { opened, most, time_out: REQUEST_TIMEOUT });
            opening.spawn_blocking(move || Connections::open(to, bounds));
        }
        let mut open = Vec::new();
        while let Some(opened) = opening.join_next().await {
            open.push(opened?.map_err(LoadError::Events)?);
        }
        let rush = Self {
            crowd,
            arrivals: arrivals.into(),
            ending: ending(key),
            retries: !plan.no_retries,
            begun: Instant::now(),
            counters: Counters::default(),
            broken_off: AtomicBool::new(false),
        };
        Ok((Arc::new(rush), open))
    }

    /// Plays the schedule to its end. Dropping the future breaks it off.
    pub(crate) async fn play(
        self: Arc<Self>,
        open: Open,
        bar: ProgressBar,
    ) -> Result<(Arc<[Arrival]>, Measurements), LoadError> {
        let step = open.len();
        let mut threads = JoinSet::new();
        for (first, connections) in open.into_iter().enumerate() {
            let rush = Arc::clone(&self);
            threads.spawn_blocking(move || Player::new(&rush, first, step).play(connections));
        }
        // A thread does not end with its task, so it is told.
        let _break_off = BreakOffWhenDropped(Arc::clone(&self));
        // Aborted when this future ends.
        let mut background = JoinSet::new();
        background.spawn(Arc::clone(&self).watch(bar));

        let mut measured = Measurements::default();
        while let Some(played) = threads.join_next().await {
            measured.merge(played?.map_err(LoadError::Events)?);
        }
        Ok((Arc::clone(&self.arrivals), measured))
    }

    /// Draws the progress bar, and breaks the rush off if the service no longer answers.
    async fn watch(self: Arc<Self>, bar: ProgressBar) {
        // The template is a constant. If it is wrong, the default style is used.
        let style = ProgressStyle::with_template("{elapsed_precise} [{bar:32}] {pos}/{len} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.disable_steady_tick();
        bar.reset_elapsed();
        bar.set_length(self.arrivals.len() as u64);
        let (mut last_answered, mut last_change) = (0, Instant::now());
        loop {
            sleep(REDRAW_EVERY).await;
            let Counters { arrived, answered, accepted, sold_out, settled } = &self.counters;
            let [arrived, answered, accepted, sold_out, settled] =
                [arrived, answered, accepted, sold_out, settled].map(|counter| counter.load(Relaxed));
            bar.set_position(settled);
            bar.set_message(format!("answered {answered}  accepted {accepted}  sold out {sold_out}"));
            if answered != last_answered || settled == arrived {
                (last_answered, last_change) = (answered, Instant::now());
            } else if last_change.elapsed() > MAX_SILENCE {
                self.broken_off.store(true, Relaxed);
            }
        }
    }
}

struct BreakOffWhenDropped(Arc<Rush>);

impl Drop for BreakOffWhenDropped {
    fn drop(&mut self) {
        self.0.broken_off.store(true, Relaxed);
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
mod tests;
