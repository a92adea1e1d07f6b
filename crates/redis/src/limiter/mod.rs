//! Calls the limiters in Redis (lua/limit_*.lua). All requests share one connection with a short time-out, and each call is sent at once:
//! calls form batches on the wire.

mod key_budget;
pub mod line;
pub mod policy_counts;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, RedisResult, Script, ScriptInvocation};
use tokio::time::timeout;
use uuid::Uuid;

use super::keys::Keys;
use super::reply_codes::AcquireCode;
use super::servers::{Connections, Server, Timeouts, is_tls};
use super::{GateError, scripts, timed};
use key_budget::KeyBudget;
use seckill_config as config;
use seckill_domain::database_clock::DatabaseClock;
use seckill_domain::limiter::{Algorithm, Receipt, SlotKey, Verdict};
use seckill_domain::memory_level::MemoryLevel;

#[derive(Debug, Clone, Copy)]
pub struct Take<'a> {
    pub slot: &'a SlotKey,
    pub algorithm: &'a Algorithm,
    pub permits: u32,
    /// The id of a grant of a concurrency limiter, by which it is released; new for every call.
    pub lease: Option<Uuid>,
    /// Whether callers of this slot wait in line: this call must not pass them.
    pub has_line: bool,
}

impl Take<'_> {
    /// Refuses a lease without an id: two such leases could not be told apart.
    fn checked(&self) -> Result<&Self, GateError> {
        let without_id = self.lease.is_none() && self.algorithm.keeps_leases();
        if without_id { Err(GateError::InvalidRequest) } else { Ok(self) }
    }
}

/// All permits were taken, or none.
#[derive(Debug, Clone)]
pub struct AcquireReply {
    pub granted: bool,
    /// One for each take. `None`: this limiter was not asked, because an earlier script had refused.
    pub verdicts: Vec<Option<Verdict>>,
}

/// A handle on the limiters; clones share their connections.
#[derive(Clone)]
pub struct Limiter {
    connections: Connections,
    keys: Keys,
    timeout: Duration,
    time: LimiterTime,
    budget: Option<Arc<KeyBudget>>,
}

#[derive(Clone)]
enum LimiterTime {
    Server,
    /// The database's clock, while the server's is far away from it.
    Database(Arc<DatabaseClock>),
    /// In microseconds, for tests.
    Fixed(i64),
}

impl LimiterTime {
    fn argument(&self) -> String {
        match self {
            Self::Server => String::new(),
            Self::Database(clock) => format!("d{}", clock.now_ms()),
            Self::Fixed(now_us) => now_us.to_string(),
        }
    }
}

impl Limiter {
    /// A handle connects, and reconnects, when a call needs the connection.
    ///
    /// # Errors
    /// The address of the server cannot be parsed.
    pub fn new(redis: &config::Redis, flow: &config::Flow) -> Result<Self, GateError> {
        let timeout = Duration::from_millis(flow.timeout_ms);
        let connect = Duration::from_millis(redis.connect_timeout_ms);
        let redis = &flow.redis(redis);
        let server = Server::new(redis, Timeouts { connect, response: timeout })?;
        // A handshake takes longer than a call may. A call without a connection gives up in its own time.
        let connect = if server.named().iter().any(is_tls) { connect } else { timeout };
        let connections = server.connections(Timeouts { connect, response: timeout })?;
        Ok(Self {
            connections,
            keys: Keys::new(&redis.prefix),
            timeout,
            time: LimiterTime::Server,
            budget: Some(Arc::new(KeyBudget::new(flow.app_keys_mb.saturating_mul(1_000_000)))),
        })
    }

    /// The same limiters without a budget, for keys that no caller can choose.
    pub fn without_budget(&self) -> Self {
        Self { budget: None, ..self.clone() }
    }

    /// Reads how much memory Redis has left, and adds no keys while it is scarce.
    pub async fn check_memory(&self) -> Result<MemoryLevel, GateError> {
        let level = in_time(self.timeout, self.connections.memory_level()).await;
        if let Some(budget) = &self.budget {
            // While Redis does not answer, the policies' when_down decides.
            budget.set_scarce(level.as_ref().is_ok_and(|level| *level == MemoryLevel::Scarce));
        }
        level
    }

