//! Limiters in Redis: lua/limit_*.lua, asked over a connection of their own with a short time-out.
//!
//! Calls of many requests share the connection and are sent on as they come, so that they batch by themselves.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionManager;
use redis::{FromRedisValue, Script, ScriptInvocation};
use tokio::time::timeout;
use uuid::Uuid;

use super::keys::Keys;
use super::scripts::LimiterScripts;
use super::{GateError, Timeouts, client, reconnecting, timed};
use crate::config;
use crate::domain::limiter::{Algorithm, Receipt, SlotKey, Verdict};

/// The most that may wait for one key: each call looks at everybody in line.
pub const LINE_MAX: u32 = 1000;

/// Permits asked of one limiter.
#[derive(Debug, Clone, Copy)]
pub struct Take<'a> {
    pub slot: &'a SlotKey,
    pub algorithm: &'a Algorithm,
    pub permits: u32,
    /// Names a concurrency limiter's grant, to be released by; fresh for every call. Others do without.
    pub lease: Option<Uuid>,
}

impl Take<'_> {
    /// Leases without a name would be one and the same.
    fn checked(&self) -> Result<&Self, GateError> {
        let nameless = self.lease.is_none() && matches!(self.algorithm, Algorithm::Concurrency(_));
        if nameless { Err(GateError::Impossible) } else { Ok(self) }
    }
}

/// What came of asking several limiters at once: all of it was taken, or nothing.
#[derive(Debug, Clone)]
pub struct AcquireReply {
    pub granted: bool,
    /// One a take. `None` was not asked, because an earlier one, which it cannot meet in one script, had refused.
    pub verdicts: Vec<Option<Verdict>>,
}

/// A caller that would rather wait than be refused.
#[derive(Debug, Clone, Copy)]
pub struct Waiter {
    /// The same in all calls of one wait.
    pub id: Uuid,
    /// How long it will still wait.
    pub patience: Duration,
    /// How many may stand in line, up to `LINE_MAX`.
    pub line_max: u32,
}

/// How a waiter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Granted(Verdict),
    /// 1 is the next. Who does not ask again, soon after this time, loses the place.
    Wait {
        position: i64,
        ask_again: Duration,
    },
    /// The time is over, and the place given up.
    TooLate(Verdict),
    /// No more can wait.
    LineFull(Verdict),
}

/// A handle on the limiters; clones share one connection.
#[derive(Clone)]
pub struct Limiter {
    connection: ConnectionManager,
    keys: Keys,
    scripts: Arc<LimiterScripts>,
    timeout: Duration,
    now_us: Option<i64>,
}

impl Limiter {
    /// Prepares a handle; the connection is made, and made again, when it is needed.
    pub fn new(redis: &config::Redis, flow: &config::Flow) -> Result<Self, GateError> {
        let timeout = Duration::from_millis(flow.timeout_ms);
        let timeouts = Timeouts { connect: timeout, response: timeout };
        let connection = reconnecting(&client(&redis.url, timeout)?, timeouts)?;
        let (keys, scripts) = (Keys::new(&redis.prefix), Arc::new(LimiterScripts::new()));
        Ok(Self { connection, keys, scripts, timeout, now_us: None })
    }

    /// The same limiters at a time of one's own instead of the server's. For tests alone.
    pub fn at(&self, now_us: i64) -> Self {
        Self { now_us: Some(now_us), ..self.clone() }
    }

