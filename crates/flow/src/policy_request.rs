//! A request for permits of a policy, and the policy's answers.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::permit_request::{Lease, PermitAnswer, Quota, Reason};
use super::policy_cache::Entry;
use seckill_domain::breaker::Admission;
use seckill_domain::ids::Invalid;
use seckill_domain::limiter::{ParameterSet, Parameters, SlotKey, Verdict};
use seckill_domain::policy::{Excess, Policy};
use seckill_redis::GateError;
use seckill_redis::limiter::Take;

pub(super) struct PolicyRequest<'a> {
    pub(crate) entry: Entry,
    /// The caller's key, and the key that is counted for it.
    pub(crate) asked_key: &'a str,
    pub(crate) key: Cow<'a, str>,
    pub(crate) slot: SlotKey,
    pub(crate) permits: u32,
    /// More permits than the moving threshold allows at present.
    above_threshold: bool,
}

/// The end of a wait in line.
pub(super) enum WaitOutcome {
    Decided(Verdict, Reason),
    /// The changed policy; `None` when it was deleted.
    PolicyChanged(Option<Entry>),
}

/// The retry delay of permits above the threshold, which moves every few seconds.
const THRESHOLD_RETRY_MS: u64 = 1_000;

impl<'a> PolicyRequest<'a> {
    pub(crate) fn new(entry: Entry, asked_key: &'a str, permits: i64) -> Result<Self, Invalid> {
        let above_threshold = permits > entry.policy.algorithm.max_permits();
        let permits = u32::try_from(permits).ok().filter(|_| permits <= entry.policy.most_permits());
        let permits = permits.ok_or(Invalid::new("permits", "must be at most the policy's limit or capacity"))?;
        let key = entry.policy.terms.counted_key(asked_key);
        let slot = slot(&entry.policy, &key);
        Ok(Self { entry, asked_key, key, slot, permits, above_threshold })
    }

