//! Answers requests for permits: first from what the instance knows, then by one call to Redis, then as the policy says
//! about the excess or about a Redis that does not answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uuid::Uuid;

use super::FlowError;
use super::permit_request::{Lease, PermitAnswer, PermitRequest, Reason};
use super::policy_cache::{Entry, PolicyCache};
use super::policy_request::{PolicyRequest, slot};
use crate::domain::breaker::{Breaker, BreakerTerms, CallOutcome};
use crate::domain::ids::Invalid;
use crate::domain::limiter::Verdict;
use crate::domain::policy::{Excess, Name, WhenDown};
use crate::gate::GateError;
use crate::gate::limiter::{Limiter, Take, Turn, Waiter};

/// Grants and refuses permits.
pub struct Permits {
    policies: Arc<PolicyCache>,
    limiter: Limiter,
    /// The most waiters of one line.
    queue_max: u32,
    /// Stops the calls to the limiter's Redis for a moment when it does not answer.
    redis_breaker: Mutex<Breaker>,
    began: Instant,
}

/// After a few failures in a row, callers no longer wait for Redis; soon one caller tries it again.
const REDIS_BREAKER: BreakerTerms = BreakerTerms {
    error_percent: 50,
    slow_percent: 100,
    slow_ms: 3_600_000, // slow calls end by the time-out, and count as failed
    min_calls: 5,
    window_ms: 1_000,
    open_ms: 500,
    probes: 1,
};

/// The most policies of one call.
const POLICIES_MAX: usize = 9;

impl Permits {
    pub fn new(policies: Arc<PolicyCache>, limiter: Limiter, queue_max: u32) -> Self {
        // Callers that come one after another, each waiting for the time-out, must count in one window.
        let window_ms = REDIS_BREAKER.window_ms.max(10 * limiter.timeout_ms());
        let redis_breaker = Mutex::new(Breaker::new(BreakerTerms { window_ms, ..REDIS_BREAKER }));
        Self { policies, limiter, queue_max, redis_breaker, began: Instant::now() }
    }

    pub fn policies(&self) -> &PolicyCache {
        &self.policies
    }

    /// Asks all of these policies for permits: all grant, or nothing is used up. Policies that the application does not
    /// have are left out; code 0 says that it has none of them.
    ///
    /// # Errors
    ///
    /// Too many policies, more permits than a policy can ever grant, or a key that is too long.
    pub async fn acquire(&self, app: &Name, requests: &[PermitRequest]) -> Result<PermitAnswer, FlowError> {
        if requests.len() > POLICIES_MAX {
            return Err(Invalid::new("also", "must name at most 8 more policies").into());
        }
        let configured =
            requests.iter().filter_map(|request| Some((self.policies.find(app, &request.policy)?, request)));
        let requests: Vec<PolicyRequest<'_>> = configured
            .map(|(entry, request)| PolicyRequest::new(entry, &request.key, request.permits))
            .collect::<Result<_, _>>()?;
        Ok(match &requests[..] {
            [] => PermitAnswer::default(),
            [request] => self.acquire_one(request).await,
            several => self.acquire_several(several).await,
        })
    }

    /// Gives a lease back, and records how the call ended that was made under it. Returns `false` when there was nothing
    /// to give back or to record.
    ///
    /// # Errors
    ///
    /// The key is too long, or Redis did not answer.
    pub async fn release(
        &self,
        app: &Name,
        request: &PermitRequest,
        lease: Lease,
        failed: Option<bool>,
        took_ms: Option<u64>,
    ) -> Result<bool, FlowError> {
        let Some(Entry { policy, state }) = self.policies.find(app, &request.policy) else { return Ok(false) };
        let reported = failed.is_some() || took_ms.is_some();
        if reported {
            let took_ms = took_ms.unwrap_or_else(|| lease.age_ms());
            let outcome = CallOutcome { failed: failed.unwrap_or(false), took_ms };
            let target_ms = policy.terms.range.and_then(|range| range.target_ms);
            if state.report(outcome, target_ms) {
                tracing::warn!(policy = %policy.terms.name, "breaker opened");
            }
        }
        if !policy.algorithm.kind().grants_leases() {
            return Ok(reported);
        }
        let slot = slot(&policy, &request.key)?;
        let released = self.record_health(self.limiter.release(&slot, &policy.algorithm, lease.id).await)?;
        state.refusals.clear();
        Ok(released)
    }

