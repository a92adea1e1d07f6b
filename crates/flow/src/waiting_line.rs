//! A caller's wait in line: it follows changes of the policy, and gives its place up when the caller leaves.

use std::sync::atomic::Ordering;
use std::time::Instant;

use uuid::Uuid;

use super::permit_request::{Lease, Reason};
use super::permits::Permits;
use super::policy_cache::Entry;
use super::policy_request::{PolicyRequest, WaitOutcome};
use super::unread_grant::UnreadGrant;
use seckill_domain::limiter::SlotKey;
use seckill_domain::policy::{Excess, Name};
use seckill_redis::GateError;
use seckill_redis::limiter::Limiter;
use seckill_redis::limiter::line::{Turn, Waiter};

impl Permits {
    /// Waits for the caller's turn, until its patience, which began at `since`, is over. A place in this line is kept.
    pub(super) async fn wait_in_line(
        &self,
        app: &Name,
        request: &PolicyRequest<'_>,
        lease: Option<Lease>,
        since: Instant,
        place: &mut Option<Place>,
    ) -> Result<WaitOutcome, GateError> {
        let Excess::Queue { patience } = request.entry.policy.terms.excess else {
            return Ok(WaitOutcome::PolicyChanged(Some(request.entry.clone())));
        };
        let take = request.take(lease);
        let kept = place.take().filter(|place| place.slot == request.slot);
        let place = place.insert(kept.unwrap_or_else(|| {
            let (limiter, slot) = (self.limiter.clone(), request.slot.clone());
            Place { limiter, slot, id: Uuid::new_v4(), is_held: false }
        }));
        let wait = self.waits.begin(app, &request.slot);
        loop {
            let left = patience.saturating_sub(since.elapsed());
            let (id, is_new, line_max, pauses) = (place.id, !place.is_held, self.queue_max, wait.pauses());
            let waiter = Waiter { id, is_new, patience: left, line_max, pauses };
            place.is_held = true;
            let call = self.limiter.wait_in_line(&take, &waiter);
            let call = UnreadGrant::acquire(&self.limiter, std::slice::from_ref(&take), call);
            let turn = self.health.watch(&self.limiter, [&request.entry.calls], call).await?;
            let ask_again = match turn {
                Turn::Wait { ask_again, .. } => ask_again,
                Turn::LineFull(verdict) => {
                    place.is_held = false;
                    return Ok(WaitOutcome::Decided(verdict, Reason::QueueFull));
                }
                Turn::Granted(verdict) | Turn::TooLate(verdict) => {
                    place.is_held = false;
                    let waited_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
                    request.entry.state.counters.waited_ms.fetch_add(waited_ms, Ordering::Relaxed);
                    return Ok(WaitOutcome::Decided(verdict, Reason::Limit));
                }
            };
            tokio::time::sleep(ask_again.min(left)).await;
            let now = self.policies.find(app, &request.entry.policy.terms.name);
            let version = |entry: &Entry| (entry.policy.id, entry.policy.version);
            if now.as_ref().map(version) != Some(version(&request.entry)) {
                return Ok(WaitOutcome::PolicyChanged(now));
            }
        }
    }
}

/// A place in line. It is given up when this is dropped: the caller has gone, or the changed policy has another line or none.
pub(super) struct Place {
    limiter: Limiter,
    slot: SlotKey,
    id: Uuid,
    is_held: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_held {
            return;
        }
        let (limiter, slot, id) = (self.limiter.clone(), self.slot.clone(), self.id);
        tokio::spawn(async move {
            if let Err(error) = limiter.leave_line(&slot, id).await {
                tracing::debug!(%error, "a place in line was not given up; it is lost after a moment of silence");
            }
        });
    }
}