    /// Takes from all or from none. An error means that it is unknown whether anything was taken.
    ///
    /// Takes whose slots share a hash tag are one script, in which all are checked before any is counted. Others are
    /// asked in order, each within the time-out, and what earlier ones gave is given back when a later one refuses or
    /// fails; dropping this future midway keeps it taken.
    pub async fn acquire(&self, takes: &[Take<'_>]) -> Result<AcquireReply, GateError> {
        let mut answer = AcquireReply { granted: true, verdicts: vec![None; takes.len()] };
        for group in self.groups(takes) {
            let asked = self.acquire_together(takes, &group).await;
            let granted = match &asked {
                Ok(verdicts) => verdicts.iter().all(|verdict| verdict.granted),
                Err(_) => false,
            };
            if !granted && let Err(error) = self.give_back(takes, &answer).await {
                // It is lost to its window, or comes back with its lease: too little is granted, never too much.
                tracing::debug!(%error, "permits of a refused call were not given back");
            }
            for (index, verdict) in group.into_iter().zip(asked?) {
                answer.verdicts[index] = Some(verdict);
            }
            if !granted {
                answer.granted = false;
                break;
            }
        }
        Ok(answer)
    }

    /// Returns what a granted answer took, as far as it still counts somewhere.
    pub async fn give_back(&self, takes: &[Take<'_>], answer: &AcquireReply) -> Result<(), GateError> {
        if !answer.granted {
            return Ok(());
        }
        for group in self.groups(takes) {
            let asked = group.iter().filter_map(|index| Some((&takes[*index], answer.verdicts[*index]?)));
            let taken: Vec<(&Take<'_>, Verdict)> = asked.filter(|(take, _)| !take.algorithm.is_unlimited()).collect();
            if taken.is_empty() {
                continue;
            }
            let mut call = self.call(self.scripts.give_back.of(taken.iter().map(|(take, _)| take.algorithm.kind())));
            for (take, Verdict { receipt: Receipt { mark, detail }, .. }) in taken {
                self.describe(&mut call, take).arg(mark).arg(detail);
            }
            self.ask::<Vec<i64>>(&call).await?;
        }
        Ok(())
    }

    /// Gives a concurrency limiter's lease back, all permits of it; `false` when it had ended, or was given back before.
    pub async fn release(&self, slot: &SlotKey, algorithm: &Algorithm, lease: Uuid) -> Result<bool, GateError> {
        if !matches!(algorithm, Algorithm::Concurrency(_)) {
            return Ok(false);
        }
        let mut call = self.call(self.scripts.give_back.of(std::iter::once(algorithm.kind())));
        self.describe(&mut call, &Take { slot, algorithm, permits: 1, lease: Some(lease) }).arg(0).arg(0);
        Ok(self.ask::<Vec<i64>>(&call).await?.contains(&1))
    }

    /// Takes permits in the order of arrival: asked again and again, until the turn is something else than `Wait`.
    /// One limiter only: a line over several dimensions would hold the places of one while it waits for another. All
    /// callers of a slot with a line must stand in it, because `acquire` does not look at it.
    pub async fn wait_in_line(&self, take: &Take<'_>, waiter: &Waiter) -> Result<Turn, GateError> {
        if take.algorithm.is_unlimited() {
            return Ok(Turn::Granted(Verdict::UNLIMITED));
        }
        let mut call = self.call(self.scripts.wait_in_line.of(std::iter::once(take.algorithm.kind())));
        self.describe(&mut call, take.checked()?);
        let patience_us = u64::try_from(waiter.patience.as_micros()).unwrap_or(u64::MAX).min(PATIENCE_MAX_US);
        call.key(&self.keys.line(take.slot)[..]);
        call.arg(waiter.id.to_string()).arg(patience_us).arg(waiter.line_max.min(LINE_MAX));
        let reply: Vec<i64> = timed("wait_in_line", self.ask(&call)).await?;
        match reply[..] {
            [-2] => Err(GateError::Impossible),
            [code, position, again, ref verdict @ ..] => {
                let [verdict] = read_verdicts(verdict, 1)?[..] else { return Err(MALFORMED) };
                let ask_again = Duration::from_millis(again.max(1).unsigned_abs());
                match code {
                    1 => Ok(Turn::Granted(verdict)),
                    0 => Ok(Turn::Wait { position, ask_again }),
                    -1 => Ok(Turn::TooLate(verdict)),
                    -3 => Ok(Turn::LineFull(verdict)),
                    _ => Err(MALFORMED),
                }
            }
            _ => Err(MALFORMED),
        }
    }

    /// Gives up a place in line; `false` when there was none.
    pub async fn leave_line(&self, slot: &SlotKey, waiter: Uuid) -> Result<bool, GateError> {
        let mut call = self.scripts.leave_line.prepare_invoke();
        call.key(&self.keys.line(slot)[..]).arg(waiter.to_string());
        Ok(self.ask::<i64>(&call).await? == 1)
    }

    /// Takes that can meet in one script, by their places, in order.
    fn groups(&self, takes: &[Take<'_>]) -> Vec<Vec<usize>> {
        let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
        for (index, take) in takes.iter().enumerate() {
            let tag = self.keys.slot_tag(take.slot);
            match groups.iter_mut().find(|(known, _)| *known == tag) {
                Some((_, group)) => group.push(index),
                None => groups.push((tag, vec![index])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    async fn acquire_together(&self, takes: &[Take<'_>], group: &[usize]) -> Result<Vec<Verdict>, GateError> {
        let takes = || group.iter().map(|index| &takes[*index]);
        let limited = || takes().filter(|take| !take.algorithm.is_unlimited());
        let mut verdicts = Vec::new();
        if limited().next().is_some() {
            let mut call = self.call(self.scripts.acquire.of(limited().map(|take| take.algorithm.kind())));
            for take in limited() {
                self.describe(&mut call, take.checked()?);
            }
            let reply: Vec<i64> = timed("acquire", self.ask(&call)).await?;
            verdicts = match reply[..] {
                [-2] => return Err(GateError::Impossible),
                [1 | -1, ref verdicts @ ..] => read_verdicts(verdicts, limited().count())?,
                _ => return Err(MALFORMED),
            };
        }
        let mut verdicts = verdicts.into_iter();
        let verdict_of = |take: &Take<'_>| match take.algorithm {
            Algorithm::Unlimited(_) => Ok(Verdict::UNLIMITED),
            _ => verdicts.next().ok_or(MALFORMED),
        };
        takes().map(verdict_of).collect()
    }

    /// The time-out holds for all of it: connecting, being queued, and loading a script that is missing.
    async fn ask<T: FromRedisValue>(&self, call: &ScriptInvocation<'_>) -> Result<T, GateError> {
        let mut connection = self.connection.clone();
        match timeout(self.timeout, call.invoke_async(&mut connection)).await {
            Ok(reply) => Ok(reply?),
            Err(_) => Err(GateError::Unreachable(io::Error::from(io::ErrorKind::TimedOut).into())),
        }
    }

    fn call<'a>(&self, script: &'a Script) -> ScriptInvocation<'a> {
        let mut call = script.prepare_invoke();
        call.arg(self.now_us.map(|now| now.to_string()).unwrap_or_default());
        call
    }

    /// A limiter's key, and the arguments that all scripts have of it.
    fn describe<'a, 'b>(&self, call: &'b mut ScriptInvocation<'a>, take: &Take<'_>) -> &'b mut ScriptInvocation<'a> {
        let kind = take.algorithm.kind();
        call.key(self.keys.limiter(take.slot, kind)).arg(kind.as_str()).arg(take.permits);
        for parameter in take.algorithm.arguments() {
            call.arg(parameter);
        }
        call.arg(take.lease.map(|lease| lease.to_string()).unwrap_or_default())
    }
}

const MALFORMED: GateError = GateError::Malformed("a limiter's script");

/// A day: nobody waits so long, and Lua counts it exactly.
const PATIENCE_MAX_US: u64 = 86_400_000_000;

fn read_verdicts(reply: &[i64], count: usize) -> Result<Vec<Verdict>, GateError> {
    let (rows, []) = reply.as_chunks::<8>() else { return Err(MALFORMED) };
    if rows.len() != count {
        return Err(MALFORMED);
    }
    let verdict = |&[fits, at_us, remaining, retry_after_ms, reset_ms, delay_ms, mark, detail]: &[i64; 8]| Verdict {
        granted: fits == 1,
        remaining,
        retry_after_ms,
        reset_ms,
        delay_ms,
        at_us,
        receipt: Receipt { mark, detail },
    };
    Ok(rows.iter().map(verdict).collect())
}
