//! A lock among instances: SET NX PX with a random holder, compare-and-delete, a bounded spin, and renewal.
//!
//! It keeps instances from doing the same work twice. It does not protect a database from a holder that slept past
//! its lease: what is written under it must be safe when two do it.

use std::time::Duration;

use redis::{SetExpiry, SetOptions};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{Gate, GateError};

/// How long to try, and how often; the pause has jitter, so that waiters do not march in step.
const SPIN_FOR: Duration = Duration::from_millis(500);
const SPIN_STEP: Duration = Duration::from_millis(50);

/// A lock that is held, and renewed every third of its lease until it is dropped or given back.
#[must_use = "a lock that is dropped at once protects nothing"]
pub struct Lock {
    gate: Gate,
    key: String,
    holder: String,
    renewal: JoinHandle<()>,
}

impl Gate {
    /// Takes the lock, waiting up to 500 ms for it. `None` when somebody else kept it.
    pub async fn lock(&self, name: &str, lease: Duration) -> Result<Option<Lock>, GateError> {
        let (key, holder) = (self.keys.lock(name), Uuid::new_v4().to_string());
        let deadline = Instant::now() + SPIN_FOR;
        while !self.try_lock(&key, &holder, lease).await? {
            let pause = SPIN_STEP.mul_f64(rand::random_range(0.5..1.5));
            if Instant::now() + pause > deadline {
                return Ok(None);
            }
            sleep(pause).await;
        }
        let renewal = tokio::spawn(renew(self.clone(), key.clone(), holder.clone(), lease));
        Ok(Some(Lock { gate: self.clone(), key, holder, renewal }))
    }

    async fn try_lock(&self, key: &str, holder: &str, lease: Duration) -> Result<bool, GateError> {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let options =
            SetOptions::default().conditional_set(redis::ExistenceCheck::NX).with_expiration(SetExpiry::PX(lease_ms));
        let mut set = redis::cmd("SET");
        set.arg(key).arg(holder).arg(options);
        let reply: Option<String> = set.query_async(&mut self.connection.clone()).await?;
        Ok(reply.is_some())
    }

    async fn unlock(&self, key: &str, holder: &str, prolong_by: Duration) -> Result<bool, GateError> {
        let mut call = self.scripts.unlock.key(key);
        call.arg(holder).arg(u64::try_from(prolong_by.as_millis()).unwrap_or(u64::MAX));
        Ok(call.invoke_async::<i64>(&mut self.connection.clone()).await? == 1)
    }
}

/// Goes on through failures: one renewal that does not get through is no reason to lose the lock.
async fn renew(gate: Gate, key: String, holder: String, lease: Duration) {
    loop {
        sleep(lease / 3).await;
        match gate.unlock(&key, &holder, lease).await {
            Ok(true) => {}
            Ok(false) => return tracing::warn!(key, "lock lost: its lease ran out"),
            Err(error) => tracing::warn!(key, %error, "lock not renewed, trying again"),
        }
    }
}

impl Lock {
    /// Gives the lock back; `false` when it had been lost.
    pub async fn release(self) -> Result<bool, GateError> {
        self.renewal.abort();
        self.gate.unlock(&self.key, &self.holder, Duration::ZERO).await
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.renewal.abort(); // the lease does the rest
    }
}
