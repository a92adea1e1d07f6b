//! Locks among instances: SET NX PX with a random holder id, compare-and-delete, a bounded spin, renewal while a lock is
//! held, re-entrancy within a holder, and a fencing token that rises from holder to holder.
//!
//! A lock keeps instances from doing the same work twice. It does not stop a holder that slept past its lease.
//! Therefore PostgreSQL checks what is written under a lock: `ledger::fences` checks the token, or an equivalent does,
//! such as the epoch of a sale for its refills.

pub(super) mod quorum;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::keys::Keys;
use super::{Gate, GateError};
use crate::domain::ids::FenceToken;
use quorum::{LockClaim, Quorum};

/// How long and how often to try. The pause has jitter, so that waiters do not try at the same moments.
const SPIN_FOR: Duration = Duration::from_millis(500);
const SPIN_STEP: Duration = Duration::from_millis(50);

impl Gate {
    /// Takes the lock, and waits up to 500 ms for it. Returns `None` when another holder has it.
    pub async fn lock(&self, name: &str, lease: Duration) -> Result<Option<Lock>, GateError> {
        self.holder().lock(name, lease).await
    }

    /// A new holder, which may take a lock again while it has that lock.
    pub fn holder(&self) -> Holder {
        Holder { quorum: self.locks.clone(), keys: self.keys.clone(), held: Arc::default() }
    }
}

/// A holder of locks; clones are the same holder. It takes one lock at a time: while a call waits for a lock, other
/// calls of this holder wait too.
#[derive(Clone)]
pub struct Holder {
    quorum: Quorum,
    keys: Keys,
    held: Arc<tokio::sync::Mutex<HashMap<String, Weak<Held>>>>,
}

impl Holder {
    /// Takes the lock, and waits up to 500 ms for it. A lock that this holder has already is taken again, under its first
    /// lease. Returns `None` when another holder has it.
    pub async fn lock(&self, name: &str, lease: Duration) -> Result<Option<Lock>, GateError> {
        self.lock_within(name, lease, SPIN_FOR).await
    }

    /// Like `lock`, but waits up to `patience`.
    pub async fn lock_within(
        &self,
        name: &str,
        lease: Duration,
        patience: Duration,
    ) -> Result<Option<Lock>, GateError> {
        let deadline = Instant::now() + patience;
        let mut held_locks = self.held.lock().await;
        if let Some(held) = held_locks.get(name).and_then(Weak::upgrade)
            && held.validity.is_valid()
        {
            return Ok(Some(Lock { held }));
        }
        held_locks.retain(|_, held| held.strong_count() > 0);
        loop {
            // Each attempt has an id of its own, so that a late command of an earlier attempt cannot touch it.
            let holder = Uuid::new_v4().to_string();
            let claim = Arc::new(LockClaim { keys: self.keys.lock(name), holder, lease });
            if let Some(grant) = self.quorum.acquire(&claim).await? {
                let held = Arc::new(Held::new(self.quorum.clone(), claim, grant.token, grant.until));
                held_locks.insert(name.to_owned(), Arc::downgrade(&held));
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

/// A lock that is held. It is renewed every third of its lease until the last handle is dropped or released.
#[must_use = "a lock that is dropped at once is not held"]
pub struct Lock {
    held: Arc<Held>,
}

impl Lock {
    /// The token for the fence in PostgreSQL.
    pub fn token(&self) -> FenceToken {
        self.held.token
    }

    /// Whether the lease is still valid by this process's clock. Only a hint: the process may sleep before it uses the
    /// answer.
    pub fn still_held(&self) -> bool {
        self.held.validity.is_valid()
    }

    /// Waits until the lease is no longer valid.
    pub async fn lost(&self) {
        self.held.validity.lost.cancelled().await;
    }

    /// Gives the lock back when this is the last handle of its holder. Returns `false` when the lock had been lost.
    pub async fn release(self) -> Result<bool, GateError> {
        let validity = Arc::clone(&self.held.validity);
        match Arc::into_inner(self.held) {
            Some(held) => {
                held.renewal.abort();
                held.quorum.release(&held.claim).await
            }
            None => Ok(validity.is_valid()),
        }
    }
}

struct Held {
    quorum: Quorum,
    claim: Arc<LockClaim>,
    token: FenceToken,
    validity: Arc<Validity>,
    renewal: AbortHandle,
}

impl Held {
    fn new(quorum: Quorum, claim: Arc<LockClaim>, token: FenceToken, until: Instant) -> Self {
        let validity = Arc::new(Validity { until: Mutex::new(until), lost: CancellationToken::new() });
        let renewal = tokio::spawn(renew(quorum.clone(), Arc::clone(&claim), token, Arc::clone(&validity)));
        Self { quorum, claim, token, validity, renewal: renewal.abort_handle() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.renewal.abort(); // the lease then runs out
    }
}

/// Until when a lease is valid. It is counted from before the request was sent, so that it ends before the server's.
struct Validity {
    until: Mutex<Instant>,
    lost: CancellationToken,
}

impl Validity {
    fn until(&self) -> Instant {
        *self.until.lock()
    }

    fn is_valid(&self) -> bool {
        !self.lost.is_cancelled() && Instant::now() < self.until()
    }

    fn prolong(&self, until: Instant) {
        *self.until.lock() = until;
    }
}

/// Renews a lease until it is lost. After a failure it tries again sooner, because one failed renewal does not lose the
/// lock. A lease that is no longer valid stays so.
async fn renew(quorum: Quorum, claim: Arc<LockClaim>, token: FenceToken, validity: Arc<Validity>) {
    let mut pause = claim.lease / 3;
    let reason = loop {
        let until = validity.until();
        sleep_until((Instant::now() + pause).min(until)).await;
        let asked = Instant::now();
        if asked >= until {
            break "not renewed in time";
        }
        match timeout_at(until, quorum.renew(&claim, token)).await {
            Ok(Ok(true)) => {
                validity.prolong(claim.valid_until(asked));
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
    tracing::warn!(key = claim.keys.lock, reason, "lock lost");
    validity.lost.cancel();
}
