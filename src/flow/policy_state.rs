//! What an instance has going on under one policy: it outlives changes of the policy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::local_limiter::LocalLimiter;
use super::refusal_cache::RefusalCache;
use crate::domain::breaker::{Breaker, CallOutcome};
use crate::domain::policy::Policy;

/// Counts since they were taken last.
#[derive(Debug, Default)]
pub struct PolicyCounts {
    pub granted: AtomicU64,
    pub refused: AtomicU64,
    pub waited_ms: AtomicU64,
    pub failed: AtomicU64,
    /// What callers reported of calls that they were granted: all of them, those that failed, those that were slow.
    pub reports: AtomicU64,
    pub errors: AtomicU64,
    pub slow: AtomicU64,
}

impl PolicyCounts {
    /// One letter each, as they are kept by the second.
    pub const LETTERS: [char; 7] = ['g', 'r', 'w', 'f', 'o', 'e', 's'];

    fn all(&self) -> [&AtomicU64; 7] {
        let Self { granted, refused, waited_ms, failed, reports, errors, slow } = self;
        [granted, refused, waited_ms, failed, reports, errors, slow]
    }

    pub fn take(&self) -> [u64; 7] {
        self.all().map(|count| count.swap(0, Ordering::Relaxed))
    }

    /// What was taken could not be written.
    pub fn put_back(&self, counts: &[u64; 7]) {
        self.all().into_iter().zip(counts).for_each(|(count, back)| _ = count.fetch_add(*back, Ordering::Relaxed));
    }
}

/// One policy's memory in this instance.
pub struct PolicyState {
    began: Instant,
    pub counts: Arc<PolicyCounts>,
    /// Callers who were told when to come again, and do not wait.
    pub refused: Arc<RefusalCache>,
    pub local: Arc<LocalLimiter>,
    breaker: Option<Arc<Mutex<Breaker>>>,
}

impl PolicyState {
    pub fn new(policy: &Policy) -> Self {
        Self {
            began: Instant::now(),
            counts: Arc::default(),
            refused: Arc::default(),
            local: Arc::default(),
            breaker: policy.terms.breaker.map(|terms| Arc::new(Mutex::new(Breaker::new(terms)))),
        }
    }

    /// The same under the policy's next version: counts go on, and a breaker too, where its terms have not changed.
    /// Who was refused under the old terms may be granted under the new.
    pub fn under(&self, before: &Policy, after: &Policy) -> Arc<Self> {
        let same = before.terms.breaker == after.terms.breaker;
        let fresh = Self::new(after);
        Arc::new(Self {
            began: self.began,
            counts: Arc::clone(&self.counts),
            local: Arc::clone(&self.local),
            refused: if before.version == after.version { Arc::clone(&self.refused) } else { fresh.refused },
            breaker: if same { self.breaker.clone() } else { fresh.breaker },
        })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether the policy's breaker lets a call through; if not, after how many milliseconds to ask again.
    pub fn admit(&self) -> Result<(), u64> {
        let Some(breaker) = &self.breaker else { return Ok(()) };
        breaker.lock().unwrap_or_else(PoisonError::into_inner).admit(self.now_ms())
    }

    /// A call that the breaker let through was not made after all.
    pub fn withdraw(&self) {
        if let Some(breaker) = &self.breaker {
            breaker.lock().unwrap_or_else(PoisonError::into_inner).withdraw();
        }
    }

    /// Hears how a call ended. Returns whether the breaker opened because of it.
    pub fn report(&self, outcome: CallOutcome, target_ms: Option<i64>) -> bool {
        self.counts.reports.fetch_add(1, Ordering::Relaxed);
        self.counts.errors.fetch_add(u64::from(outcome.failed), Ordering::Relaxed);
        let slow = target_ms.is_some_and(|target| outcome.took_ms > target.unsigned_abs());
        self.counts.slow.fetch_add(u64::from(slow), Ordering::Relaxed);
        let Some(breaker) = &self.breaker else { return false };
        breaker.lock().unwrap_or_else(PoisonError::into_inner).report(self.now_ms(), outcome)
    }
}
