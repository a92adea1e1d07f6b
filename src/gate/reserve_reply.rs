//! `reserve`'s replies, read. The codes are listed in lua/reserve.lua.

use redis::{FromRedisValue, Value};
use uuid::Uuid;

use super::GateError;
use crate::domain::admission::{Admission, Hold, Limit};
use crate::domain::ids::{Epoch, OrderId, Shard};

/// One reply of `reserve`.
pub struct ReserveReply {
    pub epoch: Epoch,
    /// Whether "sold out" may be remembered, and the holders learnt with it.
    pub may_remember: bool,
    pub holders_known: usize,
    pub new_holders: Vec<String>,
    /// One for each ask, in order.
    pub admissions: Vec<Admission>,
}

impl ReserveReply {
    /// `None` when the server does not serve the sale.
    pub fn read(reply: Vec<Value>, asks: usize) -> Result<Option<Self>, GateError> {
        if reply.len() == 1 {
            return Ok(None);
        }
        let mut values = reply.into_iter();
        let epoch = Epoch(next(&mut values)?);
        let _now_ms: i64 = next(&mut values)?;
        let may_remember = next::<i64>(&mut values)? == 1;
        let holders_known = next(&mut values)?;
        let new_holders = next(&mut values)?;
        let mut admissions = Vec::with_capacity(asks);
        for _ in 0..asks {
            let (code, detail): (i64, String) = (next(&mut values)?, next(&mut values)?);
            admissions.push(admission(code, &detail, epoch).ok_or(MALFORMED)?);
        }
        Ok(Some(Self { epoch, may_remember, holders_known, new_holders, admissions }))
    }
}

const MALFORMED: GateError = GateError::Malformed("reserve");

fn next<T: FromRedisValue>(values: &mut impl Iterator<Item = Value>) -> Result<T, GateError> {
    values.next().and_then(|v| T::from_redis_value(v).ok()).ok_or(MALFORMED)
}

fn admission(code: i64, detail: &str, epoch: Epoch) -> Option<Admission> {
    let hold = Hold { epoch, shard: Shard::HOME };
    Some(match code {
        0 => Admission::Reserved { hold, expires_at_ms: detail.parse().ok()? },
        1 => Admission::Repeat { hold: detail.starts_with('u').then_some(hold) },
        2 => Admission::RepeatEnded,
        3 => Admission::Mismatch,
        4 => Admission::AtLimit { newest: Uuid::try_parse(detail).ok().map(OrderId) },
        5 => Admission::NotStarted,
        6 => Admission::Ended,
        7 => Admission::WrongKey,
        8 => Admission::LevelTooLow,
        9 | 10 => Admission::SoldOut,
        11 => {
            let (name, retry_ms) = detail.split_once('|')?;
            let limit = Limit::ALL.into_iter().find(|l| l.as_str() == name)?;
            Admission::Limited { limit, retry_ms: retry_ms.parse().ok()? }
        }
        12 => Admission::Paused,
        _ => return None,
    })
}
