//! Answers requests for permits: from memory, else by one call to Redis, else by the policy's terms for excess or for a Redis without an
//! answer.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use super::FlowError;
use super::limiter_health::LimiterHealth;
use super::permit_request::{Lease, PermitAnswer, PermitRequest, Reason};
use super::policy_cache::{Entry, PolicyCache};
use super::policy_request::{PolicyRequest, WaitOutcome, slot};
use super::unread_grant::UnreadGrant;
use super::waits::Waits;
use seckill_domain::breaker::{Admission, CallOutcome};
use seckill_domain::ids::Invalid;
use seckill_domain::limiter::Verdict;
use seckill_domain::policy::{Excess, Name, WhenDown};
use seckill_redis::GateError;
use seckill_redis::limiter::{Limiter, Take};

pub struct Permits {
    pub(super) policies: Arc<PolicyCache>,
    pub(super) limiter: Limiter,
    /// The most waiters of a line.
    pub(super) queue_max: u32,
    pub(super) health: LimiterHealth,
    pub(super) waits: Waits,
}

const POLICIES_MAX: usize = 9;

impl Permits {
    pub fn new(policies: Arc<PolicyCache>, limiter: Limiter, queue_max: u32) -> Self {
        let health = LimiterHealth::new(limiter.timeout_ms());
        Self { policies, limiter, queue_max, health, waits: Waits::default() }
    }

    pub(crate) fn policies(&self) -> &PolicyCache {
        &self.policies
    }

    /// Asks these policies for permits: all grant, or nothing is used up. Policies that the application does not have are left out; code 0 says
    /// that it has none of them.
    pub async fn acquire(&self, app: &Name, requests: &[PermitRequest]) -> Result<PermitAnswer, FlowError> {
        if requests.len() > POLICIES_MAX {
            return Err(Invalid::new("also", "must name at most 8 more policies").into());
        }
        let configured = requests.iter().filter_map(|request| {
            let entry = self.policies.find(app, &request.policy)?;
            Some(PolicyRequest::new(entry, &request.key, request.permits))
        });
        let mut requests = configured.collect::<Result<Vec<_>, _>>()?;
        let mut known = HashSet::new();
        if requests.len() > 1 && !requests.iter().all(|asked| known.insert((asked.entry.policy.id, &asked.key))) {
            return Err(Invalid::new("also", "must name each policy and key once").into());
        }
        if requests.len() > 1 {
            return Ok(self.acquire_several(&requests).await);
        }
        match requests.pop() {
            Some(request) => self.acquire_one(app, request).await,
            None => Ok(PermitAnswer::default()),
        }
    }

    /// Gives a lease back, and records how its call ended. Returns `false` when there was nothing to give back or to record.
    pub async fn release(
        &self,
        app: &Name,
        request: &PermitRequest,
        lease: Lease,
        failed: Option<bool>,
        took_ms: Option<u64>,
    ) -> Result<bool, FlowError> {
        let Some(entry) = self.policies.find(app, &request.policy) else { return Ok(false) };
        let Entry { policy, state, .. } = &entry;
        let key = policy.terms.counted_key(&request.key);
        let reported = failed.is_some() || took_ms.is_some();
        let released = if !policy.algorithm.kind().grants_leases() {
            reported
        } else if state.local_limiter.release(&key, lease.id) {
            true
        } else {
            let slot = slot(policy, &key);
            self.health
                .watch(&self.limiter, [&entry.calls], self.limiter.release(&slot, &policy.algorithm, lease.id))
                .await?
        };
        // Only after the release: a caller that has to release again reports again.
        if reported {
            let took_ms = took_ms.unwrap_or_else(|| lease.age_ms());
            let outcome = CallOutcome { failed: failed.unwrap_or(false), took_ms };
            let target_ms = policy.terms.range.and_then(|range| range.target_ms);
            if state.report(outcome, lease.probe(), target_ms) {
                tracing::warn!(policy = %policy.terms.name, "breaker opened");
            }
        }
        if policy.algorithm.kind().grants_leases() {
            state.refusals.clear();
        }
        Ok(released)
    }

