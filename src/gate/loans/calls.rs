//! The calls about loans. Each works on one shard, and names the epoch under which the loan was written.

use crate::gate::servers::Connections;
use redis::Value;

use crate::domain::admission::ReserveRequest;
use crate::domain::ids::{Epoch, OrderId, Shard};
use crate::domain::shards::SaleShards;
use crate::gate::reply_codes::{BarCode, LendCode, MoveCode};
use crate::gate::{Gate, GateError, timed};

/// A loan as a question names it.
pub(super) struct Asked<'a> {
    pub request: &'a ReserveRequest,
    pub number: i64,
}

/// What a lender has answered.
pub(super) enum Lent {
    /// For each loan, whether its units are held until then; and for how long this shard puts no unit on sale (0: not known).
    Answered { epoch: Epoch, expires_at_ms: i64, empty_ms: u64, held: Vec<bool> },
    /// Nothing was held: the shard does not serve, or has another epoch, or is not open.
    NotLending,
}

/// What became of a loan that its lender has refused.
pub(super) enum Moved {
    /// The home shard has given units of its own.
    Reserved,
    Borrow {
        number: i64,
    },
    /// The home shard has too few, and has taken the loan back.
    Empty,
    /// It is another loan by now.
    Lost,
    /// The sale is paused or closed, and the loan is taken back.
    NotOpen,
}

/// What a lender has under a loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barred {
    /// Nothing, and nothing will be there under this number.
    Nothing,
    Held,
    /// The order has ended.
    Ended,
}

const ID_CALLS: usize = 500;

