//! A lock among instances: SET NX PX with a random holder, compare-and-delete, a bounded spin, renewal while it is held,
//! re-entrancy within a holder, and a fencing token that rises.
//!
//! It keeps instances from doing the same work twice. It does not protect a database from a holder that slept past
//! its lease: what is written to PostgreSQL under it is checked there, by `ledger::fences` with the lock's token, or by
//! something that does the same, as a sale's epoch does for its refills.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::keys::Keys;
use super::quorum::{LockClaim, Quorum};
use super::{Gate, GateError};
use crate::domain::ids::FenceToken;

/// How long to try, and how often; the pause has jitter, so that waiters do not march in step.
const SPIN_FOR: Duration = Duration::from_millis(500);
const SPIN_STEP: Duration = Duration::from_millis(50);

impl Gate {
    /// Takes the lock, waiting up to 500 ms for it. `None` when somebody else kept it.
    pub async fn lock(&self, name: &str, lease: Duration) -> Result<Option<Lock>, GateError> {
        self.holder().lock(name, lease).await
    }

    /// Somebody who may take a lock again while he holds it.
    pub fn holder(&self) -> Holder {
        Holder { quorum: self.locks.clone(), keys: self.keys.clone(), held: Arc::default() }
    }
}

/// One holder of locks; clones are the same. It takes one lock at a time: who waits for one makes the others wait.
#[derive(Clone)]
pub struct Holder {
    quorum: Quorum,
    keys: Keys,
    held: Arc<tokio::sync::Mutex<HashMap<String, Weak<Held>>>>,
}

impl Holder {
    /// Takes the lock, waiting up to 500 ms for it, or once more what this holder has already; then the lease is the
    /// first one's. `None` when somebody else kept it.
    pub async fn lock(&self, name: &str, lease: Duration) -> Result<Option<Lock>, GateError> {
        self.lock_within(name, lease, SPIN_FOR).await
    }

    /// The same, with another patience.
    pub async fn lock_within(
        &self,
        name: &str,
        lease: Duration,
        patience: Duration,
    ) -> Result<Option<Lock>, GateError> {
        let deadline = Instant::now() + patience;
        let mut mine = self.held.lock().await;
        if let Some(held) = mine.get(name).and_then(Weak::upgrade)
            && held.belief.holds()
        {
            return Ok(Some(Lock { held }));
        }
        mine.retain(|_, held| held.strong_count() > 0);
        loop {
            // An id of its own for every try: what is on its way for an earlier one cannot touch it.
            let holder = Uuid::new_v4().to_string();
            let claim = Arc::new(LockClaim { keys: self.keys.lock(name), holder, lease });
            if let Some(grant) = self.quorum.acquire(&claim).await? {
                let held = Arc::new(Held::new(self.quorum.clone(), claim, grant.token, grant.until));
                mine.insert(name.to_owned(), Arc::downgrade(&held));
                return Ok(Some(Lock { held }));
            }
            let pause = SPIN_STEP.mul_f64(rand::random_range(0.5..1.5));
            if Instant::now() + pause > deadline {
                return Ok(None);
            }
            sleep(pause).await;
        }
    }
}

/// A lock that is held, and renewed every third of its lease until the last of its handles is dropped or given back.
#[must_use = "a lock that is dropped at once protects nothing"]
pub struct Lock {
    held: Arc<Held>,
}

impl Lock {
    /// The token for the fence in PostgreSQL.
    pub fn token(&self) -> FenceToken {
        self.held.token
    }

    /// Whether the lease can still be believed, by this process's clock. Only a hint: the answer may be old when it is
    /// read.
    pub fn still_held(&self) -> bool {
        self.held.belief.holds()
    }

    /// Resolves when the lease can no longer be believed.
    pub async fn lost(&self) {
        self.held.belief.lost.cancelled().await;
    }

    /// Gives the lock back, once every handle of its holder has; `false` when it had been lost.
    pub async fn release(self) -> Result<bool, GateError> {
        let belief = Arc::clone(&self.held.belief);
        match Arc::into_inner(self.held) {
            Some(held) => {
                held.renewal.abort();
                held.quorum.release(&held.claim).await
            }
            None => Ok(belief.holds()),
        }
    }
}

struct Held {
    quorum: Quorum,
    claim: Arc<LockClaim>,
    token: FenceToken,
    belief: Arc<Belief>,
    renewal: AbortHandle,
}

impl Held {
    fn new(quorum: Quorum, claim: Arc<LockClaim>, token: FenceToken, until: Instant) -> Self {
        let belief = Arc::new(Belief { until: Mutex::new(until), lost: CancellationToken::new() });
        let renewal = tokio::spawn(renew(quorum.clone(), Arc::clone(&claim), token, Arc::clone(&belief)));
        Self { quorum, claim, token, belief, renewal: renewal.abort_handle() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.renewal.abort(); // the lease does the rest
    }
}

/// Until when a lease can be believed: counted from before it was asked for, so never longer than the server's.
struct Belief {
    until: Mutex<Instant>,
    lost: CancellationToken,
}

impl Belief {
    fn until(&self) -> Instant {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holds(&self) -> bool {
        !self.lost.is_cancelled() && Instant::now() < self.until()
    }

    fn prolong(&self, until: Instant) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

/// Goes on through failures, more often then: one renewal that does not get through is no reason to lose the lock. Once
/// the lease can no longer be believed, that is said, and never taken back.
async fn renew(quorum: Quorum, claim: Arc<LockClaim>, token: FenceToken, belief: Arc<Belief>) {
    let mut pause = claim.lease / 3;
    let why = loop {
        let until = belief.until();
        sleep_until((Instant::now() + pause).min(until)).await;
        let asked = Instant::now();
        if asked >= until {
            break "not renewed in time";
        }
        match timeout_at(until, quorum.renew(&claim, token)).await {
            Ok(Ok(true)) => {
                belief.prolong(claim.believed(asked));
                pause = claim.lease / 3;
            }
            Ok(Ok(false)) => break "its lease ran out",
            Ok(Err(error)) => {
                tracing::warn!(key = claim.keys.lock, %error, "lock not renewed, trying again");
                pause = claim.lease / 12;
            }
            Err(_) => break "not renewed in time",
        }
    };
    tracing::warn!(key = claim.keys.lock, why, "lock lost");
    belief.lost.cancel();
}
