//! Fills Redis with a sale from PostgreSQL under a new epoch (protocol, rule 11). Every step goes to the same run of the server.

use std::borrow::Cow;

use redis::cmd;

use super::server_runs::{ServerRuns, has_no_master};
use super::{Gate, GateError, scripts};
use seckill_domain::ids::{Epoch, OrderId, Shard, WaveId};
use seckill_domain::sale::Sale;
use seckill_domain::shards::SaleShards;
use seckill_domain::stock::Stock;
use seckill_runtime::die_at;

pub struct TicketRow {
    pub order: OrderId,
    pub user: String,
    pub units: i64,
    pub kind: PutKind,
    pub lapsed_at_ms: Option<i64>,
}

/// The ticket's kind at the shard that it is put into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutKind {
    Live,
    Ended,
    Borrowed(Shard),
    /// Its units are here, and its buyer has another home shard.
    Lent,
    LentEnded,
}

impl PutKind {
    /// The word of put_tickets.lua.
    fn word(self) -> Cow<'static, str> {
        match self {
            Self::Live => "h".into(),
            Self::Ended => "t".into(),
            Self::Borrowed(lender) => format!("b{}", lender.0).into(),
            Self::Lent => "l".into(),
            Self::LentEnded => "e".into(),
        }
    }
}

/// Tickets in one call of put_tickets.lua. It takes about a millisecond, and purchases of other sales wait meanwhile.
const TICKETS_A_CALL: usize = 125;

impl Gate {
    pub async fn delete_sale(&self, of: SaleShards) -> Result<(), GateError> {
        for shard in of.count.all() {
            let keys = self.keys.sale(of, shard);
            let mut unlink = cmd("UNLINK");
            unlink.arg(&keys.lasting()).arg(&keys.limits);
            unlink.query_async::<()>(&mut self.connections.of(&keys.sale)).await?;
        }
        Ok(())
    }
}

impl ServerRuns {
    /// Stops selling at this epoch, and deletes nothing.
    ///
    /// # Errors
    /// A server of the sale is away. Then nothing was closed, unless it went away during this call.
    pub async fn close(&self, of: SaleShards, epoch: Epoch) -> Result<(), GateError> {
        if self.run_id(of).is_none() {
            return Err(has_no_master());
        }
        for shard in of.count.all() {
            self.begin_with(of, shard, epoch, "close").await?;
        }
        Ok(())
    }

    /// Deletes the sale and starts to fill it. `false`: a shard has this epoch already, or a newer one.
    pub async fn begin(&self, of: SaleShards, epoch: Epoch) -> Result<bool, GateError> {
        for shard in of.count.all() {
            if !self.begin_with(of, shard, epoch, "").await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn begin_with(&self, of: SaleShards, shard: Shard, epoch: Epoch, mode: &str) -> Result<bool, GateError> {
        let keys = self.gate.keys.sale(of, shard);
        let mut call = scripts::BEGIN_REFILL.prepare_invoke();
        call.key(&keys.lasting()).arg(epoch.0).arg(mode);
        Ok(call.invoke_async::<i64>(&mut self.connection_of(&keys.sale)?).await? == 1)
    }

    /// Puts tickets back at a shard, oldest first. `false`: another refill has taken over. In a sale with passes, each ticket has spent a
    /// pass of a buyer of this home shard.
    pub async fn put_tickets(
        &self,
        of: SaleShards,
        shard: Shard,
        epoch: Epoch,
        rows: &[TicketRow],
    ) -> Result<bool, GateError> {
        let keys = self.gate.keys.sale(of, shard);
        let mut connection = self.connection_of(&keys.sale)?;
        for rows in rows.chunks(TICKETS_A_CALL) {
            let mut call = scripts::PUT_TICKETS.prepare_invoke();
            call.key(&keys.lasting()).arg(epoch.0).arg(u8::from(of.asks_pass)).arg(rows.len());
            for TicketRow { order, user, units, kind, lapsed_at_ms } in rows {
                call.arg(order.to_string()).arg(user).arg(*units).arg(&*kind.word()).arg(lapsed_at_ms.unwrap_or(0));
            }
            if call.invoke_async::<i64>(&mut connection).await? != 1 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens the sale with these waves and this stock, which is dealt out to the shards. `version` is the catalogue's at which the ledger
    /// has these terms. `false`: another refill has taken over.
    pub async fn open(
        &self,
        sale: &Sale,
        version: i64,
        epoch: Epoch,
        stock: Stock,
        waves: &[WaveId],
    ) -> Result<bool, GateError> {
        let of = sale.sharding();
        for shard in of.count.all() {
            let stock = of.count.part_of(stock, sale.per_user, shard);
            let keys = self.gate.keys.sale(of, shard);
            let mut call = scripts::OPEN_SALE.prepare_invoke();
            call.key(&keys.lasting()).arg(epoch.0).arg(sale.status.as_str()).arg(stock.as_i64()).arg(waves.len());
            for wave in waves {
                call.arg(wave.to_string());
            }
            call.arg("state_version").arg(version);
            call.arg("starts_at_ms").arg(sale.starts_at_ms).arg("ends_at_ms").arg(sale.ends_at_ms);
            call.arg("key").arg(&sale.purchase_key).arg("per_user").arg(sale.per_user.get());
            call.arg("min_level").arg(sale.min_level).arg("pay_within_ms").arg(sale.pay_within_ms);
            if sale.terms_version != 0 {
                call.arg("terms_version").arg(sale.terms_version);
            }
            if call.invoke_async::<i64>(&mut self.connection_of(&keys.sale)?).await? != 1 {
                return Ok(false);
            }
            die_at!("refill.shard_opened");
        }
        Ok(true)
    }
}