    /// Records in the breaker whether Redis answered.
    fn record_health<T>(&self, reply: Result<T, GateError>) -> Result<T, GateError> {
        let outcome = CallOutcome { failed: reply.is_err(), took_ms: 0 };
        if self.redis_breaker.lock().report(self.now_ms(), outcome) {
            tracing::warn!("the limiter's Redis does not answer: the policies' when_down applies");
        }
        reply
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn may_call_redis(&self) -> bool {
        self.redis_breaker.lock().admit(self.now_ms()).is_ok()
    }

    async fn acquire_one(&self, request: &PolicyRequest<'_>) -> PermitAnswer {
        let Entry { policy, state } = &request.entry;
        if let Err(wait_ms) = state.admit() {
            return request.refuse(Reason::Breaker, 0, wait_ms);
        }
        if policy.is_unlimited() {
            return request.grant(None, request.lease());
        }
        let queues = matches!(policy.terms.excess, Excess::Queue { .. });
        if !queues && let Some(left) = state.refusals.wait_of(request.key, request.permits) {
            state.withdraw();
            return request.refuse(Reason::Limit, 0, u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1));
        }
        let lease = request.lease();
        let decided = match policy.terms.excess {
            Excess::Queue { patience } => self.wait_in_line(request, lease, patience).await,
            Excess::Reject | Excess::Degrade { .. } | Excess::Shadow => {
                self.call_redis(request, lease).await.map(|verdict| (verdict, Reason::Limit))
            }
        };
        let answer = match decided {
            Ok((verdict, _)) if verdict.granted => request.grant(Some(&verdict), lease),
            Ok((verdict, reason)) => {
                // A lease can be given back at any moment, so that its refusal must not be remembered.
                if !queues && !policy.algorithm.kind().grants_leases() {
                    let wait = Duration::from_millis(verdict.retry_after_ms.unsigned_abs());
                    state.refusals.remember(request.key, request.permits, wait);
                }
                request.refuse_by(&verdict, reason)
            }
            Err(_) => self.answer_when_down(request),
        };
        if answer.code < 0 {
            state.withdraw();
        }
        answer
    }

    async fn call_redis(&self, request: &PolicyRequest<'_>, lease: Option<Lease>) -> Result<Verdict, GateError> {
        if !self.may_call_redis() {
            return Err(GateError::Unknown);
        }
        let reply = self.record_health(self.limiter.acquire(&[request.take(lease)]).await)?;
        reply.verdicts.into_iter().flatten().next().ok_or(GateError::Malformed("acquire"))
    }

    /// Waits in line until the turn of the caller, or until its patience is over.
    async fn wait_in_line(
        &self,
        request: &PolicyRequest<'_>,
        lease: Option<Lease>,
        patience: Duration,
    ) -> Result<(Verdict, Reason), GateError> {
        let began = Instant::now();
        let id = Uuid::new_v4();
        loop {
            if !self.may_call_redis() {
                return Err(GateError::Unknown);
            }
            let left = patience.saturating_sub(began.elapsed());
            let waiter = Waiter { id, patience: left, line_max: self.queue_max };
            let turn = self.record_health(self.limiter.wait_in_line(&request.take(lease), &waiter).await)?;
            match turn {
                Turn::LineFull(verdict) => return Ok((verdict, Reason::QueueFull)),
                Turn::Granted(verdict) | Turn::TooLate(verdict) => {
                    let waited_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                    request.entry.state.counters.waited_ms.fetch_add(waited_ms, Ordering::Relaxed);
                    return Ok((verdict, Reason::Limit));
                }
                Turn::Wait { ask_again, .. } => tokio::time::sleep(ask_again.min(left)).await,
            }
        }
    }

