//! A request for permits together with the policy that it is for, and the answers that the policy gives.

use std::sync::atomic::Ordering;

use super::permit_request::{Lease, PermitAnswer, Quota, Reason};
use super::policy_cache::Entry;
use crate::domain::ids::Invalid;
use crate::domain::limiter::{ParameterSet, Parameters, SlotKey, Verdict};
use crate::domain::policy::{Excess, Policy};
use crate::gate::limiter::Take;

/// One request, its policy, and the slot that its permits are counted in.
pub(super) struct PolicyRequest<'a> {
    pub entry: Entry,
    pub key: &'a str,
    pub slot: SlotKey,
    pub permits: u32,
}

impl<'a> PolicyRequest<'a> {
    /// # Errors
    ///
    /// More permits than the policy can ever grant, or a key that is too long.
    pub fn new(entry: Entry, key: &'a str, permits: i64) -> Result<Self, Invalid> {
        let granted_at_most = entry.policy.algorithm.max_permits();
        let permits = u32::try_from(permits).ok().filter(|_| permits <= granted_at_most);
        let permits = permits.ok_or(Invalid::new("permits", "must be at most the policy's limit or capacity"))?;
        let slot = slot(&entry.policy, key)?;
        Ok(Self { entry, key, slot, permits })
    }

    pub fn take(&self, lease: Option<Lease>) -> Take<'_> {
        let algorithm = &self.entry.policy.algorithm;
        Take { slot: &self.slot, algorithm, permits: self.permits, lease: lease.map(|lease| lease.id) }
    }

    /// A new lease, where the caller has permits to give back or a call to report.
    pub fn lease(&self) -> Option<Lease> {
        let terms = &self.entry.policy.terms;
        let returns = terms.algorithm.kind().grants_leases();
        (returns || terms.breaker.is_some() || terms.range.is_some()).then(Lease::now)
    }

    pub fn count_grant(&self) {
        self.entry.state.counters.granted.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_refusal(&self) {
        self.entry.state.counters.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a grant, and answers with it.
    pub fn grant(&self, verdict: Option<&Verdict>, lease: Option<Lease>) -> PermitAnswer {
        self.count_grant();
        PermitAnswer { lease, ..self.granted(verdict) }
    }

    /// The answer of a grant that is counted elsewhere.
    pub fn granted(&self, verdict: Option<&Verdict>) -> PermitAnswer {
        PermitAnswer {
            code: 1,
            remaining: verdict.map_or(-1, |verdict| verdict.remaining),
            delay_ms: verdict.map(|verdict| verdict.delay_ms.unsigned_abs()).filter(|ms| *ms > 0),
            quota: verdict.and_then(|verdict| self.quota(verdict.reset_ms.unsigned_abs())),
            ..PermitAnswer::default()
        }
    }

    /// Counts the refusal of a limiter, and answers as the policy says.
    pub fn refuse_by(&self, verdict: &Verdict, reason: Reason) -> PermitAnswer {
        let answer = self.refuse(reason, verdict.remaining, verdict.retry_after_ms.unsigned_abs());
        PermitAnswer { quota: self.quota(verdict.reset_ms.unsigned_abs()), ..answer }
    }

    /// Counts a refusal, and answers as the policy says about the excess.
    pub fn refuse(&self, reason: Reason, remaining: i64, retry_after_ms: u64) -> PermitAnswer {
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
            Excess::Degrade { answer } => PermitAnswer { body: Some(answer.clone()), ..refused },
            Excess::Shadow => PermitAnswer { code: 1, retry_after_ms: 0, reason: Some(Reason::Shadow), ..refused },
        }
    }

    /// The limit for the headers; `None` where there is no limit.
    fn quota(&self, reset_ms: u64) -> Option<Quota> {
        let Policy { algorithm, terms, .. } = &*self.entry.policy;
        let Parameters { limit, capacity, rate, window_ms, .. } = algorithm.parameters();
        let (permits, window_ms) = match algorithm.kind().parameter_set() {
            ParameterSet::Window => (limit?, window_ms),
            // The window of a bucket is the time in which it fills.
            ParameterSet::Bucket => (capacity?, Some(window_ms?.saturating_mul(capacity?) / rate?)),
            ParameterSet::Leases => (limit?, None),
        };
        let window_s = window_ms.map(|ms| ms.unsigned_abs().div_ceil(1000));
        (permits > 0).then(|| Quota { policy: terms.name.clone(), permits, window_s, reset_ms })
    }
}

/// The slot of a caller's key under a policy.
pub(super) fn slot(policy: &Policy, key: &str) -> Result<SlotKey, Invalid> {
    SlotKey::new(policy.home.as_str(), &policy.id.to_string(), key, policy.terms.spread)
        .map_err(|_| Invalid::new("key", "must be at most 128 bytes"))
}
