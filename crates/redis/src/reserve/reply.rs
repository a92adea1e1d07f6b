//! Reads the replies of reserve.lua.

use redis::{FromRedisValue, Value};
use strum::FromRepr;
use uuid::Uuid;

use crate::GateError;
use crate::reply_codes::{ReserveCode, SaleCode};
use seckill_domain::admission::Admission;
use seckill_domain::ids::{Epoch, OrderId, Shard};

/// What a thread may remember after a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, FromRepr)]
#[repr(i64)]
pub(super) enum Memory {
    /// It does not know all holders.
    SomeHolders = 0,
    AllHolders = 1,
    /// It knows all holders, and may remember "sold out" for all others.
    SoldOut = 2,
}

pub(super) struct ReserveReply {
    pub(crate) epoch: Epoch,
    pub(crate) memory: Memory,
    pub(crate) holders_known: usize,
    pub(crate) new_holders: Vec<String>,
    /// One for each request, in order.
    pub(crate) admissions: Vec<Admission>,
    /// The open loans, by the places of their requests.
    pub(crate) loans: Vec<(usize, Loan)>,
}

/// An open loan. Its request has no admission yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loan {
    /// This call has written it: the caller now asks its lender.
    Written { number: i64 },
    /// An earlier call has written it: the caller reads whether the lender holds the units.
    Found { lender: Shard },
}

impl ReserveReply {
    /// `None`: the server does not serve the sale.
    pub(crate) fn read(reply: Vec<Value>, requests: usize) -> Result<Option<Self>, GateError> {
        if let [code] = &reply[..] {
            i64::from_redis_value_ref(code).ok().and_then(SaleCode::from_repr).ok_or(MALFORMED)?;
            return Ok(None);
        }
        let mut values = reply.into_iter();
        let epoch = Epoch(next(&mut values)?);
        let _now_ms: i64 = next(&mut values)?;
        let memory = Memory::from_repr(next(&mut values)?).ok_or(MALFORMED)?;
        let holders_known = next(&mut values)?;
        let new_holders = next(&mut values)?;
        let expires_at_ms = next(&mut values)?;
        let Some(Value::BulkString(codes)) = values.next() else { return Err(MALFORMED) };
        let details: Vec<(usize, String)> = next(&mut values)?;
        if codes.len() != requests {
            return Err(MALFORMED);
        }
        let mut details = details.into_iter().peekable();
        let (mut admissions, mut loans) = (Vec::with_capacity(requests), Vec::new());
        for (place, code) in codes.into_iter().enumerate() {
            let detail = details.next_if(|(of, _)| *of == place);
            let detail = detail.as_ref().map_or("", |(_, text)| text.as_str());
            let code = ReserveCode::from_repr(code.into()).ok_or(MALFORMED)?;
            match code {
                ReserveCode::Borrow => {
                    loans.push((place, Loan::Written { number: detail.parse().map_err(|_| MALFORMED)? }));
                }
                ReserveCode::OpenLoan => {
                    let lender = detail.split_once('|').and_then(|(lender, _)| lender.parse().ok()).ok_or(MALFORMED)?;
                    loans.push((place, Loan::Found { lender: Shard(lender) }));
                }
                _ => {}
            }
            admissions.push(admission(code, detail, expires_at_ms).ok_or(MALFORMED)?);
        }
        Ok(Some(Self { epoch, memory, holders_known, new_holders, admissions, loans }))
    }
}

const MALFORMED: GateError = GateError::Malformed("reserve");

fn next<T: FromRedisValue>(values: &mut impl Iterator<Item = Value>) -> Result<T, GateError> {
    values.next().and_then(|v| T::from_redis_value(v).ok()).ok_or(MALFORMED)
}

/// `None` when the detail cannot be read.
fn admission(code: ReserveCode, detail: &str, expires_at_ms: i64) -> Option<Admission> {
    Some(match code {
        ReserveCode::Reserved => Admission::Reserved { expires_at_ms },
        ReserveCode::Repeat => Admission::Repeat { confirmed: detail == "c" },
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
        ReserveCode::OpenLoan | ReserveCode::UnderWay | ReserveCode::Borrow => Admission::UnderWay,
        ReserveCode::Paused => Admission::Paused,
        ReserveCode::Lapsed => Admission::Lapsed { retry_ms: detail.parse().ok()? },
        // `Units` is at least 1: the script never replies this.
        ReserveCode::BadUnits => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use seckill_domain::admission::Limit;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    /// A reply about buyers with these codes and details.
    fn reply(codes: &[u8], details: &[(i64, &str)]) -> Vec<Value> {
        let details = details.iter().flat_map(|(place, detail)| [Value::Int(*place), text(detail)]).collect();
        let [epoch, now_ms, memory, known, expires_at_ms] = [3, 1000, 1, 2, 5000].map(Value::Int);
        let holders = Value::Array(vec![text("ann"), text("ben")]);
        vec![
            epoch,
            now_ms,
            memory,
            known,
            holders,
            expires_at_ms,
            Value::BulkString(codes.to_vec()),
            Value::Array(details),
        ]
    }

    #[test]
    fn each_buyer_gets_the_code_and_the_detail_of_its_place() {
        let order = "01890000-0000-7000-8000-000000000001";
        let details = [(1, "u"), (2, order), (4, "address|250"), (5, "c")];
        let read = ReserveReply::read(reply(&[0, 1, 4, 9, 11, 1], &details), 6).unwrap().unwrap();
        assert_eq!((read.epoch, read.memory, read.holders_known), (Epoch(3), Memory::AllHolders, 2));
        assert_eq!(read.new_holders, ["ann", "ben"]);
        let newest = Uuid::try_parse(order).ok().map(OrderId);
        assert_eq!(
            read.admissions,
            [
                Admission::Reserved { expires_at_ms: 5000 },
                Admission::Repeat { confirmed: false },
                Admission::AtLimit { newest },
                Admission::SoldOut,
                Admission::Limited { limit: Limit::Address, retry_ms: 250 },
                Admission::Repeat { confirmed: true },
            ]
        );
    }

    #[test]
    fn loans_are_told_by_their_places() {
        let read = ReserveReply::read(reply(&[9, 18, 16, 17], &[(1, "7"), (2, "3|5")]), 4).unwrap().unwrap();
        assert_eq!(read.loans, [(1, Loan::Written { number: 7 }), (2, Loan::Found { lender: Shard(3) })]);
        assert_eq!(read.admissions[1..], [const { Admission::UnderWay }; 3]);
    }

    #[test]
    fn a_reply_of_another_form_is_malformed() {
        let refused = |values, requests| ReserveReply::read(values, requests).is_err();
        assert!(refused(reply(&[0], &[]), 2), "a code is missing");
        assert!(refused(reply(&[99], &[]), 1), "there is no such code");
        assert!(refused(reply(&[11], &[]), 1), "it does not say which limit");
        assert!(refused(vec![Value::Int(-99)], 1));
        assert!(ReserveReply::read(vec![Value::Int(-2)], 1).unwrap().is_none(), "the sale is being refilled");
    }
}
