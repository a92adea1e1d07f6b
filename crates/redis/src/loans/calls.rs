//! The calls about loans. Each works on one shard, and names the epoch under which the loan was written.

use redis::{Script, ScriptInvocation, Value};

use crate::keys::SaleKeys;
use crate::reply_codes::{BarCode, LendCode, MoveCode};
use crate::servers::Connections;
use crate::{Gate, GateError, scripts, timed};
use seckill_domain::admission::ReserveRequest;
use seckill_domain::ids::{Epoch, OrderId, Shard};
use seckill_domain::shards::SaleShards;

pub(super) struct LoanRequest<'a> {
    pub(crate) request: &'a ReserveRequest,
    pub(crate) number: i64,
}

pub(super) struct LendReply {
    pub(crate) expires_at_ms: i64,
    /// How long this shard puts no unit on sale; 0: unknown.
    pub(crate) empty_ms: u64,
    /// Whether the units of each loan are held.
    pub(crate) held: Vec<bool>,
}

const ID_CALLS: usize = 500;
/// A loan number for `bar_loans` that bars nothing.
pub(super) const ONLY_ASK: i64 = -1;

impl Gate {
    /// Asks a lender; `None` when nothing was held. The request that has written a loan asks for it once, and never repeats the call
    /// (docs/scale.md). After an error, it is unknown whether units are held.
    pub(super) async fn lend(
        &self,
        connections: &Connections,
        of: SaleShards,
        lender: Shard,
        (epoch, now_ms, empty_ms): (Epoch, i64, u64),
        loans: &[LoanRequest<'_>],
    ) -> Result<Option<LendReply>, GateError> {
        let keys = self.keys.sale(of, lender);
        let mut call = scripts::LEND.prepare_invoke();
        call.key(&keys.lasting());
        call.arg(epoch.0).arg(empty_ms).arg(now_ms).arg(loans.len());
        for LoanRequest { request, number } in loans {
            call.arg(request.order.to_string()).arg(request.user.as_str()).arg(request.units.get()).arg(*number);
        }
        let reply: Vec<Value> = timed("lend", call.invoke_async(&mut connections.of(&keys.sale))).await?;
        let [Value::Int(_), Value::Int(expires_at_ms), Value::Int(empty_ms), Value::BulkString(codes)] = &reply[..]
        else {
            return self.refused(of, &reply, "lend");
        };
        let held = |code: &u8| LendCode::from_repr((*code).into()).map(|code| code == LendCode::Held);
        let held: Option<Vec<bool>> = codes.iter().map(held).collect();
        let held = held.filter(|held| held.len() == loans.len()).ok_or(GateError::Malformed("lend"))?;
        Ok(Some(LendReply { expires_at_ms: *expires_at_ms, empty_ms: u64::try_from(*empty_ms).unwrap_or(0), held }))
    }

    /// Goes on at the home shard with refused loans, each with the next lender to ask, if any. Returns when holds of units that were
    /// taken expire, and what became of each loan, with the number of a new one. `None` when nothing was changed.
    pub(super) async fn move_loans(
        &self,
        connections: &Connections,
        of: SaleShards,
        home: Shard,
        (epoch, now_ms): (Epoch, i64),
        loans: &[(LoanRequest<'_>, Option<Shard>)],
    ) -> Result<Option<(i64, Vec<(MoveCode, Option<i64>)>)>, GateError> {
        const MALFORMED: GateError = GateError::Malformed("move_loan");
        let keys = self.keys.sale(of, home);
        let mut call = scripts::MOVE_LOAN.prepare_invoke();
        call.key(&keys.lasting()).arg(epoch.0).arg(now_ms).arg(u8::from(of.asks_pass)).arg(loans.len());
        for (LoanRequest { request, number }, next) in loans {
            call.arg(request.order.to_string()).arg(*number).arg(next.map_or(-1, |shard| shard.0));
        }
        let reply: Vec<Value> = timed("move_loan", call.invoke_async(&mut connections.of(&keys.sale))).await?;
        let [Value::Int(_), Value::Int(expires_at_ms), Value::BulkString(codes), Value::Array(numbers)] = &reply[..]
        else {
            return self.refused(of, &reply, "move_loan");
        };
        let mut numbers = numbers.iter();
        let mut moved = Vec::with_capacity(loans.len());
        for code in codes {
            let code = MoveCode::from_repr((*code).into()).ok_or(MALFORMED)?;
            let number = match (code, if code == MoveCode::Borrow { numbers.next() } else { None }) {
                (MoveCode::Borrow, Some(Value::Int(number))) => Some(*number),
                (MoveCode::Borrow, _) => return Err(MALFORMED),
                _ => None,
            };
            moved.push((code, number));
        }
        if moved.len() == loans.len() { Ok(Some((*expires_at_ms, moved))) } else { Err(MALFORMED) }
    }

    /// Bars loans of dead requests at their lender, by order id and number; `None` when it does not serve at this epoch.
    pub async fn bar_loans(
        &self,
        of: SaleShards,
        lender: Shard,
        epoch: Epoch,
        loans: &[(OrderId, i64)],
    ) -> Result<Option<Vec<BarCode>>, GateError> {
        const MALFORMED: GateError = GateError::Malformed("bar_loan");
        let keys = self.keys.sale(of, lender);
        let mut found = Vec::with_capacity(loans.len());
        for loans in loans.chunks(ID_CALLS) {
            let call = call_about(&scripts::BAR_LOAN, &keys, epoch, loans);
            let reply: Vec<Value> = call.invoke_async(&mut self.connections.of(&keys.sale)).await?;
            let [Value::Int(_), Value::BulkString(codes)] = &reply[..] else {
                return self.refused(of, &reply, "bar_loan");
            };
            for code in codes {
                found.push(BarCode::from_repr((*code).into()).ok_or(MALFORMED)?);
            }
        }
        if found.len() == loans.len() { Ok(Some(found)) } else { Err(MALFORMED) }
    }

    /// Takes back loans whose numbers are barred. Returns how many: the others have another number now.
    pub async fn take_back_loans(
        &self,
        of: SaleShards,
        home: Shard,
        epoch: Epoch,
        loans: &[(OrderId, i64)],
    ) -> Result<i64, GateError> {
        let (keys, mut done) = (self.keys.sale(of, home), 0);
        for loans in loans.chunks(ID_CALLS) {
            let call = call_about(&scripts::TAKE_BACK_LOAN, &keys, epoch, loans);
            match call.invoke_async::<Vec<i64>>(&mut self.connections.of(&keys.sale)).await?[..] {
                [_, taken_back] => done += taken_back,
                [_] => break,
                _ => return Err(GateError::Malformed("take_back_loan")),
            }
        }
        Ok(done)
    }

    /// Closes the open loans of purchases that have a record. A second call does nothing.
    pub async fn close_loans(&self, of: SaleShards, home: Shard, orders: &[OrderId]) -> Result<(), GateError> {
        let keys = self.keys.sale(of, home);
        for orders in orders.chunks(ID_CALLS) {
            let mut call = scripts::CLOSE_LOAN.prepare_invoke();
            call.key(&keys.lasting()).arg(u8::from(of.asks_pass));
            for order in orders {
                call.arg(order.to_string());
            }
            timed("close_loan", call.invoke_async::<i64>(&mut self.connections.of(&keys.sale))).await?;
        }
        Ok(())
    }

    /// Reads the reply `{code}` of a script that has changed nothing.
    fn refused<T>(&self, of: SaleShards, reply: &[Value], script: &'static str) -> Result<Option<T>, GateError> {
        let [Value::Int(code)] = reply else { return Err(GateError::Malformed(script)) };
        if *code != LendCode::NotLending as i64 {
            self.not_serving(of.sale, *code, script)?;
        }
        Ok(None)
    }
}

fn call_about(
    script: &'static Script,
    keys: &SaleKeys,
    epoch: Epoch,
    loans: &[(OrderId, i64)],
) -> ScriptInvocation<'static> {
    let mut call = script.prepare_invoke();
    call.key(&keys.lasting()).arg(epoch.0);
    for (order, number) in loans {
        call.arg(order.to_string()).arg(*number);
    }
    call
}
