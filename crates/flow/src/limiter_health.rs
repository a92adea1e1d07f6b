//! The breakers before the limiter's Redis: after a few calls without an answer, callers no longer wait for it. Each application has one per
//! policy, so that its calls affect no other application. One more is for all: it opens when Redis does not answer a `PING` either.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::admitted::AdmittedCall;
use seckill_domain::breaker::{Admission, Breaker, BreakerSettings, CallOutcome};
use seckill_redis::GateError;
use seckill_redis::limiter::Limiter;

const TERMS: BreakerSettings = BreakerSettings {
    error_percent: 50,
    slow_percent: 100,
    slow_ms: 3_600_000, // slow calls fail by the time-out
    min_calls: 5,
    window_ms: 1_000,
    open_ms: 500,
    probes: 1,
};

/// The breaker of one application's calls under one policy.
#[derive(Clone)]
pub(super) struct CallsHealth(Arc<Mutex<Breaker>>);

impl CallsHealth {
    pub(crate) fn new(timeout_ms: u64) -> Self {
        // Callers that wait for the time-out one after another must count in one window.
        let window_ms = TERMS.window_ms.max(10 * timeout_ms);
        Self(Arc::new(Mutex::new(Breaker::new(BreakerSettings { window_ms, ..TERMS }))))
    }

    /// Returns whether the breaker opened.
    fn report(&self, now_ms: u64, failed: bool, admission: Admission) -> bool {
        let probe = (admission == Admission::Probe).then_some(0);
        self.0.lock().report(now_ms, CallOutcome { failed, took_ms: 0 }, probe)
    }
}

pub(super) struct LimiterHealth {
    all: CallsHealth,
    began: Instant,
}

impl LimiterHealth {
    /// The retry delay of callers that are refused while Redis does not answer.
    pub(crate) const RETRY_MS: u64 = TERMS.open_ms;

    pub(crate) fn new(timeout_ms: u64) -> Self {
        Self { all: CallsHealth::new(timeout_ms), began: Instant::now() }
    }

    /// Makes a call of these policies, unless Redis did not answer their last ones. An error reply or a refusal of Redis is an answer.
    pub(crate) async fn watch<'a, T>(
        &self,
        limiter: &Limiter,
        policies: impl IntoIterator<Item = &'a CallsHealth>,
        call: impl Future<Output = Result<T, GateError>>,
    ) -> Result<T, GateError> {
        let limiter = limiter.clone();
        self.watch_with(policies, call, async move { limiter.ping().await.is_ok() }).await
    }

    /// `ping` says whether Redis answers anything at all.
    async fn watch_with<'a, T>(
        &self,
        policies: impl IntoIterator<Item = &'a CallsHealth>,
        call: impl Future<Output = Result<T, GateError>>,
        ping: impl Future<Output = bool> + Send + 'static,
    ) -> Result<T, GateError> {
        let now_ms = self.now_ms();
        let admit = |calls: &'a CallsHealth| AdmittedCall::by(&calls.0, now_ms).map(|admitted| (calls, admitted));
        // A refusal withdraws the admissions before it.
        let policies: Result<Vec<_>, u64> = policies.into_iter().map(admit).collect();
        let (Ok(policies), Ok(all)) = (policies, AdmittedCall::by(&self.all.0, now_ms)) else {
            return Err(GateError::Unknown);
        };
        let reply = call.await;
        if let Err(GateError::TooManyKeys { .. }) = reply {
            return reply; // Redis was not asked
        }
        let failed = reply.as_ref().is_err_and(GateError::is_unanswered);
        for (calls, admitted) in policies {
            if calls.report(self.now_ms(), failed, admitted.keep()) {
                tracing::warn!("the limiter's Redis does not answer one policy's calls: its when_down applies");
            }
        }
        let (calls, admission, began) = (self.all.clone(), all.keep(), self.began);
        let report = move |failed| {
            if calls.report(ms_since(began), failed, admission) {
                tracing::warn!("the limiter's Redis does not answer: the policies' when_down applies");
            }
        };
        if failed {
            tokio::spawn(async move { report(!ping.await) });
        } else {
            report(false);
        }
        reply
    }

    fn now_ms(&self) -> u64 {
        ms_since(self.began)
    }
}

fn ms_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::io;

    use super::*;

    #[tokio::test]
    async fn calls_without_an_answer_stop_no_others() {
        let health = LimiterHealth::new(100);
        let new_policy = || CallsHealth::new(100);
        let [greedy, beside, other] = [new_policy(), new_policy(), new_policy()];
        let passes = async |calls: &CallsHealth| health.watch_with([calls], ready(Ok(())), ready(true)).await.is_ok();
        let fail = async |calls: &[&CallsHealth], has_redis| {
            let late: Result<(), _> = Err(GateError::Unreachable(io::Error::from(io::ErrorKind::TimedOut).into()));
            let _ = health.watch_with(calls.iter().copied(), ready(late), ready(has_redis)).await;
            tokio::task::yield_now().await; // to the PING
        };
        for _ in 0..TERMS.min_calls {
            fail(&[&greedy, &beside], true).await;
        }
        let opened = [passes(&greedy).await, passes(&beside).await, passes(&other).await];
        assert_eq!(opened, [false, false, true]);
        for _ in 0..2 * TERMS.min_calls {
            let both = health.watch_with([&other, &greedy], ready(Ok(())), ready(true)).await;
            assert!(both.is_err(), "the greedy one's calls go on");
        }
        assert!(passes(&other).await, "a call that was not made counted");
        for _ in 0..4 * TERMS.min_calls {
            fail(&[&new_policy()], false).await; // each of a policy of its own
        }
        assert!(!passes(&new_policy()).await, "Redis does not answer anything");
    }
}
