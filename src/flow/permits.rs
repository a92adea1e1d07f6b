//! The way of a request for permits: what the instance knows already, then one call to Redis, then what the policy says
//! about the excess, or about a Redis that does not answer.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::FlowError;
use super::permit_request::{Lease, PermitAnswer, PermitRequest, Quota, Reason};
use super::policy_cache::{Entry, PolicyCache};
use crate::domain::breaker::{Breaker, BreakerTerms, CallOutcome};
use crate::domain::ids::Invalid;
use crate::domain::limiter::{AlgorithmKind, Parameters, SlotKey, Verdict};
use crate::domain::policy::{Excess, Name, WhenDown};
use crate::gate::GateError;
use crate::gate::limiter::{Limiter, Take, Turn, Waiter};

/// Grants and refuses.
pub struct Permits {
    policies: Arc<PolicyCache>,
    limiter: Limiter,
    queue_max: u32,
    /// The limiter's Redis itself: one that does not answer is left alone for a moment.
    redis: Mutex<Breaker>,
    began: Instant,
}

/// A limiter that fails a few times in a row costs nobody more than that; it is tried again soon, by one caller.
const REDIS: BreakerTerms = BreakerTerms {
    error_percent: 50,
    slow_percent: 100,
    slow_ms: 3_600_000, // the time-out decides what is slow
    min_calls: 5,
    window_ms: 1_000,
    open_ms: 500,
    probes: 1,
};

impl Permits {
    pub fn new(policies: Arc<PolicyCache>, limiter: Limiter, queue_max: u32) -> Self {
        Self { policies, limiter, queue_max, redis: Mutex::new(Breaker::new(REDIS)), began: Instant::now() }
    }

    pub fn policies(&self) -> &PolicyCache {
        &self.policies
    }

    /// Asks all of these policies: all grant, or nothing is used up.
    pub async fn acquire(&self, app: &Name, asks: &[PermitRequest]) -> Result<PermitAnswer, FlowError> {
        if asks.len() > ASKS_MAX {
            return Err(Invalid::new("also", "must name at most 8 more policies").into());
        }
        let mut wanted = Vec::with_capacity(asks.len());
        for ask in asks {
            let Some(entry) = self.policies.find(app, &ask.policy) else { continue };
            let permits = u32::try_from(ask.permits).ok();
            let permits = permits.filter(|_| ask.permits <= entry.policy.algorithm.max_permits());
            let permits = permits.ok_or(Invalid::new("permits", "must be at most the policy's limit or capacity"))?;
            let policy = &entry.policy;
            let slot = SlotKey::new(policy.home.as_str(), &policy.id.to_string(), &ask.key, policy.terms.spread);
            let slot = slot.map_err(|_| Invalid::new("key", "must be at most 128 bytes"))?;
            wanted.push(Wanted { entry, key: &ask.key, slot, permits });
        }
        Ok(match &wanted[..] {
            [] => PermitAnswer::default(),
            [one] => self.one(one).await,
            several => self.all(several).await,
        })
    }

    /// Gives a lease back, and hears how the call ended that was made under it.
    pub async fn release(
        &self,
        app: &Name,
        ask: &PermitRequest,
        lease: Lease,
        failed: Option<bool>,
        took_ms: Option<u64>,
    ) -> Result<bool, FlowError> {
        let Some(entry) = self.policies.find(app, &ask.policy) else { return Ok(false) };
        if failed.is_some() || took_ms.is_some() {
            let outcome =
                CallOutcome { failed: failed.unwrap_or(false), took_ms: took_ms.unwrap_or_else(|| lease.age_ms()) };
            let target_ms = entry.policy.terms.range.and_then(|range| range.target_ms);
            if entry.live.report(outcome, target_ms) {
                tracing::warn!(policy = %entry.policy.terms.name, "breaker opened");
            }
        }
        if entry.policy.algorithm.kind() != AlgorithmKind::Concurrency {
            return Ok(failed.is_some() || took_ms.is_some());
        }
        let policy = &entry.policy;
        let slot = SlotKey::new(policy.home.as_str(), &policy.id.to_string(), &ask.key, policy.terms.spread);
        let slot = slot.map_err(|_| Invalid::new("key", "must be at most 128 bytes"))?;
        let released = self.heard(self.limiter.release(&slot, &policy.algorithm, lease.id).await)?;
        entry.live.refused.forget();
        Ok(released)
    }

