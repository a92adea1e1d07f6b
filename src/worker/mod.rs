//! Loops, and nothing but loops: each a bounded step of the story, repeated.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::domain::step::Step;

/// How a loop that failed waits before it tries again.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 200..=5_000;

/// Steps are bounded, and take a second or two at most; one that waits for a server that vanished is given up.
const STEP_MAX: Duration = Duration::from_secs(120);

/// Repeats a step until stopped: at once while there is more, else at the next notice or after `every`, whichever is
/// first. A step that has begun is finished. After failures it pauses, longer each time, with jitter.
pub async fn repeat<F, E>(
    name: &'static str,
    every: Duration,
    mut wake: Option<watch::Receiver<()>>,
    stop: CancellationToken,
    mut step: impl FnMut() -> F,
) where
    F: Future<Output = Result<Step, E>>,
    E: std::fmt::Display,
{
    let mut pause = Pause::default();
    while !stop.is_cancelled() {
        let taken = match tokio::time::timeout(STEP_MAX, step()).await {
            Ok(taken) => taken.map_err(|error| error.to_string()),
            Err(_) => Err("no end in sight".to_owned()),
        };
        let rest = match taken {
            Ok(Step::More) => {
                pause.reset();
                continue;
            }
            Ok(Step::Idle) => {
                pause.reset();
                every
            }
            Err(error) => {
                let rest = pause.longer();
                tracing::warn!(name, %error, pause_ms = rest.as_millis(), "step failed, trying again");
                metrics::counter!("seckill_step_failures_total", "step" => name).increment(1);
                rest
            }
        };
        let notice = async {
            match &mut wake {
                // A failed step waits its pause out, notice or not.
                Some(wake) if pause.is_fresh() => _ = wake.changed().await,
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
pub struct Pause {
    failures: u32,
}

impl Pause {
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    fn is_fresh(&self) -> bool {
        self.failures == 0
    }

    pub fn longer(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let (base, cap) = (*PAUSE_MS.start(), *PAUSE_MS.end());
        Duration::from_millis(seckill_webhook::backoff_ms(self.failures, base, cap, rand::random()))
    }
}
