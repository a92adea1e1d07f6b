//! Reads the replies of reserve.lua.

use redis::{FromRedisValue, Value};
use strum::FromRepr;
use uuid::Uuid;

use super::GateError;
use super::reply_codes::{ReserveCode, SaleCode};
use crate::domain::admission::{Admission, Hold};
use crate::domain::ids::{Epoch, OrderId, Shard};

/// What the caller may conclude from the holders that it knows after a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, FromRepr)]
#[repr(i64)]
pub(super) enum Memory {
    /// There are holders that it does not know.
    SomeHolders = 0,
    AllHolders = 1,
    /// It knows all holders, and may remember that nobody else gets a unit.
    SoldOut = 2,
}

/// One reply of reserve.lua.
pub(super) struct ReserveReply {
    pub epoch: Epoch,
    pub memory: Memory,
    pub holders_known: usize,
    pub new_holders: Vec<String>,
    /// One for each request, in order.
    pub admissions: Vec<Admission>,
}

impl ReserveReply {
    /// Returns `None` when the server does not serve the sale.
    pub fn read(reply: Vec<Value>, requests: usize) -> Result<Option<Self>, GateError> {
        if let [code] = &reply[..] {
            let code = i64::from_redis_value_ref(code).ok().and_then(SaleCode::from_repr).ok_or(MALFORMED)?;
            return match code {
                SaleCode::UnknownSale | SaleCode::Refilling => Ok(None),
            };
        }
        let mut values = reply.into_iter();
        let epoch = Epoch(next(&mut values)?);
        let _now_ms: i64 = next(&mut values)?;
        let memory = Memory::from_repr(next(&mut values)?).ok_or(MALFORMED)?;
        let holders_known = next(&mut values)?;
        let new_holders = next(&mut values)?;
        let mut admissions = Vec::with_capacity(requests);
        for _ in 0..requests {
            let (code, detail): (i64, String) = (next(&mut values)?, next(&mut values)?);
            let code = ReserveCode::from_repr(code).ok_or(MALFORMED)?;
            admissions.push(admission(code, &detail, epoch).ok_or(MALFORMED)?);
        }
        Ok(Some(Self { epoch, memory, holders_known, new_holders, admissions }))
    }
}

const MALFORMED: GateError = GateError::Malformed("reserve");

fn next<T: FromRedisValue>(values: &mut impl Iterator<Item = Value>) -> Result<T, GateError> {
    values.next().and_then(|v| T::from_redis_value(v).ok()).ok_or(MALFORMED)
}

/// `None` when the detail cannot be read.
fn admission(code: ReserveCode, detail: &str, epoch: Epoch) -> Option<Admission> {
    let hold = Hold { epoch, shard: Shard::HOME };
    Some(match code {
        ReserveCode::Reserved => Admission::Reserved { hold, expires_at_ms: detail.parse().ok()? },
        ReserveCode::Repeat => Admission::Repeat { hold: detail.starts_with('u').then_some(hold) },
        ReserveCode::RepeatEnded => Admission::RepeatEnded,
        ReserveCode::Mismatch => Admission::Mismatch,
        ReserveCode::AtLimit => Admission::AtLimit { newest: Uuid::try_parse(detail).ok().map(OrderId) },
        ReserveCode::NotStarted => Admission::NotStarted,
        ReserveCode::Ended => Admission::Ended,
        ReserveCode::WrongKey => Admission::WrongKey,
        ReserveCode::LevelTooLow => Admission::LevelTooLow,
        ReserveCode::PassInvalid => Admission::PassInvalid,
        ReserveCode::SoldOut | ReserveCode::TooFewLeft => Admission::SoldOut,
        ReserveCode::Limited => {
            let (limit, retry_ms) = detail.split_once('|')?;
            Admission::Limited { limit: limit.parse().ok()?, retry_ms: retry_ms.parse().ok()? }
        }
        ReserveCode::Paused => Admission::Paused,
        ReserveCode::Lapsed => Admission::Lapsed { retry_ms: detail.parse().ok()? },
        // `Units` is at least 1, so that the script never says this.
        ReserveCode::BadUnits => return None,
    })
}