    /// What Redis says, and what it says about Redis.
    fn heard<T>(&self, answer: Result<T, GateError>) -> Result<T, GateError> {
        let outcome = CallOutcome { failed: answer.is_err(), took_ms: 0 };
        let mut breaker = self.redis.lock().unwrap_or_else(PoisonError::into_inner);
        if breaker.report(self.now_ms(), outcome) {
            tracing::warn!("the limiter's Redis does not answer: policies say what then");
        }
        answer
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn redis_may_be_asked(&self) -> bool {
        let mut breaker = self.redis.lock().unwrap_or_else(PoisonError::into_inner);
        breaker.admit(self.now_ms()).is_ok()
    }

    async fn one(&self, wanted: &Wanted<'_>) -> PermitAnswer {
        let Entry { policy, live } = &wanted.entry;
        let algorithm = &policy.algorithm;
        if let Err(wait_ms) = live.admit() {
            return wanted.refused(Reason::Breaker, 0, wait_ms);
        }
        if policy.is_unlimited() {
            return wanted.granted(None, wanted.lease());
        }
        let queues = matches!(policy.terms.excess, Excess::Queue { .. });
        if !queues && let Some(left) = live.refused.recall(wanted.key, wanted.permits) {
            live.withdraw();
            return wanted.refused(Reason::Limit, 0, u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1));
        }
        let lease = wanted.lease();
        let answered = match policy.terms.excess {
            Excess::Queue { patience } => self.wait(wanted, lease, patience).await,
            _ => self.ask(wanted, lease).await.map(|verdict| (verdict, Reason::Limit)),
        };
        let answer = match answered {
            Ok((verdict, _)) if verdict.granted => wanted.granted(Some(&verdict), lease),
            Ok((verdict, why)) => {
                // Places of a concurrency policy come free at any moment, those of the others by time alone.
                if !queues && algorithm.kind() != AlgorithmKind::Concurrency {
                    live.refused.note(
                        wanted.key,
                        wanted.permits,
                        Duration::from_millis(verdict.retry_after_ms.unsigned_abs()),
                    );
                }
                wanted.refused_by(&verdict, why)
            }
            Err(_) => self.when_down(wanted),
        };
        if answer.code < 0 {
            live.withdraw();
        }
        answer
    }

    async fn ask(&self, wanted: &Wanted<'_>, lease: Option<Lease>) -> Result<Verdict, GateError> {
        if !self.redis_may_be_asked() {
            return Err(GateError::Unknown);
        }
        let answer = self.heard(self.limiter.acquire(&[wanted.take(lease)]).await)?;
        answer.verdicts.into_iter().flatten().next().ok_or(GateError::Malformed("acquire"))
    }

    /// Stands in line until it is one's turn, or one's patience is over.
    async fn wait(
        &self,
        wanted: &Wanted<'_>,
        lease: Option<Lease>,
        patience: Duration,
    ) -> Result<(Verdict, Reason), GateError> {
        let began = Instant::now();
        let id = Uuid::new_v4();
        loop {
            if !self.redis_may_be_asked() {
                return Err(GateError::Unknown);
            }
            let left = patience.saturating_sub(began.elapsed());
            let waiter = Waiter { id, patience: left, line_max: self.queue_max };
            let turn = self.heard(self.limiter.wait_in_line(&wanted.take(lease), &waiter).await)?;
            let waited = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            match turn {
                Turn::LineFull(verdict) => return Ok((verdict, Reason::QueueFull)),
                Turn::Granted(verdict) | Turn::TooLate(verdict) => {
                    wanted.entry.live.counts.waited_ms.fetch_add(waited, Ordering::Relaxed);
                    return Ok((verdict, Reason::Limit));
                }
                Turn::Wait { ask_again, .. } => tokio::time::sleep(ask_again.min(left)).await,
            }
        }
    }

