//! Waiting in line for the permits of one limiter (lua/wait_in_line.lua).

use std::time::Duration;

use uuid::Uuid;

use super::{Limiter, MALFORMED, Take, one_verdict};
use crate::domain::limiter::{SlotKey, Verdict};
use crate::gate::reply_codes::WaitCode;
use crate::gate::{GateError, timed};

/// The most waiters of one key.
pub const LINE_MAX: u32 = 100_000;

/// A day: more than any policy allows, and exact in Lua.
const PATIENCE_MAX_US: u64 = 86_400_000_000;

/// A caller that waits in line.
#[derive(Debug, Clone, Copy)]
pub struct Waiter {
    /// The same in all calls of one wait.
    pub id: Uuid,
    /// Whether this is the first call of the wait.
    pub is_new: bool,
    /// How long the caller will still wait: shorter with each call.
    pub patience: Duration,
    /// The most waiters in the line, up to `LINE_MAX`.
    pub line_max: u32,
    pub pauses: Pauses,
}

/// The pauses between a waiter's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// For leases, which may be given back at any moment: the pause of the first in line. The second one's is twice as long, and
    /// so on.
    pub shortest: Duration,
    /// After this time, every waiter calls, to keep its place.
    pub longest: Duration,
}

/// The answer to a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Granted(Verdict),
    /// Position 1 is next. A waiter that does not ask again soon after this time loses its place.
    Wait {
        position: i64,
        ask_again: Duration,
    },
    /// The time is over, and the place is given up.
    TooLate(Verdict),
    /// The line has no room.
    LineFull(Verdict),
}

impl Limiter {
    /// Takes permits in the order of arrival. Call it again with the same id until the turn is not `Wait`.
    ///
    /// A line is for one limiter: over several, a waiter would keep the permits of one while it waits for another. A caller
    /// who does not wait says `has_line` in `acquire`, and is refused while others wait for the permits.
    ///
    /// # Errors
    ///
    /// As of `acquire`.
    pub async fn wait_in_line(&self, take: &Take<'_>, waiter: &Waiter) -> Result<Turn, GateError> {
        if take.algorithm.is_unlimited() {
            return Ok(Turn::Granted(Verdict::UNLIMITED));
        }
        if waiter.is_new {
            self.claim(take, 0)?;
        }
        let mut call = self.call(self.scripts.wait_in_line.of(std::iter::once(take.algorithm.kind())));
        self.add_take(&mut call, take.checked()?);
        let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(PATIENCE_MAX_US);
        call.key(&self.keys.line(take.slot)[..]);
        call.arg(waiter.id.to_string()).arg(microseconds(waiter.patience)).arg(waiter.line_max.min(LINE_MAX));
        call.arg(microseconds(waiter.pauses.shortest)).arg(microseconds(waiter.pauses.longest));
        let reply: Vec<i64> = timed("wait_in_line", self.invoke(take.slot, &call)).await?;
        let (code, rest) = reply.split_first().ok_or(MALFORMED)?;
        let verdict_in = |rest: &[i64]| match rest {
            [_position, _ask_again_ms, verdict @ ..] => one_verdict(verdict),
            _ => Err(MALFORMED),
        };
        match (WaitCode::from_repr(*code).ok_or(MALFORMED)?, rest) {
            (WaitCode::InvalidRequest, _) => Err(GateError::InvalidRequest),
            (WaitCode::Wait, [position, ask_again_ms, ..]) => {
                let ask_again = Duration::from_millis((*ask_again_ms).max(1).unsigned_abs());
                Ok(Turn::Wait { position: *position, ask_again })
            }
            (WaitCode::Wait, _) => Err(MALFORMED),
            (WaitCode::Granted, rest) => {
                let verdict = verdict_in(rest)?;
                self.correct(take, &verdict);
                Ok(Turn::Granted(verdict))
            }
            (WaitCode::TooLate, rest) => Ok(Turn::TooLate(verdict_in(rest)?)),
            (WaitCode::LineFull, rest) => Ok(Turn::LineFull(verdict_in(rest)?)),
        }
    }

    /// Gives up a place in line. Returns `false` when there was none.
    pub async fn leave_line(&self, slot: &SlotKey, waiter: Uuid) -> Result<bool, GateError> {
        let mut call = self.scripts.leave_line.prepare_invoke();
        call.key(&self.keys.line(slot)[..]).arg(waiter.to_string());
        Ok(self.invoke::<i64>(slot, &call).await? == 1)
    }
}
