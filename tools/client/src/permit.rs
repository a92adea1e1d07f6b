//! A granted permit, and the return of its lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reqwest::Method;
use seckill_webhook::backoff_ms;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::breaker::Breaker;
use crate::error::Error;
use crate::service::{Bearer, Service, call};

/// How many times the return of a lease is tried, and the pauses between tries.
const ATTEMPTS: u32 = 5;
const PAUSE_MS: u64 = 200;
const PAUSE_MAX_MS: u64 = 3_000;
/// A longer `Retry-After` is cut to this: few leases last longer.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);

/// Leases that may be queued for their return, and how many are in flight at once. Further leases expire by themselves, as after
/// the death of a holder.
const WAITING_MAX: usize = 1024;
const AT_ONCE_MAX: usize = 16;
/// The interval at which a drain checks whether it is done.
const DRAIN_POLL: Duration = Duration::from_millis(10);

/// Why a permit was refused, or granted beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Reason {
    Limit,
    /// The policy's breaker is open: calls under it failed or were slow.
    Breaker,
    QueueFull,
    /// The application's keys have reached their memory limit in Redis.
    TooManyKeys,
    /// The service's limiter is away, and the policy decided what to answer.
    LimiterDown,
    /// The policy only counts: otherwise it would have refused.
    Shadow,
    /// The service could not be asked: [`WhenAway`](crate::WhenAway).
    #[serde(skip_deserializing)]
    ServiceAway,
    #[serde(other)]
    Unknown,
}

/// The state that the clones of a client share, also with their permits.
#[derive(Debug)]
pub(crate) struct Shared {
    pub service: Service,
    pub bearer: Bearer,
    pub app: String,
    pub breaker: Mutex<Breaker>,
    pub lines: ReleaseLines,
}

impl Shared {
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        within: Duration,
    ) -> Result<T, Error> {
        call(self.service.request(Method::POST, path, Some(&self.bearer)).json(body), within).await
    }
}

/// The outcome of the work. The policy's breaker counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Ok,
    Error,
}

/// Permission for one piece of work.
///
/// If the policy limits concurrency or has a breaker, the permit holds a lease. [`Permit::release`] returns the lease and reports the
/// outcome. Dropping the permit, also in a cancelled task, returns the lease in the background without an outcome. If the thread panics,
/// the outcome is [`Outcome::Error`].
#[must_use = "a permit that is dropped is given back at once"]
#[derive(Debug)]
pub struct Permit {
    held: Option<Held>,
    remaining: Option<u64>,
    reason: Option<Reason>,
    delay: Duration,
    /// When the work began, or may begin.
    began: Instant,
    /// The report, once the work has ended.
    report: Option<Report>,
}

/// The outcome and the duration of the work.
#[derive(Debug, Clone, Copy)]
struct Report {
    outcome: Option<Outcome>,
    took: Duration,
}

/// A lease, and everything needed to return it.
#[derive(Debug)]
pub(crate) struct Held {
    pub shared: Arc<Shared>,
    /// The runtime for the background work: a permit may be dropped on a thread without a runtime.
    pub runtime: Handle,
    pub timeout: Duration,
    pub lease: String,
    /// The policies and keys of the lease.
    pub dimensions: Vec<(String, String)>,
}

#[derive(Serialize)]
struct Release<'a> {
    app: &'a str,
    policy: &'a str,
    key: &'a str,
    lease: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    took_ms: u64,
}

#[derive(Deserialize)]
struct Released {
    released: bool,
}

impl Permit {
    /// `remaining` is -1 if the policy has no limit.
    pub(crate) fn granted(remaining: i64, reason: Option<Reason>, delay: Duration, held: Option<Held>) -> Self {
        let remaining = u64::try_from(remaining).ok();
        Self { held, remaining, reason, delay, began: Instant::now() + delay, report: None }
    }

    /// A permit that no policy has counted.
    pub(crate) fn uncounted(reason: Option<Reason>) -> Self {
        Self::granted(-1, reason, Duration::ZERO, None)
    }

