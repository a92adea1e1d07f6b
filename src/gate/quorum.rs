//! Where locks are kept: one Redis server, or several that know nothing of each other, by majority (Redlock).
//!
//! With one server a lock is as good as that server's memory. With several it outlives the death of any minority; it does
//! not become proof against clocks that leap, servers that forget (a restart without its last writes), or holders that
//! sleep. Tokens rise from holder to holder as long as a majority remembers: every token that is used has been made the
//! least on a majority, and the next holder's majority shares a server with it. What protects a database is the fence in
//! the database, whichever form is used.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::ConnectionManager;
use redis::{FromRedisValue, ScriptInvocation};
use tokio::time::{Instant, timeout};

use super::GateError;
use super::keys::LockKeys;
use super::scripts::Scripts;
use crate::domain::ids::FenceToken;

/// How long a server remembers a lock's last token. Afterwards its clock keeps tokens rising.
const REMEMBER: Duration = Duration::from_secs(3600);

/// The servers that keep locks.
#[derive(Clone)]
pub(super) struct Quorum {
    servers: Arc<[ConnectionManager]>,
    scripts: Arc<Scripts>,
    /// How long a server may take to answer.
    patience: Duration,
}

/// One try to hold a lock: its keys, and a random id that no other try has.
pub(super) struct LockClaim {
    pub keys: LockKeys,
    pub holder: String,
    pub lease: Duration,
}

/// A lock that was taken: its token, and until when that can be believed.
pub(super) struct LockGrant {
    pub token: FenceToken,
    pub until: Instant,
}

impl LockClaim {
    /// Until when a lease can be believed that was asked for at a moment: clocks run at different speeds, by far less
    /// than this.
    pub fn believed(&self, asked: Instant) -> Instant {
        asked + self.lease.saturating_sub(self.lease / 100 + Duration::from_millis(2))
    }
}

impl Quorum {
    pub fn new(servers: Vec<ConnectionManager>, scripts: Arc<Scripts>, patience: Duration) -> Self {
        Self { servers: servers.into(), scripts, patience }
    }

    /// Tries once; `None` when others hold it. What a failed try has taken is given back behind its back.
    pub async fn acquire(&self, claim: &Arc<LockClaim>) -> Result<Option<LockGrant>, GateError> {
        let asked = Instant::now();
        let mut call = self.scripts.acquire_lock.key(&claim.keys.lock);
        call.key(&claim.keys.fence).arg(&claim.holder).arg(millis(claim.lease)).arg(millis(REMEMBER.max(claim.lease)));
        let votes = self.ask(&call, claim).await;
        let untouched = votes.iter().all(|vote: &Result<Option<String>, _>| matches!(vote, Ok(None)));
        let granted = match self.weigh(votes) {
            Ok(Some(tokens)) => self.agree(claim, asked, &tokens).await,
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        if !untouched && !matches!(granted, Ok(Some(_))) {
            let (quorum, claim) = (self.clone(), Arc::clone(claim));
            tokio::spawn(async move { quorum.release(&claim).await });
        }
        granted
    }

    /// Makes the highest of the tokens everybody's, so that the next holder's is higher.
    async fn agree(
        &self,
        claim: &LockClaim,
        asked: Instant,
        tokens: &[String],
    ) -> Result<Option<LockGrant>, GateError> {
        let tokens: Option<Vec<i64>> = tokens.iter().map(|token| token.parse().ok()).collect();
        let highest = tokens.and_then(|tokens| tokens.into_iter().max());
        let token = FenceToken(highest.ok_or(GateError::Malformed("acquire_lock"))?);
        if self.servers.len() > 1 && !self.renew(claim, token).await? {
            return Ok(None);
        }
        let until = claim.believed(asked);
        Ok((Instant::now() < until).then_some(LockGrant { token, until }))
    }

    /// Prolongs the lease; `false` when the lock is lost.
    pub async fn renew(&self, claim: &LockClaim, token: FenceToken) -> Result<bool, GateError> {
        let mut call = self.scripts.renew_lock.key(&claim.keys.lock);
        call.key(&claim.keys.fence).arg(&claim.holder).arg(millis(claim.lease));
        call.arg(millis(REMEMBER.max(claim.lease))).arg(token.0);
        self.vote(&call, claim).await
    }

    /// Gives the lock back, on every server; `false` when it had been lost.
    pub async fn release(&self, claim: &LockClaim) -> Result<bool, GateError> {
        let mut call = self.scripts.unlock.key(&claim.keys.lock);
        call.arg(&claim.holder);
        self.vote(&call, claim).await
    }

    async fn vote(&self, call: &ScriptInvocation<'_>, claim: &LockClaim) -> Result<bool, GateError> {
        let votes = self.ask::<i64>(call, claim).await.into_iter();
        Ok(self.weigh(votes.map(|vote| vote.map(|done| (done == 1).then_some(()))).collect())?.is_some())
    }

    async fn ask<T: FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
        claim: &LockClaim,
    ) -> Vec<Result<T, GateError>> {
        // Among several, one that hangs must not eat up the lease; alone, there is nobody else to ask.
        let patience = if self.servers.len() == 1 { self.patience } else { self.patience.min(claim.lease / 8) };
        let ask = |server: &ConnectionManager| {
            let mut server = server.clone();
            async move {
                let answer = timeout(patience, call.invoke_async(&mut server)).await;
                let late = || redis::RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
                Ok(answer.unwrap_or_else(|_| Err(late()))?)
            }
        };
        join_all(self.servers.iter().map(ask)).await
    }

    /// What a majority said: yes, or that it cannot be yes any more; an error when too few could be asked to know.
    fn weigh<T>(&self, votes: Vec<Result<Option<T>, GateError>>) -> Result<Option<Vec<T>>, GateError> {
        let majority = votes.len() / 2 + 1;
        let (mut yes, mut no, mut failure) = (Vec::new(), 0, GateError::Unknown);
        for vote in votes {
            match vote {
                Ok(Some(said)) => yes.push(said),
                Ok(None) => no += 1,
                Err(error) => failure = error,
            }
        }
        match (yes.len() >= majority, no > self.servers.len() - majority) {
            (true, _) => Ok(Some(yes)),
            (false, true) => Ok(None),
            (false, false) => Err(failure),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