    /// All of several policies, or none. Nobody waits in several lines at once: the excess is refused.
    async fn all(&self, wanted: &[Wanted<'_>]) -> PermitAnswer {
        for (i, one) in wanted.iter().enumerate() {
            if let Err(wait_ms) = one.entry.live.admit() {
                wanted[..i].iter().for_each(|before| before.entry.live.withdraw());
                return one.refused(Reason::Breaker, 0, wait_ms);
            }
        }
        let lease = wanted.iter().find_map(Wanted::lease);
        let (shadows, limits): (Vec<_>, Vec<_>) = wanted
            .iter()
            .filter(|one| !one.entry.policy.is_unlimited())
            .partition(|one| one.entry.policy.terms.excess == Excess::Shadow);
        let takes: Vec<Take<'_>> = limits.iter().map(|one| one.take(lease)).collect();
        let answered = match (takes.is_empty(), self.redis_may_be_asked()) {
            (true, _) => Ok(Vec::new()),
            (false, true) => self.heard(self.limiter.acquire(&takes).await).map(|answer| answer.verdicts),
            (false, false) => Err(GateError::Unknown),
        };
        let answer = match answered {
            Ok(verdicts) => {
                let asked =
                    || limits.iter().zip(&verdicts).filter_map(|(one, verdict)| Some((*one, verdict.as_ref()?)));
                match asked().find(|(_, verdict)| !verdict.granted) {
                    Some((one, verdict)) => one.refused_by(verdict, Reason::Limit),
                    None => {
                        limits.iter().for_each(|one| one.count_grant());
                        let least = asked().min_by_key(|(_, verdict)| verdict.remaining);
                        let (one, verdict) = least.map_or((&wanted[0], None), |(one, verdict)| (one, Some(verdict)));
                        PermitAnswer { lease, ..one.grant(verdict) }
                    }
                }
            }
            Err(_) => self.all_when_down(&limits, lease),
        };
        if answer.code > 0 {
            // A policy that is only tried out counts what has really been let through.
            for one in shadows {
                match self.ask(one, None).await {
                    Ok(verdict) if !verdict.granted => one.count_refusal(),
                    _ => one.count_grant(),
                }
            }
        } else {
            wanted.iter().for_each(|one| one.entry.live.withdraw());
        }
        answer
    }

    fn all_when_down(&self, wanted: &[&Wanted<'_>], lease: Option<Lease>) -> PermitAnswer {
        let mut granted = PermitAnswer::default();
        for one in wanted {
            granted = self.when_down(one);
            if granted.code < 0 {
                return granted;
            }
        }
        PermitAnswer { lease, ..granted }
    }

    /// The limiter cannot be asked.
    fn when_down(&self, wanted: &Wanted<'_>) -> PermitAnswer {
        let Entry { policy, live } = &wanted.entry;
        live.counts.failed.fetch_add(1, Ordering::Relaxed);
        let down = |answer: PermitAnswer| PermitAnswer { why: Some(Reason::LimiterDown), ..answer };
        match policy.terms.when_down {
            WhenDown::Open => down(wanted.granted(None, wanted.lease())),
            WhenDown::Closed => wanted.refused(Reason::LimiterDown, 0, REDIS.open_ms),
            WhenDown::Local => {
                let verdict = live
                    .local
                    .take(&policy.algorithm, wanted.key, wanted.permits, |whole| self.policies.share_of(whole));
                if verdict.granted {
                    down(wanted.granted(Some(&verdict), wanted.lease()))
                } else {
                    wanted.refused_by(&verdict, Reason::LimiterDown)
                }
            }
        }
    }
}

const ASKS_MAX: usize = 9;

/// One ask, with its policy.
struct Wanted<'a> {
    entry: Entry,
    key: &'a str,
    slot: SlotKey,
    permits: u32,
}

impl Wanted<'_> {
    fn take(&self, lease: Option<Lease>) -> Take<'_> {
        let policy = &self.entry.policy;
        Take {
            slot: &self.slot,
            algorithm: &policy.algorithm,
            permits: self.permits,
            lease: lease.map(|lease| lease.id),
        }
    }

    /// What will be given back, where there is something to give back or to report.
    fn lease(&self) -> Option<Lease> {
        let terms = &self.entry.policy.terms;
        let returns = terms.algorithm.kind() == AlgorithmKind::Concurrency;
        (returns || terms.breaker.is_some() || terms.range.is_some()).then(Lease::now)
    }

    fn count_grant(&self) {
        self.entry.live.counts.granted.fetch_add(1, Ordering::Relaxed);
    }

    fn count_refusal(&self) {
        self.entry.live.counts.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn granted(&self, verdict: Option<&Verdict>, lease: Option<Lease>) -> PermitAnswer {
        self.count_grant();
        PermitAnswer { lease, ..self.grant(verdict) }
    }

    fn grant(&self, verdict: Option<&Verdict>) -> PermitAnswer {
        let quota = verdict.and_then(|verdict| self.quota(verdict.reset_ms.unsigned_abs()));
        PermitAnswer {
            code: 1,
            remaining: verdict.map_or(-1, |verdict| verdict.remaining),
            delay_ms: verdict.map(|verdict| verdict.delay_ms.unsigned_abs()).filter(|ms| *ms > 0),
            quota,
            ..PermitAnswer::default()
        }
    }

    fn refused_by(&self, verdict: &Verdict, why: Reason) -> PermitAnswer {
        let answer = self.refused(why, verdict.remaining, verdict.retry_after_ms.unsigned_abs());
        PermitAnswer { quota: self.quota(verdict.reset_ms.unsigned_abs()), ..answer }
    }

    /// The excess, as the policy has it.
    fn refused(&self, why: Reason, remaining: i64, retry_after_ms: u64) -> PermitAnswer {
        self.count_refusal();
        let terms = &self.entry.policy.terms;
        let refused = PermitAnswer {
            code: -1,
            remaining,
            retry_after_ms: retry_after_ms.max(1),
            policy: Some(terms.name.clone()),
            why: Some(why),
            quota: self.quota(retry_after_ms),
            ..PermitAnswer::default()
        };
        match &terms.excess {
            Excess::Reject | Excess::Queue { .. } => refused,
            Excess::Degrade { answer } => PermitAnswer { body: Some(answer.clone()), ..refused },
            Excess::Shadow => PermitAnswer { code: 1, retry_after_ms: 0, why: Some(Reason::Shadow), ..refused },
        }
    }

    fn quota(&self, reset_ms: u64) -> Option<Quota> {
        let algorithm = &self.entry.policy.algorithm;
        let Parameters { limit, capacity, rate, window_ms, .. } = algorithm.parameters();
        // A bucket's window is the time in which it fills.
        let fills_in = |(capacity, rate): (i64, i64)| window_ms.map(|ms| ms.saturating_mul(capacity) / rate);
        let window_ms = capacity.zip(rate).map_or(window_ms, fills_in);
        let permits = limit.or(capacity).filter(|permits| *permits > 0)?;
        let window_s = window_ms.map(|ms| ms.unsigned_abs().div_ceil(1000));
        Some(Quota { policy: self.entry.policy.terms.name.clone(), permits, window_s, reset_ms })
    }
}