    /// Asks several policies: all grant, or none. No caller waits in several lines at once, so that the excess of a
    /// policy that queues is refused.
    async fn acquire_several(&self, requests: &[PolicyRequest<'_>]) -> PermitAnswer {
        for (index, request) in requests.iter().enumerate() {
            if let Err(wait_ms) = request.entry.state.admit() {
                requests[..index].iter().for_each(|earlier| earlier.entry.state.withdraw());
                return request.refuse(Reason::Breaker, 0, wait_ms);
            }
        }
        let lease = requests.iter().find_map(PolicyRequest::lease);
        let (shadows, limits): (Vec<_>, Vec<_>) = requests
            .iter()
            .filter(|request| !request.entry.policy.is_unlimited())
            .partition(|request| request.entry.policy.terms.excess == Excess::Shadow);
        let takes: Vec<Take<'_>> = limits.iter().map(|request| request.take(lease)).collect();
        let verdicts = if takes.is_empty() {
            Ok(Vec::new())
        } else if self.may_call_redis() {
            self.record_health(self.limiter.acquire(&takes).await).map(|reply| reply.verdicts)
        } else {
            Err(GateError::Unknown)
        };
        let answer = match verdicts {
            Ok(verdicts) => {
                let decided = limits.iter().zip(&verdicts);
                let decided = || decided.clone().filter_map(|(request, verdict)| Some((*request, verdict.as_ref()?)));
                match decided().find(|(_, verdict)| !verdict.granted) {
                    Some((request, verdict)) => request.refuse_by(verdict, Reason::Limit),
                    None => {
                        limits.iter().for_each(|request| request.count_grant());
                        // The answer shows the policy with the fewest permits left.
                        let scarcest = decided().min_by_key(|(_, verdict)| verdict.remaining);
                        let granted = scarcest.map(|(request, verdict)| request.granted(Some(verdict)));
                        PermitAnswer { lease, ..granted.unwrap_or_else(|| requests[0].granted(None)) }
                    }
                }
            }
            Err(_) => self.answer_several_when_down(&limits, lease),
        };
        if answer.code > 0 {
            self.count_shadows(&shadows).await;
        } else {
            requests.iter().for_each(|request| request.entry.state.withdraw());
        }
        answer
    }

    /// Policies that are only tried out count the calls that the other policies granted.
    async fn count_shadows(&self, shadows: &[&PolicyRequest<'_>]) {
        for request in shadows {
            match self.call_redis(request, None).await {
                Ok(verdict) if !verdict.granted => request.count_refusal(),
                Ok(_) | Err(_) => request.count_grant(),
            }
        }
    }

    fn answer_several_when_down(&self, requests: &[&PolicyRequest<'_>], lease: Option<Lease>) -> PermitAnswer {
        let mut granted = PermitAnswer::default();
        for request in requests {
            granted = self.answer_when_down(request);
            if granted.code < 0 {
                return granted;
            }
        }
        PermitAnswer { lease, ..granted }
    }

    /// The answer while the limiter's Redis cannot be asked.
    fn answer_when_down(&self, request: &PolicyRequest<'_>) -> PermitAnswer {
        let Entry { policy, state } = &request.entry;
        state.counters.failed.fetch_add(1, Ordering::Relaxed);
        let down = |answer: PermitAnswer| PermitAnswer { reason: Some(Reason::LimiterDown), ..answer };
        match policy.terms.when_down {
            WhenDown::Open => down(request.grant(None, request.lease())),
            WhenDown::Closed => request.refuse(Reason::LimiterDown, 0, REDIS_BREAKER.open_ms),
            WhenDown::Local => {
                let share_of = |whole| self.policies.share_of(whole);
                let verdict = state.local_limiter.take(&policy.algorithm, request.key, request.permits, share_of);
                if verdict.granted {
                    down(request.grant(Some(&verdict), request.lease()))
                } else {
                    request.refuse_by(&verdict, Reason::LimiterDown)
                }
            }
        }
    }
}
