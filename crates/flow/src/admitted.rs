//! A call that a breaker has admitted, until the call is made.

use std::sync::Arc;

use parking_lot::Mutex;

use seckill_domain::breaker::{Admission, Breaker};

/// An admission. It is taken back when this is dropped: the call was not made, or its caller has gone. A probe without a report would keep
/// other calls away until the breaker tries again.
pub(super) struct AdmittedCall {
    /// The breaker of a probe.
    probed: Option<Arc<Mutex<Breaker>>>,
}

impl AdmittedCall {
    /// The error is the time until the next try, in milliseconds.
    pub(crate) fn by(breaker: &Arc<Mutex<Breaker>>, now_ms: u64) -> Result<Self, u64> {
        let admission = breaker.lock().admit(now_ms)?;
        Ok(Self { probed: (admission == Admission::Probe).then(|| Arc::clone(breaker)) })
    }

    /// An admission where there is no breaker.
    pub(crate) const fn freely() -> Self {
        Self { probed: None }
    }

    pub(crate) const fn admission(&self) -> Admission {
        if self.probed.is_some() { Admission::Probe } else { Admission::Call }
    }

    /// Leaves it to the caller to report how the call ended.
    pub(crate) fn keep(mut self) -> Admission {
        let admission = self.admission();
        self.probed = None;
        admission
    }
}

impl Drop for AdmittedCall {
    fn drop(&mut self) {
        if let Some(breaker) = &self.probed {
            breaker.lock().withdraw(Admission::Probe);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seckill_domain::breaker::{BreakerSettings, CallOutcome};

    #[test]
    fn a_probe_whose_caller_goes_is_given_to_the_next() {
        let terms = BreakerSettings { min_calls: 1, open_ms: 1_000, probes: 1, ..BreakerSettings::default() };
        let breaker = Arc::new(Mutex::new(Breaker::new(terms)));
        assert_eq!(AdmittedCall::by(&breaker, 0).unwrap().admission(), Admission::Call);
        breaker.lock().report(0, CallOutcome { failed: true, took_ms: 0 }, None);
        for _ in 0..3 {
            let probe = AdmittedCall::by(&breaker, 1_000).unwrap();
            assert_eq!(probe.admission(), Admission::Probe);
            assert!(AdmittedCall::by(&breaker, 1_001).is_err(), "there is one probe");
        }
        AdmittedCall::by(&breaker, 1_002).unwrap().keep();
        assert!(AdmittedCall::by(&breaker, 1_003).is_err(), "a probe that is under way was given away");
    }
}