    /// The permits left; `None` without a limit, and if nothing was counted.
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Why the permit was granted beyond the limit; usually `None`.
    pub fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// The pause between the grant and the work, which makes a leaky bucket flow evenly; usually zero.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Waits for the rest of [`Permit::delay`].
    pub async fn wait_turn(&self) {
        sleep(self.began.saturating_duration_since(Instant::now())).await;
    }

    /// Whether the permit holds a lease, which must be returned.
    pub fn has_lease(&self) -> bool {
        self.held.is_some()
    }

    /// Returns the lease, and reports the outcome and the duration of the work: the time since the grant, without the delay.
    ///
    /// Returns whether the lease was still held; `false` without a lease, or after its expiry. The request is sent once. If it fails,
    /// or this future is dropped, the same report is repeated in the background, at most five times.
    ///
    /// # Errors
    /// The service did not confirm it.
    pub async fn release(mut self, outcome: Outcome) -> Result<bool, Error> {
        let report = Report { outcome: Some(outcome), took: self.took() };
        self.report = Some(report);
        let Some(held) = &self.held else { return Ok(false) };
        let answer = held.give_back(report).await;
        if !answer.as_ref().is_err_and(Error::may_retry) {
            self.held = None;
        }
        answer
    }

    fn took(&self) -> Duration {
        Instant::now().saturating_duration_since(self.began)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            let unreported = || {
                let outcome = std::thread::panicking().then_some(Outcome::Error);
                Report { outcome, took: self.took() }
            };
            let report = self.report.unwrap_or_else(unreported);
            held.give_back_in_background(report);
        }
    }
}

impl Held {
    /// Returns the lease once for each of its policies. A repeated call only reports again.
    async fn give_back(&self, report: Report) -> Result<bool, Error> {
        // The service takes whole numbers that JSON can hold.
        let took_ms = u64::try_from(report.took.as_millis()).unwrap_or(u64::MAX).min((1 << 53) - 1);
        let (app, lease) = (self.shared.app.as_str(), self.lease.as_str());
        let mut released = false;
        for (policy, key) in &self.dimensions {
            let body = Release { app, policy, key, lease, outcome: report.outcome, took_ms };
            let answer: Released = self.shared.post("/api/v1/flow/release", &body, self.timeout).await?;
            released |= answer.released;
        }
        Ok(released)
    }

    fn give_back_in_background(self, report: Report) {
        let ReleaseLines { waiting, at_once } = self.shared.lines.clone();
        let Ok(place) = waiting.try_acquire_owned() else {
            tracing::warn!(app = self.shared.app, "too many leases wait to be released; this one ends by itself");
            return;
        };
        let runtime = self.runtime.clone();
        // A runtime that has ended drops the task: the lease expires by itself.
        runtime.spawn(async move {
            let _place = place;
            // The semaphore is never closed.
            let _turn = at_once.acquire().await;
            for attempt in 1..=ATTEMPTS {
                match self.give_back(report).await {
                    Ok(_) => return,
                    Err(error) if !error.may_retry() || attempt == ATTEMPTS => {
                        tracing::warn!(%error, app = self.shared.app, "a lease was not released; it ends by itself");
                        return;
                    }
                    Err(error) => {
                        let pause = Duration::from_millis(backoff_ms(attempt, PAUSE_MS, PAUSE_MAX_MS, rand::random()));
                        sleep(error.retry_after().map_or(pause, |wait| pause.max(wait.min(RETRY_AFTER_MAX)))).await;
                    }
                }
            }
        });
    }
}

/// The leases to return. Both numbers are bounded, so permits that end together cause no burst.
#[derive(Debug, Clone)]
pub(crate) struct ReleaseLines {
    waiting: Arc<Semaphore>,
    at_once: Arc<Semaphore>,
}

impl Default for ReleaseLines {
    fn default() -> Self {
        Self { waiting: Arc::new(Semaphore::new(WAITING_MAX)), at_once: Arc::new(Semaphore::new(AT_ONCE_MAX)) }
    }
}

impl ReleaseLines {
    /// Waits until all leases are settled.
    pub(crate) async fn drain(&self, within: Duration) -> bool {
        let empty = async {
            while self.waiting.available_permits() < WAITING_MAX {
                sleep(DRAIN_POLL).await;
            }
        };
        timeout(within, empty).await.is_ok()
    }
}
