//! A caller's wait in line: it follows changes of the policy, and gives its place up when the caller leaves.

use std::time::Instant;

use uuid::Uuid;

use super::limiter_health::LimiterHealth;
use super::permit_request::{Lease, Reason};
use super::policy_cache::{Entry, PolicyCache};
use super::policy_request::PolicyRequest;
use super::waits::Waits;
use crate::domain::limiter::{Algorithm, SlotKey, Verdict};
use crate::domain::policy::{Excess, Name};
use crate::gate::GateError;
use crate::gate::limiter::Limiter;
use crate::gate::limiter::line::{Turn, Waiter};

pub(super) enum Waited {
    Decided(Verdict, Reason),
    /// The changed policy; `None` when it was deleted.
    PolicyChanged(Option<Entry>),
}

pub(super) struct WaitingLine<'a> {
    pub limiter: &'a Limiter,
    pub health: &'a LimiterHealth,
    pub policies: &'a PolicyCache,
    pub waits: &'a Waits,
    pub line_max: u32,
}

impl WaitingLine<'_> {
    /// Waits for the caller's turn, until its patience, which began at `since`, is over. A place in this line is kept.
    pub async fn wait(
        &self,
        app: &Name,
        request: &PolicyRequest<'_>,
        lease: Option<Lease>,
        since: Instant,
        place: &mut Option<Place>,
    ) -> Result<Waited, GateError> {
        let Excess::Queue { patience } = request.entry.policy.terms.excess else {
            return Ok(Waited::PolicyChanged(Some(request.entry.clone())));
        };
        let take = request.take(lease);
        let kept = place.take().filter(|place| place.slot == request.slot);
        let place = place.insert(kept.unwrap_or_else(|| Place {
            limiter: self.limiter.clone(),
            slot: request.slot.clone(),
            algorithm: *take.algorithm,
            lease: None,
            id: Uuid::new_v4(),
            is_held: false,
        }));
        (place.algorithm, place.lease) = (*take.algorithm, take.lease);
        let wait = self.waits.begin(app, &request.slot);
        loop {
            let left = patience.saturating_sub(since.elapsed());
            let waiter = Waiter {
                id: place.id,
                is_new: !place.is_held,
                patience: left,
                line_max: self.line_max,
                pauses: wait.pauses(),
            };
            place.is_held = true;
            let turn = self.health.watch([&request.entry.calls], self.limiter.wait_in_line(&take, &waiter)).await?;
            let ask_again = match turn {
                Turn::Wait { ask_again, .. } => ask_again,
                Turn::LineFull(verdict) => {
                    place.is_held = false;
                    return Ok(Waited::Decided(verdict, Reason::QueueFull));
                }
                Turn::Granted(verdict) | Turn::TooLate(verdict) => {
                    place.is_held = false;
                    let waited_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
                    request.entry.state.counts.lock().waited_ms += waited_ms;
                    return Ok(Waited::Decided(verdict, Reason::Limit));
                }
            };
            tokio::time::sleep(ask_again.min(left)).await;
            let now = self.policies.find(app, &request.entry.policy.terms.name);
            if now.as_ref().map(|entry| (entry.policy.id, entry.policy.version)) != Some(request.version()) {
                return Ok(Waited::PolicyChanged(now));
            }
        }
    }
}

/// A place in line. It is given up when this is dropped: the caller has gone, or the changed policy has another line or none.
pub(super) struct Place {
    limiter: Limiter,
    slot: SlotKey,
    algorithm: Algorithm,
    lease: Option<Uuid>,
    id: Uuid,
    is_held: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_held {
            return;
        }
        let (limiter, slot, algorithm) = (self.limiter.clone(), self.slot.clone(), self.algorithm);
        let (id, lease) = (self.id, self.lease);
        tokio::spawn(async move {
            let left = limiter.leave_line(&slot, id).await;
            // The last answer may have been a grant that nobody has read.
            let released = match lease {
                Some(lease) => limiter.release(&slot, &algorithm, lease).await.map(drop),
                None => Ok(()),
            };
            if let Err(error) = left.map(drop).and(released) {
                tracing::debug!(%error, "a place in line was not given up; it is lost after a moment of silence");
            }
        });
    }
}