    pub(crate) fn take(&self, lease: Option<Lease>) -> Take<'_> {
        let Policy { algorithm, terms, .. } = &*self.entry.policy;
        Take {
            slot: &self.slot,
            algorithm,
            permits: self.permits,
            lease: lease.map(|lease| lease.id),
            has_line: matches!(terms.excess, Excess::Queue { .. }),
        }
    }

    /// A new lease, for permits to give back or a call to report.
    pub(crate) fn lease(&self, admission: Admission) -> Option<Lease> {
        let terms = &self.entry.policy.terms;
        let returns = terms.algorithm.kind().grants_leases();
        (returns || terms.breaker.is_some() || terms.range.is_some()).then(|| Lease::now(admission))
    }

    /// Refuses without a call to Redis where the answer is known.
    pub(crate) fn refused_from_memory(&self) -> Option<PermitAnswer> {
        if let Some(refused) = self.refused_for_now() {
            return Some(refused);
        }
        let left = self.entry.state.refusals.wait_of(&self.key, self.permits).filter(|_| self.remembers_refusals())?;
        Some(self.refuse(Reason::Limit, 0, u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1)))
    }

    /// Refuses more permits than the present threshold allows.
    pub(crate) fn refused_for_now(&self) -> Option<PermitAnswer> {
        self.above_threshold.then(|| self.refuse(Reason::Limit, 0, THRESHOLD_RETRY_MS))
    }

    pub(crate) fn remember_refusal(&self, verdict: &Verdict) {
        if self.remembers_refusals() {
            let wait = Duration::from_millis(verdict.retry_after_ms.unsigned_abs());
            self.entry.state.refusals.remember(&self.key, self.permits, wait);
        }
    }

    /// A lease may be given back at any moment, so its refusal is not remembered.
    fn remembers_refusals(&self) -> bool {
        let Policy { terms, algorithm, .. } = &*self.entry.policy;
        !matches!(terms.excess, Excess::Queue { .. }) && !algorithm.kind().grants_leases()
    }

    pub(crate) fn count_grant(&self) {
        self.entry.state.counters.granted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refusal(&self) {
        self.entry.state.counters.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that Redis did not count.
    pub(crate) fn count_failure(&self, error: &GateError) {
        self.entry.state.counters.failed.fetch_add(1, Ordering::Relaxed);
        if !error.is_outage() {
            self.entry.state.counters.broken.fetch_add(1, Ordering::Relaxed);
            tracing::error!(policy = %self.entry.policy.terms.name, %error, "a limiter's script has failed");
        }
    }

    /// Counts a grant, and answers with it.
    pub(crate) fn grant(&self, verdict: Option<&Verdict>, lease: Option<Lease>) -> PermitAnswer {
        self.count_grant();
        PermitAnswer { lease, ..self.granted(verdict) }
    }

    /// The answer of a grant, uncounted.
    pub(crate) fn granted(&self, verdict: Option<&Verdict>) -> PermitAnswer {
        PermitAnswer {
            code: 1,
            remaining: verdict.map_or(-1, |verdict| verdict.remaining),
            delay_ms: verdict.map(|verdict| verdict.delay_ms.unsigned_abs()).filter(|ms| *ms > 0),
            quota: verdict.and_then(|verdict| self.quota(verdict.reset_ms.unsigned_abs())),
            ..PermitAnswer::default()
        }
    }

    /// Counts a limiter's refusal, and answers by the policy's excess.
    pub(crate) fn refuse_by(&self, verdict: &Verdict, reason: Reason) -> PermitAnswer {
        let answer = self.refuse(reason, verdict.remaining, verdict.retry_after_ms.unsigned_abs());
        PermitAnswer { quota: self.quota(verdict.reset_ms.unsigned_abs()), ..answer }
    }

    /// Refuses a call whose key has no room in Redis.
    pub(crate) fn refuse_for_keys(&self, retry_after_ms: u64) -> PermitAnswer {
        self.entry.state.counters.no_room.fetch_add(1, Ordering::Relaxed);
        self.refuse(Reason::TooManyKeys, 0, retry_after_ms)
    }

    /// Counts a refusal, and answers by the policy's excess.
    pub(crate) fn refuse(&self, reason: Reason, remaining: i64, retry_after_ms: u64) -> PermitAnswer {
        self.count_refusal();
        let terms = &self.entry.policy.terms;
        let refused = PermitAnswer {
            code: -1,
            remaining,
            retry_after_ms: retry_after_ms.max(1),
            policy: Some(terms.name.clone()),
            reason: Some(reason),
            quota: self.quota(retry_after_ms),
            ..PermitAnswer::default()
        };
        match &terms.excess {
            Excess::Reject | Excess::Queue { .. } => refused,
            Excess::Degrade { answer } => PermitAnswer { answer: Some(answer.clone()), ..refused },
            Excess::Shadow => PermitAnswer { code: 1, retry_after_ms: 0, reason: Some(Reason::Shadow), ..refused },
        }
    }

    /// The limit for the headers; `None` where there is no limit.
    fn quota(&self, reset_ms: u64) -> Option<Quota> {
        let Policy { algorithm, terms, .. } = &*self.entry.policy;
        let Parameters { limit, capacity, rate, window_ms, .. } = algorithm.parameters();
        let (permits, window_ms) = match algorithm.kind().parameter_set() {
            ParameterSet::Window => (limit?, window_ms),
            // A bucket's window is the time in which it fills.
            ParameterSet::Bucket => (capacity?, Some(window_ms?.saturating_mul(capacity?) / rate?)),
            ParameterSet::Leases => (limit?, None),
        };
        let window_s = window_ms.map(|ms| ms.unsigned_abs().div_ceil(1000));
        (permits > 0).then(|| Quota { policy: terms.name.clone(), permits, window_s, reset_ms })
    }
}

/// The slot of a caller's key under a policy.
pub(super) fn slot(policy: &Policy, key: &str) -> SlotKey {
    SlotKey::new(policy.home.as_str(), &policy.id.to_string(), key, policy.terms.spread)
}