impl Gate {
    /// Asks a lender. Each loan is asked for once, by the request that has written it: no caller repeats this, and no library (docs/shards.md).
    /// After an error, whether units are held is unknown.
    pub(super) async fn lend(
        &self,
        connections: &Connections,
        of: SaleShards,
        lender: Shard,
        (epoch, now_ms, empty_ms): (Epoch, i64, u64),
        loans: &[Asked<'_>],
    ) -> Result<Lent, GateError> {
        let keys = self.keys.sale(of, lender);
        let mut call = self.scripts.lend.prepare_invoke();
        call.key(&keys.lasting());
        call.arg(epoch.0).arg(empty_ms).arg(now_ms).arg(loans.len());
        for Asked { request, number } in loans {
            call.arg(request.order.to_string()).arg(request.user.as_str()).arg(request.units.get()).arg(*number);
        }
        let reply: Vec<Value> = timed("lend", call.invoke_async(&mut connections.of(&keys.sale))).await?;
        let [Value::Int(epoch), Value::Int(expires_at_ms), Value::Int(empty_ms), Value::BulkString(codes)] = &reply[..]
        else {
            return self.refused(of, &reply, "lend").map(|()| Lent::NotLending);
        };
        let held = |code: &u8| LendCode::from_repr((*code).into()).map(|code| code == LendCode::Held);
        let held: Option<Vec<bool>> = codes.iter().map(held).collect();
        let held = held.filter(|held| held.len() == loans.len()).ok_or(GateError::Malformed("lend"))?;
        let empty_ms = u64::try_from(*empty_ms).unwrap_or(0);
        Ok(Lent::Answered { epoch: Epoch(*epoch), expires_at_ms: *expires_at_ms, empty_ms, held })
    }

    /// Goes on at the home shard with loans whose lenders have said no, each with the next lender to ask (`None`: nobody). Returns
    /// until when units that were taken are held, and what became of each; `None` when nothing was changed.
    pub(super) async fn move_loans(
        &self,
        connections: &Connections,
        of: SaleShards,
        home: Shard,
        (epoch, now_ms): (Epoch, i64),
        loans: &[(Asked<'_>, Option<Shard>)],
    ) -> Result<Option<(i64, Vec<Moved>)>, GateError> {
        const MALFORMED: GateError = GateError::Malformed("move_loan");
        let keys = self.keys.sale(of, home);
        let mut call = self.scripts.move_loan.prepare_invoke();
        call.key(&keys.lasting()).arg(epoch.0).arg(now_ms).arg(u8::from(of.asks_pass)).arg(loans.len());
        for (Asked { request, number }, next) in loans {
            call.arg(request.order.to_string()).arg(*number).arg(next.map_or(-1, |shard| shard.0));
        }
        let reply: Vec<Value> = timed("move_loan", call.invoke_async(&mut connections.of(&keys.sale))).await?;
        let [Value::Int(_), Value::Int(expires_at_ms), Value::BulkString(codes), Value::Array(numbers)] = &reply[..]
        else {
            return self.refused(of, &reply, "move_loan").map(|()| None);
        };
        let mut numbers = numbers.iter();
        let mut moved = Vec::with_capacity(loans.len());
        for code in codes {
            moved.push(match MoveCode::from_repr((*code).into()).ok_or(MALFORMED)? {
                MoveCode::Reserved => Moved::Reserved,
                MoveCode::SoldOut | MoveCode::TooFewLeft => Moved::Empty,
                MoveCode::Lost => Moved::Lost,
                MoveCode::NotOpen => Moved::NotOpen,
                MoveCode::Borrow => match numbers.next() {
                    Some(Value::Int(number)) => Moved::Borrow { number: *number },
                    _ => return Err(MALFORMED),
                },
            });
        }
        if moved.len() == loans.len() { Ok(Some((*expires_at_ms, moved))) } else { Err(MALFORMED) }
    }

    /// Asks a lender which of these orders it holds units for, and changes nothing; `None` when it does not serve at this epoch.
    pub(super) async fn look_at_loans(
        &self,
        of: SaleShards,
        lender: Shard,
        epoch: Epoch,
        orders: impl Iterator<Item = OrderId>,
    ) -> Result<Option<Vec<Barred>>, GateError> {
        const ONLY_ASK: i64 = -1;
        self.bar_loans(of, lender, epoch, &orders.map(|order| (order, ONLY_ASK)).collect::<Vec<_>>()).await
    }

    /// Bars loans of dead requests at their lender, by order id and number; `None` when it does not serve at this epoch.
    pub async fn bar_loans(
        &self,
        of: SaleShards,
        lender: Shard,
        epoch: Epoch,
        loans: &[(OrderId, i64)],
    ) -> Result<Option<Vec<Barred>>, GateError> {
        const MALFORMED: GateError = GateError::Malformed("bar_loan");
        let keys = self.keys.sale(of, lender);
        let mut found = Vec::with_capacity(loans.len());
        for loans in loans.chunks(ID_CALLS) {
            let mut call = self.scripts.bar_loan.prepare_invoke();
            call.key(&keys.lasting()).arg(epoch.0);
            for (order, number) in loans {
                call.arg(order.to_string()).arg(*number);
            }
            let reply: Vec<Value> = call.invoke_async(&mut self.connections.of(&keys.sale)).await?;
            let [Value::Int(_), Value::BulkString(codes)] = &reply[..] else {
                return self.refused(of, &reply, "bar_loan").map(|()| None);
            };
            for code in codes {
                found.push(match BarCode::from_repr((*code).into()).ok_or(MALFORMED)? {
                    BarCode::Barred => Barred::Nothing,
                    BarCode::Held => Barred::Held,
                    BarCode::Ended => Barred::Ended,
                });
            }
        }
        if found.len() == loans.len() { Ok(Some(found)) } else { Err(MALFORMED) }
    }

    /// Takes back loans whose numbers are barred. Returns how many: others are other loans by now.
    pub async fn take_back_loans(
        &self,
        of: SaleShards,
        home: Shard,
        epoch: Epoch,
        loans: &[(OrderId, i64)],
    ) -> Result<i64, GateError> {
        let (keys, mut done) = (self.keys.sale(of, home), 0);
        for loans in loans.chunks(ID_CALLS) {
            let mut call = self.scripts.take_back_loan.prepare_invoke();
            call.key(&keys.lasting()).arg(epoch.0);
            for (order, number) in loans {
                call.arg(order.to_string()).arg(*number);
            }
            match call.invoke_async::<Vec<i64>>(&mut self.connections.of(&keys.sale)).await?[..] {
                [_, taken_back] => done += taken_back,
                [_] => break,
                _ => return Err(GateError::Malformed("take_back_loan")),
            }
        }
        Ok(done)
    }

    /// Closes the loans of purchases that have a record. Does nothing for what is no open loan.
    pub async fn close_loans(&self, of: SaleShards, home: Shard, orders: &[OrderId]) -> Result<(), GateError> {
        let keys = self.keys.sale(of, home);
        for orders in orders.chunks(ID_CALLS) {
            let mut call = self.scripts.close_loan.prepare_invoke();
            call.key(&keys.lasting()).arg(u8::from(of.asks_pass));
            for order in orders {
                call.arg(order.to_string());
            }
            timed("close_loan", call.invoke_async::<i64>(&mut self.connections.of(&keys.sale))).await?;
        }
        Ok(())
    }

    /// Reads the reply `{code}` of a script that has changed nothing, and asks for a refill where the sale may need one.
    fn refused(&self, of: SaleShards, reply: &[Value], script: &'static str) -> Result<(), GateError> {
        match reply {
            [Value::Int(-2..=-1)] => self.refill_wanted.add(of.sale),
            [Value::Int(-3)] => {}
            _ => return Err(GateError::Malformed(script)),
        }
        Ok(())
    }
}