    async fn acquire_one(&self, app: &Name, mut request: PolicyRequest<'_>) -> Result<PermitAnswer, FlowError> {
        let began = Instant::now();
        let admitted = match request.entry.state.admit() {
            Ok(admitted) => admitted,
            Err(wait_ms) => return Ok(request.refuse(Reason::Breaker, 0, wait_ms)),
        };
        let mut place = None;
        let answer = loop {
            let lease = request.lease(admitted.admission());
            let Entry { policy, .. } = &request.entry;
            if policy.algorithm.is_unlimited() {
                break request.grant(None, lease);
            }
            if let Some(refused) = request.refused_from_memory() {
                break refused;
            }
            let decided = match policy.terms.excess {
                Excess::Queue { .. } => self.wait_in_line(app, &request, lease, began, &mut place).await,
                Excess::Reject | Excess::Degrade { .. } | Excess::Shadow => {
                    self.call_redis(&request, lease).await.map(|verdict| WaitOutcome::Decided(verdict, Reason::Limit))
                }
            };
            match decided {
                Ok(WaitOutcome::Decided(verdict, _)) if verdict.granted => break request.grant(Some(&verdict), lease),
                Ok(WaitOutcome::Decided(verdict, reason)) => {
                    request.remember_refusal(&verdict);
                    break request.refuse_by(&verdict, reason);
                }
                Ok(WaitOutcome::PolicyChanged(None)) => return Ok(PermitAnswer::default()),
                Ok(WaitOutcome::PolicyChanged(Some(entry))) => {
                    request = PolicyRequest::new(entry, request.asked_key, request.permits.into())?;
                }
                Err(error) => break self.answer_when_down(&[&request], lease, &error),
            }
        };
        if answer.code >= 0 {
            admitted.keep();
        }
        Ok(answer)
    }

    async fn call_redis(&self, request: &PolicyRequest<'_>, lease: Option<Lease>) -> Result<Verdict, GateError> {
        let takes = [request.take(lease)];
        let call = UnreadGrant::acquire(&self.limiter, &takes, self.limiter.acquire(&takes));
        let reply = self.health.watch(&self.limiter, [&request.entry.calls], call).await?;
        reply.verdicts.into_iter().flatten().next().ok_or(GateError::Malformed("acquire"))
    }

