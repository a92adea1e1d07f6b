//! A policy's state in this instance. It outlives changes of the policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::admitted::AdmittedCall;
use super::local_limiter::LocalLimiter;
use super::refusal_cache::RefusalCache;
use seckill_domain::breaker::{Breaker, CallOutcome, ProbeId};
use seckill_domain::policy::Policy;
use seckill_redis::limiter::policy_counts::PolicyCounts;

/// `PolicyCounts` since they were last taken, counted by all threads.
#[derive(Debug, Default)]
pub(super) struct PolicyCounters {
    pub(crate) granted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) waited_ms: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) broken: AtomicU64,
    pub(crate) no_room: AtomicU64,
    reports: AtomicU64,
    errors: AtomicU64,
    slow: AtomicU64,
}

impl PolicyCounters {
    /// In the order of `PolicyCounts::counts`.
    fn counters(&self) -> [&AtomicU64; 9] {
        let Self { granted, refused, waited_ms, failed, broken, no_room, reports, errors, slow } = self;
        [granted, refused, waited_ms, failed, broken, no_room, reports, errors, slow]
    }

    /// Returns the counts and starts again from 0.
    pub(crate) fn take(&self) -> PolicyCounts {
        let mut taken = PolicyCounts::default();
        for (count, counter) in taken.counts().into_iter().zip(self.counters()) {
            *count = counter.swap(0, Ordering::Relaxed);
        }
        taken
    }

    /// Adds counts that could not be written.
    pub(crate) fn put_back(&self, mut counts: PolicyCounts) {
        for (count, counter) in counts.counts().into_iter().zip(self.counters()) {
            counter.fetch_add(*count, Ordering::Relaxed);
        }
    }
}

pub(super) struct PolicyState {
    began: Instant,
    pub(crate) counters: Arc<PolicyCounters>,
    /// Refused callers that do not wait.
    pub(crate) refusals: Arc<RefusalCache>,
    pub(crate) local_limiter: Arc<LocalLimiter>,
    breaker: Option<Arc<Mutex<Breaker>>>,
}

impl PolicyState {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self {
            began: Instant::now(),
            counters: Arc::default(),
            refusals: Arc::default(),
            local_limiter: Arc::default(),
            breaker: policy.terms.breaker.map(|terms| Arc::new(Mutex::new(Breaker::new(terms)))),
        }
    }

    /// The state under the policy's next version. The counts are kept, and the breaker if its terms are the same. Refusals are kept only in
    /// the same version, because new terms may grant those calls.
    pub(crate) fn carried_over(&self, before: &Policy, after: &Policy) -> Self {
        let fresh = Self::new(after);
        let same_breaker = before.terms.breaker == after.terms.breaker;
        Self {
            began: self.began,
            counters: Arc::clone(&self.counters),
            local_limiter: Arc::clone(&self.local_limiter),
            refusals: if before.version == after.version { Arc::clone(&self.refusals) } else { fresh.refusals },
            breaker: if same_breaker { self.breaker.clone() } else { fresh.breaker },
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The error is the time until the breaker's next try, in milliseconds.
    pub(crate) fn admit(&self) -> Result<AdmittedCall, u64> {
        self.breaker.as_ref().map_or(Ok(AdmittedCall::freely()), |breaker| AdmittedCall::by(breaker, self.now_ms()))
    }

    /// Records how a call ended. Returns whether the breaker opened because of it.
    pub(crate) fn report(&self, outcome: CallOutcome, probe: Option<ProbeId>, target_ms: Option<i64>) -> bool {
        // A failed call is not counted as slow as well.
        let slow = !outcome.failed && target_ms.is_some_and(|target| outcome.took_ms > target.unsigned_abs());
        self.counters.reports.fetch_add(1, Ordering::Relaxed);
        self.counters.errors.fetch_add(u64::from(outcome.failed), Ordering::Relaxed);
        self.counters.slow.fetch_add(u64::from(slow), Ordering::Relaxed);
        self.breaker.as_ref().is_some_and(|breaker| breaker.lock().report(self.now_ms(), outcome, probe))
    }
}