    fn budget_of(&self, take: &Take<'_>) -> Option<&KeyBudget> {
        self.budget.as_deref().filter(|_| !take.algorithm.is_unlimited())
    }

    fn correct(&self, take: &Take<'_>, verdict: &Verdict) {
        if let Some(budget) = self.budget_of(take) {
            let in_use = take.algorithm.max_permits().saturating_sub(verdict.remaining);
            budget.correct(take, in_use.unsigned_abs());
        }
    }

    /// Finds room in the budget for the take at this place of the call.
    fn claim(&self, take: &Take<'_>, at: usize) -> Result<(), GateError> {
        let Some(budget) = self.budget_of(take) else { return Ok(()) };
        budget.claim(take).map_err(|retry_ms| GateError::TooManyKeys { retry_ms, take: at })
    }

    pub fn timeout_ms(&self) -> u64 {
        u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX)
    }

    /// Checks that Redis answers, in a cluster one of its servers.
    pub async fn ping(&self) -> Result<(), GateError> {
        in_time(self.timeout, self.connections.ask_any(&redis::cmd("PING"))).await
    }

    pub async fn ping_all(&self) -> Result<(), GateError> {
        in_time(self.timeout, self.connections.ping()).await
    }

    /// The same limiters at a fixed time, for tests.
    pub fn at(&self, now_us: i64) -> Self {
        Self { time: LimiterTime::Fixed(now_us), ..self.clone() }
    }

    /// The same limiters, by the database's time while the server's clock is wrong.
    pub fn with_clock(self, clock: Arc<DatabaseClock>) -> Self {
        Self { time: LimiterTime::Database(clock), ..self }
    }

    /// Takes permits from all limiters or from none.
    ///
    /// Takes whose slots share a hash tag are one script, which checks all before it counts any. Other takes are asked in order, each
    /// within the time-out. When a later one refuses or fails, the permits of earlier ones are given back, unless this future is dropped.
    ///
    /// # Errors
    /// `InvalidRequest` and `TooManyKeys`: nothing was taken. Other errors: permits may have been taken.
    pub async fn acquire(&self, takes: &[Take<'_>]) -> Result<AcquireReply, GateError> {
        takes.iter().enumerate().try_for_each(|(at, take)| self.claim(take, at))?;
        let mut reply = AcquireReply { granted: true, verdicts: vec![None; takes.len()] };
        for group in self.groups(takes) {
            let verdicts = self.acquire_group(takes, &group).await;
            let granted = verdicts.as_ref().is_ok_and(|verdicts| verdicts.iter().all(|verdict| verdict.granted));
            if !granted && let Err(error) = self.give_back(takes, &reply).await {
                // They come back with their window or lease. Until then the limiter grants too few, never too many.
                tracing::debug!(%error, "permits of a refused call were not given back");
            }
            for (index, verdict) in group.into_iter().zip(verdicts?) {
                self.correct(&takes[index], &verdict);
                reply.verdicts[index] = Some(verdict);
            }
            if !granted {
                reply.granted = false;
                break;
            }
        }
        Ok(reply)
    }

    /// Gives back the permits of a granted reply that the limiters still count.
    pub async fn give_back(&self, takes: &[Take<'_>], reply: &AcquireReply) -> Result<(), GateError> {
        if !reply.granted {
            return Ok(());
        }
        for group in self.groups(takes) {
            let taken = group.iter().filter_map(|index| Some((&takes[*index], reply.verdicts[*index]?)));
            let taken: Vec<(&Take<'_>, Verdict)> = taken.filter(|(take, _)| !take.algorithm.is_unlimited()).collect();
            if taken.is_empty() {
                continue;
            }
            let slot = taken[0].0.slot;
            let mut call = self.call(scripts::GIVE_BACK.of(taken.iter().map(|(take, _)| take.algorithm.kind())));
            for (take, Verdict { receipt: Receipt { mark, detail }, .. }) in taken {
                self.add_take(&mut call, take).arg(mark).arg(detail);
            }
            self.invoke::<Vec<i64>>(slot, &call).await?;
        }
        Ok(())
    }

    /// Gives back all permits of a lease. Returns `false` when the lease had ended or was given back before.
    pub async fn release(&self, slot: &SlotKey, algorithm: &Algorithm, lease: Uuid) -> Result<bool, GateError> {
        if !algorithm.keeps_leases() {
            return Ok(false);
        }
        let mut call = self.call(scripts::GIVE_BACK.of(std::iter::once(algorithm.kind())));
        let take = Take { slot, algorithm, permits: 1, lease: Some(lease), has_line: false };
        self.add_take(&mut call, &take).arg(0).arg(0);
        Ok(self.invoke::<Vec<i64>>(slot, &call).await?.contains(&1))
    }

    /// The indices of takes that one script can check together.
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

    async fn acquire_group(&self, takes: &[Take<'_>], group: &[usize]) -> Result<Vec<Verdict>, GateError> {
        let takes = || group.iter().map(|index| &takes[*index]);
        let limited = || takes().filter(|take| !take.algorithm.is_unlimited());
        let mut verdicts = Vec::new();
        if let Some(first) = limited().next() {
            let mut call = self.call(scripts::ACQUIRE.of(limited().map(|take| take.algorithm.kind())));
            for take in limited() {
                self.add_take(&mut call, take.checked()?).arg(u8::from(take.has_line));
            }
            for take in limited().filter(|take| take.has_line) {
                let [line, permits, _asked] = self.keys.line(take.slot);
                call.key(line).key(permits);
            }
            let reply: Vec<i64> = timed("acquire", self.invoke(first.slot, &call)).await?;
            let (code, rest) = reply.split_first().ok_or(MALFORMED)?;
            verdicts = match AcquireCode::from_repr(*code).ok_or(MALFORMED)? {
                AcquireCode::InvalidRequest => return Err(GateError::InvalidRequest),
                AcquireCode::Granted | AcquireCode::Refused => read_verdicts(rest, limited().count())?,
            };
        }
        let mut verdicts = verdicts.into_iter();
        let verdict_of = |take: &Take<'_>| {
            if take.algorithm.is_unlimited() { Ok(Verdict::UNLIMITED) } else { verdicts.next().ok_or(MALFORMED) }
        };
        takes().map(verdict_of).collect()
    }

    /// Runs a script about limiters with the hash tag of this slot. The time-out includes connecting and loading a missing script.
    async fn invoke<T: FromRedisValue>(&self, slot: &SlotKey, call: &ScriptInvocation<'_>) -> Result<T, GateError> {
        let mut connection = self.connections.of_key(|| self.keys.slot_tag(slot));
        in_time(self.timeout, call.invoke_async(&mut connection)).await
    }

    /// Begins a call with the argument that all limiter scripts have first: the time.
    fn call(&self, script: &'static Script) -> ScriptInvocation<'static> {
        let mut call = script.prepare_invoke();
        call.arg(self.time.argument());
        call
    }

    /// Adds the key of a limiter, and the arguments that all scripts take for it.
    fn add_take<'a>(
        &self,
        call: &'a mut ScriptInvocation<'static>,
        take: &Take<'_>,
    ) -> &'a mut ScriptInvocation<'static> {
        let kind = take.algorithm.kind();
        call.key(self.keys.limiter(take.slot, kind)).arg(kind.as_str()).arg(take.permits);
        for parameter in take.algorithm.arguments() {
            call.arg(parameter);
        }
        call.arg(take.lease.map(|lease| lease.to_string()).unwrap_or_default())
    }
}

async fn in_time<T>(limit: Duration, call: impl Future<Output = RedisResult<T>>) -> Result<T, GateError> {
    match timeout(limit, call).await {
        Ok(reply) => Ok(reply?),
        Err(_) => Err(GateError::Unreachable(io::Error::from(io::ErrorKind::TimedOut).into())),
    }
}

const MALFORMED: GateError = GateError::Malformed("a limiter's script");

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
