//! The loop of every background worker, which repeats one bounded step; and the batcher.

pub mod batcher;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use seckill_domain::pressure::Pressure;
use seckill_domain::step::Step;

/// The first and longest pause after a failed step.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 200..=5_000;

/// Time limit of a step. Steps are bounded and take seconds at most. A longer one waits for a dead server, and is given up.
const STEP_MAX: Duration = Duration::from_secs(120);

/// A step that scans a backlog uses at most 5 % of its connection's time, and runs at least once in `REST_MAX`.
const REST_FACTOR: u32 = 19;
const REST_MAX: Duration = Duration::from_secs(60);

/// How long a worker that gives way waits after a notice: by then, instances in a rush have reported a backlog.
const RUSH_SEEN_WITHIN: Duration = Duration::from_millis(50);

pub struct LoopSettings {
    pub name: &'static str,
    /// The pause if there is nothing to do.
    pub every: Duration,
    /// A notice ends that pause.
    pub wake: Option<watch::Receiver<()>>,
    /// A change aborts the current step.
    pub given_up: watch::Receiver<()>,
    /// If set: the worker rests before each step while purchases wait.
    pub gives_way: Option<Arc<Pressure>>,
    /// Whether the pause is at least 19 × the duration of the step.
    pub rests: bool,
}

/// A step. Its error is a text. Boxed, so that the loop is compiled once for all workers.
pub type StepFuture = BoxFuture<'static, Result<Step, String>>;

/// Repeats a step until stopped. Continues at once while there is more to do, else at the next notice or after `every`. A step runs to its
/// end, unless `given_up` changes, because its server does not answer. After failures the loop pauses, longer each time, with jitter.
pub async fn repeat(terms: LoopSettings, stop: CancellationToken, mut step: Box<dyn FnMut() -> StepFuture + Send>) {
    let LoopSettings { name, every, mut wake, mut given_up, gives_way, rests } = terms;
    let mut pause = Pause::default();
    let mut behind_since: Option<Instant> = None;
    let mut took = Duration::ZERO;
    while !stop.is_cancelled() {
        if let Some(pressure) = &gives_way {
            let now = Instant::now();
            let behind = behind_since.map_or(Duration::ZERO, |since| now - since);
            let rest = pressure.worker_rest(took, behind, now);
            if !rest.is_zero() && stop.run_until_cancelled(sleep(rest)).await.is_none() {
                break;
            }
        }
        let began = Instant::now();
        given_up.mark_unchanged();
        let done = tokio::select! {
            done = step() => done,
            () = sleep(STEP_MAX) => Err(format!("the step did not finish within {} s", STEP_MAX.as_secs())),
            _ = given_up.changed() => Err("PostgreSQL does not answer".to_owned()),
        };
        let now = Instant::now();
        took = now - began;
        let rest = match done {
            Ok(Step::More) => {
                behind_since.get_or_insert(now);
                pause.reset();
                continue;
            }
            Ok(Step::Idle) => {
                behind_since = None;
                pause.reset();
                if rests { every.max((took * REST_FACTOR).min(REST_MAX)) } else { every }
            }
            Err(error) => {
                let rest = pause.longer();
                tracing::warn!(name, %error, pause_ms = rest.as_millis(), "step failed; tried again after a pause");
                metrics::counter!("seckill_step_failures_total", "step" => name).increment(1);
                rest
            }
        };
        if rest.is_zero() {
            continue;
        }
        let notice = async {
            match &mut wake {
                // After a failure, a notice does not end the pause.
                Some(wake) if pause.is_fresh() => {
                    _ = wake.changed().await;
                    if gives_way.is_some() {
                        sleep(RUSH_SEEN_WITHIN).await;
                    }
                }
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep(rest) => {}
            () = notice => {}
            () = stop.cancelled() => {}
        }
    }
    tracing::debug!(name, "stopped");
}

/// Pauses that double, with jitter.
#[derive(Default)]
pub(crate) struct Pause {
    failures: u32,
}

impl Pause {
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    fn is_fresh(&self) -> bool {
        self.failures == 0
    }

    pub(crate) fn longer(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let (base, cap) = (*PAUSE_MS.start(), *PAUSE_MS.end());
        Duration::from_millis(seckill_webhook::backoff_ms(self.failures, base, cap, rand::random()))
    }
}
