//! Fills Redis with a sale from PostgreSQL under a new epoch, and decides when a server may sell (protocol, rules 10
//! and 11).
//!
//! A refill uses one connection that never reconnects, so that every step reaches the server whose run_id was read.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value, cmd};

use super::holds::{TicketKind, is_done};
use super::{Gate, GateError};
use crate::domain::ids::{Epoch, OrderId, SaleId, Shard, WaveId};
use crate::domain::sale::{Sale, SaleStatus, Stock};

/// A connection to one run of one server.
pub struct ServerRun {
    gate: Gate,
    connection: MultiplexedConnection,
    run_id: String,
}

/// A ticket to put back.
pub struct TicketRow {
    pub order: OrderId,
    pub user: String,
    pub units: i64,
    pub kind: TicketKind,
}

/// Tickets in one call of put_tickets.lua, which takes no more.
const TICKETS_A_CALL: usize = 500;

impl Gate {
    /// Makes a connection that never reconnects, with a longer time-out than a purchase has.
    pub(super) async fn connect_once(&self) -> Result<MultiplexedConnection, GateError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeouts.connect))
            .set_response_timeout(Some(self.timeouts.response * 10));
        Ok(self.client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    /// Deletes a sale from Redis; for sales that ended long ago.
    pub async fn delete_sale(&self, sale: SaleId) -> Result<(), GateError> {
        let keys = self.keys.sale(sale, Shard::HOME);
        let mut unlink = cmd("UNLINK");
        unlink
            .arg(keys.sale)
            .arg(keys.tickets)
            .arg(keys.buyers)
            .arg(keys.unconfirmed)
            .arg(keys.holders)
            .arg(keys.waves);
        unlink.arg(&keys.limits);
        Ok(unlink.query_async::<()>(&mut self.connection.clone()).await?)
    }

    /// Connects to the server and reads its run_id.
    pub async fn connect_to_run(&self) -> Result<ServerRun, GateError> {
        let mut connection = self.connect_once().await?;
        let info: String = cmd("INFO").arg("server").query_async(&mut connection).await?;
        let run_id = info_value(&info, "run_id:").ok_or(GateError::Malformed("INFO server"))?.to_owned();
        Ok(ServerRun { gate: self.clone(), connection, run_id })
    }
}

impl ServerRun {
    /// The run_id of the server, which changes with every start.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Whether reserve.lua is loaded, so that this server may sell.
    pub async fn is_reserve_loaded(&mut self) -> Result<bool, GateError> {
        let mut exists = cmd("SCRIPT");
        exists.arg("EXISTS").arg(self.gate.scripts.reserve.get_hash());
        let loaded: Vec<bool> = exists.query_async(&mut self.connection).await?;
        Ok(loaded == [true])
    }

    /// Loads reserve.lua, so that this server may sell. Call it only when every sale on this server is complete.
    pub async fn load_reserve(&mut self) -> Result<(), GateError> {
        self.gate.scripts.reserve.prepare_invoke().load_async(&mut self.connection).await?;
        Ok(())
    }

    /// The epoch and status of each sale on this server; `None` for a sale that this server does not serve.
    pub async fn sale_states(&mut self, sales: &[SaleId]) -> Result<Vec<Option<(Epoch, SaleStatus)>>, GateError> {
        if sales.is_empty() {
            return Ok(Vec::new());
        }
        let mut reads = redis::pipe();
        for sale in sales {
            let key = self.gate.keys.sale(*sale, Shard::HOME).sale;
            reads.cmd("HMGET").arg(key).arg(&["epoch", "state", "replid"]);
        }
        let info: String = cmd("INFO").arg("replication").query_async(&mut self.connection).await?;
        let replid = info_value(&info, "master_replid:").ok_or(GateError::Malformed("INFO replication"))?;
        type Row = (Option<i64>, Option<String>, Option<String>);
        let rows: Vec<Row> = reads.query_async(&mut self.connection).await?;
        let state_of = |(epoch, state, filled_as): Row| {
            // "filling" is not a status. A sale filled on another master, or before a promotion, counts as lost.
            let status = state?.parse().ok()?;
            (filled_as.as_deref() == Some(replid)).then_some((Epoch(epoch?), status))
        };
        Ok(rows.into_iter().map(state_of).collect())
    }

    /// Stops selling at this epoch, and keeps what the server holds.
    pub async fn close(&mut self, sale: SaleId, epoch: Epoch) -> Result<(), GateError> {
        self.begin_with(sale, epoch, "close").await.map(drop)
    }

    /// Deletes the sale and starts to fill it. Returns `false` when the server has this epoch already, or a newer one.
    pub async fn begin(&mut self, sale: SaleId, epoch: Epoch) -> Result<bool, GateError> {
        self.begin_with(sale, epoch, "").await
    }

    async fn begin_with(&mut self, sale: SaleId, epoch: Epoch, mode: &str) -> Result<bool, GateError> {
        let keys = self.gate.keys.sale(sale, Shard::HOME);
        let mut call = self.gate.scripts.begin_refill.prepare_invoke();
        call.key(keys.sale).key(keys.tickets).key(keys.buyers).key(keys.unconfirmed).key(keys.holders).key(keys.waves);
        call.arg(epoch.0).arg(mode);
        Ok(is_done(&call.invoke_async::<Value>(&mut self.connection).await?))
    }

    /// Puts tickets back, oldest first. Returns `false` when another refill has taken over.
    pub async fn put_tickets(&mut self, sale: SaleId, epoch: Epoch, rows: &[TicketRow]) -> Result<bool, GateError> {
        let keys = self.gate.keys.sale(sale, Shard::HOME);
        for rows in rows.chunks(TICKETS_A_CALL) {
            let mut call = self.gate.scripts.put_tickets.prepare_invoke();
            call.key(&keys.sale).key(&keys.tickets).key(&keys.buyers).key(&keys.holders);
            call.arg(epoch.0).arg(rows.len());
            for TicketRow { order, user, units, kind } in rows {
                call.arg(order.to_string()).arg(user).arg(*units).arg(kind.letter());
            }
            if !is_done(&call.invoke_async::<Value>(&mut self.connection).await?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens the sale with this stock, which contains these waves. Returns `false` when another refill has taken over.
    pub async fn open(&mut self, sale: &Sale, epoch: Epoch, stock: Stock, waves: &[WaveId]) -> Result<bool, GateError> {
        let keys = self.gate.keys.sale(sale.id, Shard::HOME);
        let mut call = self.gate.scripts.open_sale.prepare_invoke();
        call.key(keys.sale).key(keys.waves).arg(epoch.0).arg(sale.status.as_str()).arg(stock.as_i64()).arg(waves.len());
        for wave in waves {
            call.arg(wave.to_string());
        }
        call.arg("starts_at_ms").arg(sale.starts_at_ms).arg("ends_at_ms").arg(sale.ends_at_ms);
        call.arg("key").arg(&sale.purchase_key).arg("per_user").arg(sale.per_user.get());
        call.arg("min_level").arg(sale.min_level).arg("pay_within_ms").arg(sale.pay_within_ms);
        Ok(is_done(&call.invoke_async::<Value>(&mut self.connection).await?))
    }
}

/// The value of a line of INFO.
fn info_value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
