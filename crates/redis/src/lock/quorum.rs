//! The servers that keep locks: one Redis server, or a majority of several independent ones (Redlock).
//!
//! A lock on one server is as safe as that server's memory. A lock on several survives the death of any minority. It does not survive
//! clocks that leap, servers that lose their last writes, or holders that sleep: only the fence in PostgreSQL protects the database.
//! A token is stored on a majority before it is used, and two majorities share a server. So tokens rise from holder to holder while a
//! majority remembers them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{FromRedisValue, ScriptInvocation};
use tokio::time::{Instant, timeout};

use crate::keys::LockKeys;
use crate::servers::Connections;
use crate::{GateError, scripts};
use seckill_domain::ids::FenceToken;

/// How long a server remembers the last token of a lock. Later its clock keeps tokens rising.
const REMEMBER: Duration = Duration::from_secs(3600);

#[derive(Clone)]
pub(crate) struct Quorum {
    /// A cluster is one of them.
    pub(crate) servers: Arc<[Connections]>,
    pub(crate) timeout: Duration,
}

/// One attempt to take a lock: its keys, and a random id that no other attempt has.
pub(crate) struct LockClaim {
    pub(crate) keys: LockKeys,
    pub(crate) holder: String,
    pub(crate) lease: Duration,
}

pub(crate) struct LockGrant {
    pub(crate) token: FenceToken,
    pub(crate) until: Instant,
}

impl LockClaim {
    /// The end of a lease requested at `asked`. The margin covers clocks of different speeds.
    pub(crate) fn valid_until(&self, asked: Instant) -> Instant {
        asked + self.lease.saturating_sub(self.lease / 100 + Duration::from_millis(2))
    }
}

impl Quorum {
    /// Tries once. Returns `None` when another holder has the lock. A failed attempt is released in the background.
    pub(crate) async fn acquire(&self, claim: &Arc<LockClaim>) -> Result<Option<LockGrant>, GateError> {
        let asked = Instant::now();
        let mut call = scripts::ACQUIRE_LOCK.key(&claim.keys.lock);
        call.key(&claim.keys.fence).arg(&claim.holder).arg(millis(claim.lease)).arg(millis(REMEMBER.max(claim.lease)));
        let votes = self.ask(&call, claim).await;
        let nothing_taken = votes.iter().all(|vote: &Result<Option<String>, _>| matches!(vote, Ok(None)));
        let granted = match self.decide(votes) {
            Ok(Some(tokens)) => self.grant(claim, asked, &tokens).await,
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        if !nothing_taken && !matches!(granted, Ok(Some(_))) {
            let (quorum, claim) = (self.clone(), Arc::clone(claim));
            tokio::spawn(async move { quorum.release(&claim).await });
        }
        granted
    }

    /// Stores the highest token on all servers: the next holder's token will be higher.
    async fn grant(
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
        let until = claim.valid_until(asked);
        Ok((Instant::now() < until).then_some(LockGrant { token, until }))
    }

    /// Prolongs the lease. Returns `false` when the lock is lost.
    pub(crate) async fn renew(&self, claim: &LockClaim, token: FenceToken) -> Result<bool, GateError> {
        let mut call = scripts::RENEW_LOCK.key(&claim.keys.lock);
        call.key(&claim.keys.fence).arg(&claim.holder).arg(millis(claim.lease));
        call.arg(millis(REMEMBER.max(claim.lease))).arg(token.0);
        self.vote(&call, claim).await
    }

    /// Gives the lock back on every server. Returns `false` when the lock had been lost.
    pub(crate) async fn release(&self, claim: &LockClaim) -> Result<bool, GateError> {
        let mut call = scripts::UNLOCK.key(&claim.keys.lock);
        call.arg(&claim.holder);
        self.vote(&call, claim).await
    }

    async fn vote(&self, call: &ScriptInvocation<'_>, claim: &LockClaim) -> Result<bool, GateError> {
        let votes = self.ask::<i64>(call, claim).await.into_iter();
        Ok(self.decide(votes.map(|vote| vote.map(|done| (done == 1).then_some(()))).collect())?.is_some())
    }

    async fn ask<T: FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
        claim: &LockClaim,
    ) -> Vec<Result<T, GateError>> {
        // A server that hangs must not use up the lease.
        let limit = if self.servers.len() == 1 { self.timeout } else { self.timeout.min(claim.lease / 8) };
        let ask = |server: &Connections| {
            let mut server = server.of(&claim.keys.lock);
            async move {
                let answer = timeout(limit, call.invoke_async(&mut server)).await;
                let late = || redis::RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
                Ok(answer.unwrap_or_else(|_| Err(late()))?)
            }
        };
        join_all(self.servers.iter().map(ask)).await
    }

    /// The replies of a majority that agreed, or `None` when no majority can agree.
    ///
    /// # Errors
    /// Too few servers answered to decide.
    fn decide<T>(&self, votes: Vec<Result<Option<T>, GateError>>) -> Result<Option<Vec<T>>, GateError> {
        let majority = votes.len() / 2 + 1;
        let (mut agreed, mut refused, mut failure) = (Vec::new(), 0, GateError::Unknown);
        for vote in votes {
            match vote {
                Ok(Some(reply)) => agreed.push(reply),
                Ok(None) => refused += 1,
                Err(error) => failure = error,
            }
        }
        if agreed.len() >= majority {
            Ok(Some(agreed))
        } else if refused > self.servers.len() - majority {
            Ok(None)
        } else {
            Err(failure)
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
