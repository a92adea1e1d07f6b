//! Locks among instances: SET NX PX with a random holder id, compare-and-delete, a bounded spin, renewal, re-entrancy within a holder,
//! and a rising fencing token.
//!
//! A lock keeps instances from doing the same work twice. It does not stop a holder that slept past its lease. So PostgreSQL checks the
//! writes of a holder: by the token (`postgres::fences`), or by an equivalent such as the epoch of a sale for its refills.

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
use quorum::{LockClaim, Quorum};
use seckill_domain::ids::FenceToken;

/// How long and how often to try. Jitter keeps waiters apart.
const SPIN_FOR: Duration = Duration::from_millis(500);
const SPIN_STEP: Duration = Duration::from_millis(50);

impl Gate {
    /// `Holder::lock` by a new holder.
    pub async fn lock(&self, name: &str, lease: Duration) -> Result<Option<Lock>, GateError> {
        self.holder().lock(name, lease).await
    }

    pub fn holder(&self) -> Holder {
        Holder { quorum: self.locks.clone(), keys: self.keys.clone(), held: Arc::default() }
    }
}

/// A holder of locks; clones are the same holder. It takes one lock at a time.
#[derive(Clone)]
pub struct Holder {
    quorum: Quorum,
    keys: Keys,
    held: Arc<tokio::sync::Mutex<HashMap<String, Weak<Held>>>>,
}

impl Holder {
    /// Takes the lock, and waits up to 500 ms for it. A lock of this holder is taken again, under its first lease. `None`: another holder
    /// has the lock.
    pub async fn lock(&self, name: &str, lease: Duration) -> Result<Option<Lock>, GateError> {
        self.lock_within(name, lease, SPIN_FOR).await
    }

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
            // Each attempt has its own id: a late command of an earlier attempt cannot touch it.
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

    /// Whether the lease is still valid by this process's clock. A hint: the process may sleep before it uses the answer.
    pub fn still_held(&self) -> bool {
        self.held.validity.is_valid()
    }

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

/// The end of a lease. It is counted from before the request, so it comes before the server's.
struct Validity {
    until: Mutex<Instant>,
    lost: CancellationToken,
}

impl Validity {
    fn is_valid(&self) -> bool {
        !self.lost.is_cancelled() && Instant::now() < *self.until.lock()
    }
}

/// Renews a lease until it is lost. After a failure it tries again sooner. A lease that has ended stays so.
async fn renew(quorum: Quorum, claim: Arc<LockClaim>, token: FenceToken, validity: Arc<Validity>) {
    let mut pause = claim.lease / 3;
    let reason = loop {
        let until = *validity.until.lock();
        sleep_until((Instant::now() + pause).min(until)).await;
        let asked = Instant::now();
        if asked >= until {
            break "not renewed in time";
        }
        match timeout_at(until, quorum.renew(&claim, token)).await {
            Ok(Ok(true)) => {
                *validity.until.lock() = claim.valid_until(asked);
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
