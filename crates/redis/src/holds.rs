//! Confirms, releases and lists the holds of a sale.

use redis::{Cmd, FromRedisValue, Value};
use uuid::Uuid;

use super::server_runs::SALES_A_CALL;
use super::{Gate, GateError, scripts, timed};
use seckill_domain::ids::{Epoch, OrderId, SaleId, Shard, WaveId};
use seckill_domain::order::HoldRelease;
use seckill_domain::shards::SaleShards;

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString)]
pub enum TicketKind {
    /// A hold for a buyer of this home shard.
    #[strum(serialize = "h")]
    Live,
    /// A hold for a buyer of another home (protocol, rule 15).
    #[strum(serialize = "l")]
    Lent,
    /// At the home shard: the lender may hold the units.
    #[strum(serialize = "o")]
    OpenLoan,
    /// At the home shard: the lender holds the units.
    #[strum(serialize = "b")]
    ClosedLoan,
    /// Nothing, and no loan up to a number is given.
    #[strum(serialize = "x")]
    Barred,
    #[strum(serialize = "t")]
    Ended,
}

impl TicketKind {
    pub fn is_hold(self) -> bool {
        matches!(self, Self::Live | Self::Lent)
    }
}

/// `KIND|UNITS|USER`. A loan has `LENDER|` before the user, an open one `LENDER|NUMBER|`, a lent hold `NUMBER|`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTicket {
    pub kind: TicketKind,
    pub units: i64,
    pub user: String,
    pub lender: Option<Shard>,
    pub number: Option<i64>,
}

impl StoredTicket {
    pub(super) fn parse(text: &str) -> Result<Self, GateError> {
        let number = |text: &str| text.parse::<i64>().map_err(|_| MALFORMED);
        let (kind, mut rest) = text.split_once('|').ok_or(MALFORMED)?;
        let kind = kind.parse().map_err(|_| MALFORMED)?;
        if kind == TicketKind::Barred {
            return Ok(Self { kind, units: 0, user: String::new(), lender: None, number: Some(number(rest)?) });
        }
        // The rest after all numbers is the user, who may contain the separator.
        let mut next = || {
            let (text, after) = rest.split_once('|').ok_or(MALFORMED)?;
            rest = after;
            number(text)
        };
        let units = next()?;
        let lender = match kind {
            TicketKind::OpenLoan | TicketKind::ClosedLoan => Some(next()?),
            _ => None,
        };
        let lender = lender.map(|lender| lender.try_into().map(Shard)).transpose().map_err(|_| MALFORMED)?;
        let number = match kind {
            TicketKind::OpenLoan | TicketKind::Lent => Some(next()?),
            _ => None,
        };
        Ok(Self { kind, units, user: rest.to_owned(), lender, number })
    }
}

/// A hold or an open loan of a purchase without a confirmed record.
#[derive(Debug, Clone)]
pub struct UnconfirmedHold {
    pub order: OrderId,
    pub ticket: StoredTicket,
    pub epoch: Epoch,
}

#[derive(Debug, Clone, Copy)]
pub struct UnconfirmedPage {
    /// The least age of a hold, in ms.
    pub age_ms: u64,
    pub now_ms: i64,
    pub passed_over: usize,
    /// The most holds, 1 to 1,000.
    pub limit: usize,
}

/// Shards with unconfirmed holds or open loans, and shards that could not be read.
#[derive(Debug, Default)]
pub struct UnconfirmedShards {
    pub with_holds: Vec<(SaleShards, Shard)>,
    pub unread: Vec<(SaleShards, Shard)>,
}

#[derive(Debug)]
pub struct ReleaseReply {
    pub epoch: Epoch,
    /// In a sale with shards, the buyer of each order; empty for an unknown order.
    pub users: Vec<String>,
}

/// The upper bound of scores without the entry of begin_refill.lua.
pub(super) const BEFORE_MARK: &str = "(+inf";

impl Gate {
    /// Takes committed orders off the unconfirmed list (rule 5).
    pub async fn confirm(&self, of: SaleShards, shard: Shard, orders: &[OrderId]) -> Result<(), GateError> {
        let keys = self.keys.sale(of, shard);
        let mut id = Uuid::encode_buffer();
        for orders in orders.chunks(1000) {
            let mut call = scripts::CONFIRM.prepare_invoke();
            call.key(keys.unconfirmed.as_str());
            for order in orders {
                call.arg(&*order.0.hyphenated().encode_lower(&mut id));
            }
            timed("confirm", call.invoke_async::<i64>(&mut self.connections.of(&keys.sale))).await?;
        }
        Ok(())
    }

    /// Ends holds, or loans at their home shard (rule 9).
    pub async fn release(
        &self,
        of: SaleShards,
        shard: Shard,
        holds: &[HoldRelease],
    ) -> Result<ReleaseReply, GateError> {
        let keys = self.keys.sale(of, shard);
        let mut call = scripts::RELEASE.prepare_invoke();
        call.key(&keys.lasting()).arg(holds.len());
        for hold in holds {
            call.arg(hold.order.to_string()).arg(i32::from(hold.returns_units)).arg(hold.lapsed_at_ms.unwrap_or(0));
        }
        if !of.count.is_one() {
            call.arg(u8::from(of.asks_pass));
        }
        let reply: Vec<Value> = timed("release", call.invoke_async(&mut self.connections.of(&keys.sale))).await?;
        let (numbers, users) = reply.split_at(reply.len().min(2));
        let numbers: Vec<i64> = read_all(numbers)?;
        Ok(ReleaseReply { epoch: self.epoch_of(of.sale, &numbers)?, users: read_all(users)? })
    }

