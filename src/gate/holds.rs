//! Confirms, releases and lists the holds of a sale.

use redis::{RedisResult, Value, pipe};
use uuid::Uuid;

use super::refill::SALES_A_CALL;
use super::reply_codes::SaleCode;
use super::{Gate, GateError, timed};
use crate::domain::ids::{Epoch, OrderId, SaleId, Shard, WaveId};
use crate::domain::order::HoldRelease;

/// Whether the hold of a ticket is live or has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(const_into_str)]
pub enum TicketKind {
    #[strum(serialize = "h")]
    Live,
    #[strum(serialize = "t")]
    Ended,
}

impl TicketKind {
    /// The letter that stands for it in Redis.
    pub(super) const fn letter(self) -> &'static str {
        self.into_str()
    }
}

/// What Redis keeps of an order: `KIND|UNITS|USER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTicket {
    pub kind: TicketKind,
    pub units: i64,
    pub user: String,
}

impl StoredTicket {
    pub(super) fn parse(text: &str) -> Result<Self, GateError> {
        let mut parts = text.splitn(3, '|');
        let mut next = || parts.next().ok_or(MALFORMED);
        let kind = next()?.parse().map_err(|_| MALFORMED)?;
        let units = next()?.parse().map_err(|_| MALFORMED)?;
        Ok(Self { kind, units, user: next()?.to_owned() })
    }
}

/// A hold whose purchase row is not known to be committed.
#[derive(Debug, Clone)]
pub struct Unconfirmed {
    pub order: OrderId,
    pub user: String,
    pub units: i64,
    pub epoch: Epoch,
}

impl Gate {
    /// Takes orders whose rows are committed off the unconfirmed list (rule 5).
    pub async fn confirm(&self, sale: SaleId, shard: Shard, orders: &[OrderId]) -> Result<(), GateError> {
        let keys = self.keys.sale(sale, shard);
        let mut id = Uuid::encode_buffer();
        for orders in orders.chunks(1000) {
            let mut call = self.scripts.confirm.prepare_invoke();
            call.key(keys.unconfirmed.as_str());
            for order in orders {
                call.arg(&*order.0.hyphenated().encode_lower(&mut id));
            }
            timed("confirm", call.invoke_async::<i64>(&mut self.connection.clone())).await?;
        }
        Ok(())
    }

    /// Ends holds (rule 9). Returns the epoch at which the server did so.
    pub async fn release(&self, sale: SaleId, shard: Shard, holds: &[HoldRelease]) -> Result<Epoch, GateError> {
        let keys = self.keys.sale(sale, shard);
        let mut call = self.scripts.release.prepare_invoke();
        call.key(keys.sale).key(keys.tickets).key(keys.buyers).key(keys.unconfirmed).arg(holds.len());
        for hold in holds {
            call.arg(hold.order.to_string()).arg(i32::from(hold.returns_units)).arg(hold.lapsed_at_ms.unwrap_or(0));
        }
        self.epoch_of(sale, &timed("release", call.invoke_async::<Vec<i64>>(&mut self.connection.clone())).await?)
    }

    /// Puts the units of a wave up for sale, once an epoch. Returns the epoch at which the server did so.
    pub async fn release_wave(&self, sale: SaleId, wave: WaveId, units: i64) -> Result<Epoch, GateError> {
        let keys = self.keys.sale(sale, Shard::HOME);
        let mut call = self.scripts.release_wave.prepare_invoke();
        call.key(keys.sale).key(keys.waves).arg(wave.to_string()).arg(units);
        self.epoch_of(sale, &timed("release_wave", call.invoke_async::<Vec<i64>>(&mut self.connection.clone())).await?)
    }

    /// The epoch in the reply of a script that needs a sale to be served.
    fn epoch_of(&self, sale: SaleId, reply: &[i64]) -> Result<Epoch, GateError> {
        match *reply {
            [epoch, _done] => Ok(Epoch(epoch)),
            [code] => match SaleCode::from_repr(code).ok_or(GateError::Malformed("release"))? {
                SaleCode::UnknownSale | SaleCode::Refilling => {
                    self.refill_wanted.add(sale);
                    Err(GateError::NotServing)
                }
            },
            _ => Err(GateError::Malformed("release")),
        }
    }

    /// Those of these sales that have unconfirmed holds, or of which that cannot be read.
    pub async fn maybe_unconfirmed(&self, sales: &[SaleId]) -> Result<Vec<SaleId>, GateError> {
        let mut found = Vec::new();
        for sales in sales.chunks(SALES_A_CALL) {
            let mut reads = pipe();
            for sale in sales {
                reads.cmd("ZCARD").arg(self.keys.sale(*sale, Shard::HOME).unconfirmed);
            }
            let counts: Vec<RedisResult<i64>> = reads.ignore_errors().query_async(&mut self.connection.clone()).await?;
            found.extend(sales.iter().zip(counts).filter(|(_, count)| !matches!(count, Ok(0))).map(|(sale, _)| *sale));
        }
        Ok(found)
    }

    /// The holds that have been unconfirmed for longer than `age_ms`, oldest first, at most `limit`. `now_ms` is the
    /// database's time.
    pub async fn unconfirmed_since(
        &self,
        sale: SaleId,
        shard: Shard,
        age_ms: i64,
        now_ms: i64,
        limit: usize,
    ) -> Result<Vec<Unconfirmed>, GateError> {
        let keys = self.keys.sale(sale, shard);
        let mut call = self.scripts.read_unconfirmed.prepare_invoke();
        call.key(keys.sale).key(keys.tickets).key(keys.unconfirmed).arg(age_ms).arg(limit).arg(now_ms);
        let reply: Vec<String> = call.invoke_async(&mut self.connection.clone()).await?;
        let Some((epoch, rows)) = reply.split_first() else { return Ok(Vec::new()) };
        let epoch = Epoch(epoch.parse().map_err(|_| MALFORMED)?);
        let hold = |row: &[String]| {
            let [order, ticket] = row else { return Err(MALFORMED) };
            let StoredTicket { units, user, .. } = StoredTicket::parse(ticket)?;
            Ok(Unconfirmed { order: order_id(order)?, user, units, epoch })
        };
        rows.chunks(2).map(hold).collect()
    }
}

const MALFORMED: GateError = GateError::Malformed("a read of tickets");

pub(super) fn order_id(text: &str) -> Result<OrderId, GateError> {
    Uuid::try_parse(text).map(OrderId).map_err(|_| MALFORMED)
}

/// Whether a script that replies 1 or 0 has replied 1.
pub(super) fn is_done(reply: &Value) -> bool {
    matches!(reply, Value::Int(1))
}
