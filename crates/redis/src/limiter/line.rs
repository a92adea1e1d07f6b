//! Waiting in line for the permits of one limiter (lua/wait_in_line.lua).

use std::time::Duration;

use uuid::Uuid;

use super::{Limiter, MALFORMED, Take, read_verdicts};
use crate::reply_codes::WaitCode;
use crate::{GateError, scripts, timed};
use seckill_domain::limiter::{SlotKey, Verdict};

/// The most waiters of one key.
pub const LINE_MAX: u32 = 100_000;

#[derive(Debug, Clone, Copy)]
pub struct Waiter {
    /// The same in all calls of one wait.
    pub id: Uuid,
    pub is_new: bool,
    /// How long the caller will still wait: shorter with each call.
    pub patience: Duration,
    /// The most waiters in the line, up to `LINE_MAX`.
    pub line_max: u32,
    pub pauses: Pauses,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// The pause of the first in line for leases, which may be given back at any moment. The second in line pauses twice as long.
    pub shortest: Duration,
    /// Every waiter calls after this time, to keep its place.
    pub longest: Duration,
}

/// The answer to a waiter. In a line, position 1 is next, and a waiter that does not ask again loses its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Granted(Verdict),
    Wait { position: i64, ask_again: Duration },
    TooLate(Verdict),
    LineFull(Verdict),
}

impl Limiter {
    /// Takes permits in the order of arrival. Call it again with the same id until the turn is not `Wait`.
    ///
    /// A line is for one limiter: over several, a waiter would keep permits of one limiter while it waits for another. A caller without
    /// a place says `has_line` in `acquire`, and is refused while others wait.
    ///
    /// # Errors
    /// As for `acquire`.
    pub async fn wait_in_line(&self, take: &Take<'_>, waiter: &Waiter) -> Result<Turn, GateError> {
        if take.algorithm.is_unlimited() {
            return Ok(Turn::Granted(Verdict::UNLIMITED));
        }
        if waiter.is_new {
            self.claim(take, 0)?;
        }
        let mut call = self.call(scripts::WAIT_IN_LINE.of(std::iter::once(take.algorithm.kind())));
        self.add_take(&mut call, take.checked()?);
        let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        call.key(&self.keys.line(take.slot)[..]);
        call.arg(waiter.id.to_string()).arg(microseconds(waiter.patience)).arg(waiter.line_max.min(LINE_MAX));
        call.arg(microseconds(waiter.pauses.shortest)).arg(microseconds(waiter.pauses.longest));
        let reply: Vec<i64> = timed("wait_in_line", self.invoke(take.slot, &call)).await?;
        let (code, rest) = reply.split_first().ok_or(MALFORMED)?;
        let verdict = |rest: &[i64]| read_verdicts(rest.get(2..).ok_or(MALFORMED)?, 1)?.pop().ok_or(MALFORMED);
        Ok(match WaitCode::from_repr(*code).ok_or(MALFORMED)? {
            WaitCode::InvalidRequest => return Err(GateError::InvalidRequest),
            WaitCode::Wait => {
                let [position, ask_again_ms, ..] = *rest else { return Err(MALFORMED) };
                Turn::Wait { position, ask_again: Duration::from_millis(ask_again_ms.max(1).unsigned_abs()) }
            }
            WaitCode::Granted => {
                let verdict = verdict(rest)?;
                self.correct(take, &verdict);
                Turn::Granted(verdict)
            }
            WaitCode::TooLate => Turn::TooLate(verdict(rest)?),
            WaitCode::LineFull => Turn::LineFull(verdict(rest)?),
        })
    }

    /// Gives up a place in line. Returns `false` when there was none.
    pub async fn leave_line(&self, slot: &SlotKey, waiter: Uuid) -> Result<bool, GateError> {
        let mut call = scripts::LEAVE_LINE.prepare_invoke();
        call.key(&self.keys.line(slot)[..]).arg(waiter.to_string());
        Ok(self.invoke::<i64>(slot, &call).await? == 1)
    }
}