    /// Asks several policies: all grant, or none. A caller waits in one line at most, so a policy that queues refuses here. Shadow policies
    /// change nothing for the others.
    async fn acquire_several(&self, requests: &[PolicyRequest<'_>]) -> PermitAnswer {
        let (shadows, deciding): (Vec<_>, Vec<_>) =
            requests.iter().partition(|request| request.entry.policy.terms.excess == Excess::Shadow);
        let mut admitted = Vec::with_capacity(deciding.len());
        for request in &deciding {
            match request.entry.state.admit() {
                Ok(one) => admitted.push(one),
                Err(wait_ms) => return request.refuse(Reason::Breaker, 0, wait_ms),
            }
        }
        let is_probe = admitted.iter().any(|one| one.admission() == Admission::Probe);
        let admission = if is_probe { Admission::Probe } else { Admission::Call };
        let lease = requests.iter().find_map(|request| request.lease(admission));
        let limits: Vec<_> =
            deciding.into_iter().filter(|request| !request.entry.policy.algorithm.is_unlimited()).collect();
        let answer = match limits.iter().find_map(|request| request.refused_for_now()) {
            Some(refused) => refused,
            None => self.take_all(&requests[0], &limits, lease).await,
        };
        if answer.code > 0 {
            if !shadows.is_empty() {
                let unread = UnreadGrant::of(&self.limiter, limits.iter().map(|request| request.take(lease)));
                self.count_shadows(&shadows, lease).await;
                unread.keep();
            }
            for one in admitted {
                one.keep();
            }
        }
        answer
    }

    /// Takes permits of all these policies or of none. `first` answers where there are none.
    async fn take_all(
        &self,
        first: &PolicyRequest<'_>,
        limits: &[&PolicyRequest<'_>],
        lease: Option<Lease>,
    ) -> PermitAnswer {
        let takes: Vec<Take<'_>> = limits.iter().map(|request| request.take(lease)).collect();
        let verdicts = if takes.is_empty() {
            Ok(Vec::new())
        } else {
            let call = UnreadGrant::acquire(&self.limiter, &takes, self.limiter.acquire(&takes));
            self.health
                .watch(&self.limiter, limits.iter().map(|request| &request.entry.calls), call)
                .await
                .map(|reply| reply.verdicts)
        };
        let verdicts = match verdicts {
            Ok(verdicts) => verdicts,
            Err(error) => return self.answer_when_down(limits, lease, &error),
        };
        let decided = limits.iter().zip(&verdicts);
        let decided = || decided.clone().filter_map(|(request, verdict)| Some((*request, verdict.as_ref()?)));
        if let Some((request, verdict)) = decided().find(|(_, verdict)| !verdict.granted) {
            return request.refuse_by(verdict, Reason::Limit);
        }
        limits.iter().for_each(|request| request.count_grant());
        // The answer shows the policy with the fewest permits left.
        let scarcest = decided().min_by_key(|(_, verdict)| verdict.remaining);
        let granted = scarcest.map(|(request, verdict)| request.granted(Some(verdict)));
        PermitAnswer { lease, ..granted.unwrap_or_else(|| first.granted(None)) }
    }

    /// Shadow policies count the calls that the other policies granted.
    async fn count_shadows(&self, shadows: &[&PolicyRequest<'_>], lease: Option<Lease>) {
        for request in shadows.iter().filter(|request| !request.entry.policy.algorithm.is_unlimited()) {
            if request.refused_for_now().is_some() {
                continue;
            }
            match self.call_redis(request, lease).await {
                Ok(verdict) if !verdict.granted => request.count_refusal(),
                Ok(_) => request.count_grant(),
                Err(GateError::TooManyKeys { retry_ms, .. }) => drop(request.refuse_for_keys(retry_ms)),
                Err(error) => {
                    request.count_failure(&error);
                    request.count_grant();
                }
            }
        }
    }

    /// The answer while the limiter's Redis does not answer, or answers with an error: all policies grant, or none.
    fn answer_when_down(
        &self,
        requests: &[&PolicyRequest<'_>],
        lease: Option<Lease>,
        error: &GateError,
    ) -> PermitAnswer {
        if let GateError::TooManyKeys { retry_ms, take } = error
            && let Some(request) = requests.get(*take)
        {
            return request.refuse_for_keys(*retry_ms);
        }
        let mut taken = Vec::with_capacity(requests.len());
        for request in requests {
            match self.take_without_redis(request, lease, error) {
                Ok(verdict) => taken.push((request, verdict)),
                Err(refused) => {
                    for (request, verdict) in taken {
                        let Some(Verdict { receipt, .. }) = verdict else { continue };
                        let (local, take) = (&request.entry.state.local_limiter, request.take(lease));
                        local.give_back(&take, &request.key, receipt, |whole| self.policies.share_of(whole));
                    }
                    return *refused;
                }
            }
        }
        requests.iter().for_each(|request| request.count_grant());
        let scarcest = taken.iter().min_by_key(|(_, verdict)| verdict.map_or(i64::MAX, |verdict| verdict.remaining));
        let granted = scarcest.map(|(request, verdict)| request.granted(verdict.as_ref())).unwrap_or_default();
        PermitAnswer { lease, reason: Some(Reason::LimiterDown), ..granted }
    }

    /// Takes permits without a count, from this instance's share, or not at all, as the policy says.
    fn take_without_redis(
        &self,
        request: &PolicyRequest<'_>,
        lease: Option<Lease>,
        error: &GateError,
    ) -> Result<Option<Verdict>, Box<PermitAnswer>> {
        let Entry { policy, state, .. } = &request.entry;
        request.count_failure(error);
        match policy.terms.when_down {
            WhenDown::Open => Ok(None),
            WhenDown::Closed => Err(Box::new(request.refuse(Reason::LimiterDown, 0, LimiterHealth::RETRY_MS))),
            WhenDown::Local => {
                let share_of = |whole| self.policies.share_of(whole);
                let verdict = state.local_limiter.take(&request.take(lease), &request.key, share_of);
                let refused = || Box::new(request.refuse_by(&verdict, Reason::LimiterDown));
                verdict.granted.then_some(Some(verdict)).ok_or_else(refused)
            }
        }
    }
}
