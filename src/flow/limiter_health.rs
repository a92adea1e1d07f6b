//! The breaker before the limiter's Redis: after a few calls without an answer, callers no longer wait for it.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::admitted::Admitted;
use crate::domain::breaker::{Admission, Breaker, BreakerTerms, CallOutcome};
use crate::gate::GateError;

/// Soon after it has opened, one caller tries Redis again.
const TERMS: BreakerTerms = BreakerTerms {
    error_percent: 50,
    slow_percent: 100,
    slow_ms: 3_600_000, // slow calls end by the time-out, and count as failed
    min_calls: 5,
    window_ms: 1_000,
    open_ms: 500,
    probes: 1,
};

/// Whether the limiter's Redis answers.
pub(super) struct LimiterHealth {
    breaker: Arc<Mutex<Breaker>>,
    began: Instant,
}

impl LimiterHealth {
    /// After this time, a caller that was refused because Redis does not answer may ask again.
    pub const RETRY_MS: u64 = TERMS.open_ms;

    /// `timeout_ms` is how long a call waits.
    pub fn new(timeout_ms: u64) -> Self {
        // Callers that come one after another, each waiting for the time-out, must count in one window.
        let window_ms = TERMS.window_ms.max(10 * timeout_ms);
        Self { breaker: Arc::new(Mutex::new(Breaker::new(BreakerTerms { window_ms, ..TERMS }))), began: Instant::now() }
    }

    /// Makes a call, unless Redis did not answer the last ones. An error that Redis answered with, and a request that it
    /// refused, are no sign that it is away.
    pub async fn watch<T>(&self, call: impl Future<Output = Result<T, GateError>>) -> Result<T, GateError> {
        let Ok(admitted) = Admitted::by(&self.breaker, self.now_ms()) else { return Err(GateError::Unknown) };
        let reply = call.await;
        let failed = reply.as_ref().is_err_and(GateError::is_unanswered);
        let probe = (admitted.admission() == Admission::Probe).then_some(0);
        admitted.keep();
        if self.breaker.lock().report(self.now_ms(), CallOutcome { failed, took_ms: 0 }, probe) {
            tracing::warn!("the limiter's Redis does not answer: the policies' when_down applies");
        }
        reply
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
