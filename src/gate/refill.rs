//! Fills Redis with a sale from PostgreSQL under a new epoch (protocol, rule 11). Every step reaches the run of the server whose run_id was
//! read.

use std::borrow::Cow;

use redis::{Value, cmd, pipe};

use super::holds::is_done;
use super::keys::SaleKeys;
use super::server_runs::{SALES_A_CALL, ServerRuns, has_no_master};
use super::{Gate, GateError};
use crate::die_at;
use crate::domain::ids::{Epoch, OrderId, Shard, WaveId};
use crate::domain::sale::Sale;
use crate::domain::shards::SaleShards;
use crate::domain::stock::Stock;

/// A ticket to put back.
pub struct TicketRow {
    pub order: OrderId,
    pub user: String,
    pub units: i64,
    pub kind: PutKind,
    pub lapsed_at_ms: Option<i64>,
}

/// What a ticket is at the shard that it is put into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutKind {
    /// Its units are here.
    Live,
    Ended,
    /// Its units are at this lender.
    Borrowed(Shard),
    /// Its units are here, and its buyer has another home.
    Lent,
    /// Lent; ended.
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

/// Tickets in one call of put_tickets.lua. A call takes about a millisecond, in which purchases of other sales wait.
const TICKETS_A_CALL: usize = 125;

impl Gate {
    /// Deletes a sale from Redis; for sales that ended long ago.
    pub async fn delete_sale(&self, of: SaleShards) -> Result<(), GateError> {
        for shard in of.count.all() {
            self.delete_shard(of, shard).await?;
        }
        Ok(())
    }

    async fn delete_shard(&self, of: SaleShards, shard: Shard) -> Result<(), GateError> {
        let keys = self.keys.sale(of, shard);
        let mut unlink = cmd("UNLINK");
        unlink.arg(&keys.lasting()).arg(&keys.limits);
        Ok(unlink.query_async::<()>(&mut self.connections.of(&keys.sale)).await?)
    }
}

impl ServerRuns {
    /// Stops selling at this epoch, and keeps what the servers hold.
    ///
    /// # Errors
    /// A server of the sale is away; then nothing was closed, unless it went away meanwhile.
    pub async fn close(&self, of: SaleShards, epoch: Epoch) -> Result<(), GateError> {
        if self.run_id(of).is_none() {
            return Err(has_no_master());
        }
        for shard in of.count.all() {
            self.begin_with(of, shard, epoch, "close").await?;
        }
        Ok(())
    }

    /// Deletes all shards of these sales that lie on servers which evict keys: UNLINK is carried out also where memory is full.
    pub async fn delete_where_evicted(&self, sales: &[SaleShards]) -> Result<(), GateError> {
        for (place, mut connection) in self.evicting() {
            let shards = sales.iter().flat_map(|of| of.count.all().map(move |shard| self.gate.keys.sale(*of, shard)));
            let there: Vec<SaleKeys> = shards.filter(|keys| self.is_at(place, &keys.sale)).collect();
            for some in there.chunks(SALES_A_CALL) {
                let mut unlinks = pipe();
                some.iter().for_each(|keys| _ = unlinks.unlink(&keys.lasting()).ignore());
                unlinks.query_async::<()>(&mut connection).await?;
            }
        }
        Ok(())
    }

    /// Deletes the sale and starts to fill it. Returns `false` when this epoch is there already, or a newer one, at any shard.
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
        let mut call = self.gate.scripts.begin_refill.prepare_invoke();
        call.key(&keys.lasting()).arg(epoch.0).arg(mode);
        Ok(is_done(&call.invoke_async::<Value>(&mut self.connection_of(&keys.sale)?).await?))
    }

    /// Puts tickets back at a shard, oldest first. In a sale that asks for passes, each buyer at home there has spent one with each.
    /// Returns `false` when another refill has taken over.
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
            let mut call = self.gate.scripts.put_tickets.prepare_invoke();
            call.key(&keys.lasting()).arg(epoch.0).arg(u8::from(of.asks_pass)).arg(rows.len());
            for TicketRow { order, user, units, kind, lapsed_at_ms } in rows {
                call.arg(order.to_string()).arg(user).arg(*units).arg(&*kind.word()).arg(lapsed_at_ms.unwrap_or(0));
            }
            if !is_done(&call.invoke_async::<Value>(&mut connection).await?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens the sale with this stock, which contains these waves, and is dealt out to the shards. Returns `false` when another refill has
    /// taken over. `version` is the catalogue's version at which the ledger has these terms.
    pub async fn open(
        &self,
        sale: &Sale,
        version: i64,
        epoch: Epoch,
        stock: Stock,
        waves: &[WaveId],
    ) -> Result<bool, GateError> {
        let (of, lot) = (sale.sharding(), sale.per_user);
        for shard in of.count.all() {
            let part = of.count.part_of(stock, lot, shard);
            if !self.open_shard(sale, shard, version, epoch, part, waves).await? {
                return Ok(false);
            }
            die_at!("refill.shard_opened");
        }
        Ok(true)
    }

    async fn open_shard(
        &self,
        sale: &Sale,
        shard: Shard,
        version: i64,
        epoch: Epoch,
        stock: Stock,
        waves: &[WaveId],
    ) -> Result<bool, GateError> {
        let keys = self.gate.keys.sale(sale.sharding(), shard);
        let mut call = self.gate.scripts.open_sale.prepare_invoke();
        call.key(&keys.lasting()).arg(epoch.0).arg(sale.status.as_str()).arg(stock.as_i64()).arg(waves.len());
        for wave in waves {
            call.arg(wave.to_string());
        }
        call.arg("state_version").arg(version);
        call.arg("starts_at_ms").arg(sale.starts_at_ms).arg("ends_at_ms").arg(sale.ends_at_ms);
        call.arg("key").arg(&sale.purchase_key).arg("per_user").arg(sale.per_user.get());
        call.arg("min_level").arg(sale.min_level).arg("pay_within_ms").arg(sale.pay_within_ms);
        Ok(is_done(&call.invoke_async::<Value>(&mut self.connection_of(&keys.sale)?).await?))
    }
}