    /// Puts this shard's part of a wave up for sale, once an epoch. Returns the epoch.
    pub async fn release_wave(
        &self,
        of: SaleShards,
        shard: Shard,
        wave: WaveId,
        units: u64,
    ) -> Result<Epoch, GateError> {
        let keys = self.keys.sale(of, shard);
        let mut call = scripts::RELEASE_WAVE.prepare_invoke();
        call.key(&keys.lasting()).arg(wave.to_string()).arg(units);
        let reply: Vec<i64> = timed("release_wave", call.invoke_async(&mut self.connections.of(&keys.sale))).await?;
        self.epoch_of(of.sale, &reply)
    }

    /// The epoch in the reply of a script that needs a sale to be served.
    fn epoch_of(&self, sale: SaleId, reply: &[i64]) -> Result<Epoch, GateError> {
        match *reply {
            [epoch, _done] => Ok(Epoch(epoch)),
            [code] => {
                self.not_serving(sale, code, "release")?;
                Err(GateError::NotServing)
            }
            _ => Err(GateError::Malformed("release")),
        }
    }

    pub async fn maybe_unconfirmed(&self, shards: &[(SaleShards, Shard)]) -> Result<UnconfirmedShards, GateError> {
        let mut found = UnconfirmedShards::default();
        for shards in shards.chunks(SALES_A_CALL) {
            let count = |(of, shard): &(SaleShards, Shard)| {
                let key = self.keys.sale(*of, *shard).unconfirmed;
                let count = Cmd::zcount(&key, "-inf", BEFORE_MARK);
                (key, count)
            };
            let counts = self.connections.send_each::<i64>(shards.iter().map(count).collect()).await?;
            for (of, count) in shards.iter().zip(counts) {
                match count {
                    Ok(0) => {}
                    Ok(_) => found.with_holds.push(*of),
                    Err(_) => found.unread.push(*of),
                }
            }
        }
        Ok(found)
    }

    pub async fn unconfirmed_since(
        &self,
        of: SaleShards,
        shard: Shard,
        page: UnconfirmedPage,
    ) -> Result<Vec<UnconfirmedHold>, GateError> {
        let keys = self.keys.sale(of, shard);
        let mut call = scripts::READ_UNCONFIRMED.prepare_invoke();
        call.key(&keys.lasting()).arg(page.age_ms).arg(page.limit).arg(page.now_ms).arg(page.passed_over);
        let reply: Vec<String> = call.invoke_async(&mut self.connections.of(&keys.sale)).await?;
        let Some((epoch, rows)) = reply.split_first() else { return Ok(Vec::new()) };
        let epoch = Epoch(epoch.parse().map_err(|_| MALFORMED)?);
        let hold = |row: &[String]| {
            let [order, ticket] = row else { return Err(MALFORMED) };
            Ok(UnconfirmedHold { order: order_id(order)?, ticket: StoredTicket::parse(ticket)?, epoch })
        };
        rows.chunks(2).map(hold).collect()
    }
}

const MALFORMED: GateError = GateError::Malformed("a read of tickets");

pub(super) fn order_id(text: &str) -> Result<OrderId, GateError> {
    Uuid::try_parse(text).map(OrderId).map_err(|_| MALFORMED)
}

fn read_all<T: FromRedisValue>(values: &[Value]) -> Result<Vec<T>, GateError> {
    values.iter().map(|value| T::from_redis_value_ref(value).map_err(|_| MALFORMED)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_ticket_is_read_as_the_scripts_write_it() {
        let read = |text: &str| {
            let StoredTicket { kind, units, user, lender, number } = StoredTicket::parse(text).unwrap();
            (kind, units, user, lender, number)
        };
        for user in ["ann", "auth0|5f7c", "7|8|9", "|"] {
            let of_user = |ticket: &str| read(&format!("{ticket}|{user}"));
            let named = || user.to_owned();
            assert_eq!(of_user("h|2"), (TicketKind::Live, 2, named(), None, None));
            assert_eq!(of_user("l|2|7"), (TicketKind::Lent, 2, named(), None, Some(7)));
            assert_eq!(of_user("o|2|63|7"), (TicketKind::OpenLoan, 2, named(), Some(Shard(63)), Some(7)));
            assert_eq!(of_user("b|2|63"), (TicketKind::ClosedLoan, 2, named(), Some(Shard(63)), None));
            assert_eq!(of_user("t|2"), (TicketKind::Ended, 2, named(), None, None));
        }
        assert_eq!(read("x|7"), (TicketKind::Barred, 0, String::new(), None, Some(7)));
        for bad in ["", "h", "h|2", "q|2|ann", "h|two|ann", "o|2|ann", "o|2|3|ann", "b|2|-|ann"] {
            assert!(StoredTicket::parse(bad).is_err(), "{bad:?}");
        }
    }
}
