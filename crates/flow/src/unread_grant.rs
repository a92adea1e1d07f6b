//! Leases whose grant is never read: the caller has gone, or Redis did not answer in time and may grant them later. They are released here.

use std::time::Duration;

use uuid::Uuid;

use seckill_domain::limiter::{Algorithm, SlotKey};
use seckill_redis::GateError;
use seckill_redis::limiter::{Limiter, Take};

/// The pauses before each try: Redis may execute the call after a release that found nothing.
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(10)];

/// The leases of one call, released unless the call's answer is read.
pub(super) struct UnreadGrant<'a> {
    limiter: &'a Limiter,
    leases: Vec<(SlotKey, Algorithm, Uuid)>,
}

impl<'a> UnreadGrant<'a> {
    pub(crate) fn of<'t>(limiter: &'a Limiter, takes: impl Iterator<Item = Take<'t>>) -> Self {
        let leases = takes.filter(|take| take.algorithm.kind().grants_leases());
        let leases = leases.filter_map(|take| Some((take.slot.clone(), *take.algorithm, take.lease?))).collect();
        Self { limiter, leases }
    }

    pub(crate) fn keep(mut self) {
        self.leases.clear();
    }

    pub(crate) async fn acquire<T>(
        limiter: &'a Limiter,
        takes: &[Take<'_>],
        call: impl Future<Output = Result<T, GateError>>,
    ) -> Result<T, GateError> {
        let unread = Self::of(limiter, takes.iter().copied());
        let answer = call.await;
        if !answer.as_ref().is_err_and(GateError::is_unanswered) {
            unread.keep();
        }
        answer
    }
}

impl Drop for UnreadGrant<'_> {
    fn drop(&mut self) {
        for (slot, algorithm, lease) in self.leases.drain(..) {
            let limiter = self.limiter.clone();
            tokio::spawn(async move {
                for pause in PAUSES {
                    tokio::time::sleep(pause).await;
                    if limiter.release(&slot, &algorithm, lease).await.is_ok_and(|released| released) {
                        return;
                    }
                }
            });
        }
    }
}
