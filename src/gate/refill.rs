//! Filling a sale's Redis from PostgreSQL, under a new epoch, and the fence that keeps a forgetful server shut.
//!
//! Everything here goes over one connection that never reconnects, so that it speaks to one and the same server from
//! the reading of its run_id to the end (protocol, rules 10 and 11).

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value, cmd};

use super::holds::{TicketKind, agreed};
use super::{Gate, GateError};
use crate::domain::ids::{Epoch, OrderId, SaleId, Shard, WaveId};
use crate::domain::sale::{Sale, SaleStatus, Stock};

/// A connection to one server, by its run_id.
pub struct ServerRun {
    gate: Gate,
    connection: MultiplexedConnection,
    run_id: String,
}

/// A ticket to put back: its order, buyer, units, and whether it still holds them.
pub type TicketRow = (OrderId, String, i64, TicketKind);

/// Tickets that go into one call of put_tickets.
const TICKETS_A_CALL: usize = 500;

impl Gate {
    /// A connection that never reconnects, for steps that may take longer than a purchase.
    pub(super) async fn patient_connection(&self) -> Result<MultiplexedConnection, GateError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeouts.connect))
            .set_response_timeout(Some(self.timeouts.response * 10));
        Ok(self.client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    /// Throws away what this server keeps of a sale that is long over.
    pub async fn forget(&self, sale: SaleId) -> Result<(), GateError> {
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

    /// Connects to the server and learns which one it is.
    pub async fn fence(&self) -> Result<ServerRun, GateError> {
        let mut connection = self.patient_connection().await?;
        let info: String = cmd("INFO").arg("server").query_async(&mut connection).await?;
        let run_id = field(&info, "run_id:").ok_or(GateError::Malformed("INFO server"))?.to_owned();
        Ok(ServerRun { gate: self.clone(), connection, run_id })
    }
}

impl ServerRun {
    /// The server's run_id, new at every start.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Whether this server has been let sell.
    pub async fn is_loaded(&mut self) -> Result<bool, GateError> {
        let mut exists = cmd("SCRIPT");
        exists.arg("EXISTS").arg(self.gate.scripts.reserve.get_hash());
        let loaded: Vec<bool> = exists.query_async(&mut self.connection).await?;
        Ok(loaded == [true])
    }

    /// Lets this server sell: only after all that it holds is known to be whole.
    pub async fn load(&mut self) -> Result<(), GateError> {
        self.gate.scripts.reserve.prepare_invoke().load_async(&mut self.connection).await?;
        Ok(())
    }

    /// How each of these sales stands on this server: its epoch and state, or `None` when it is not served.
    pub async fn standings(&mut self, sales: &[SaleId]) -> Result<Vec<Option<(Epoch, SaleStatus)>>, GateError> {
        if sales.is_empty() {
            return Ok(Vec::new());
        }
        let mut all = redis::pipe();
        for sale in sales {
            let key = self.gate.keys.sale(*sale, Shard::HOME).sale;
            all.cmd("HMGET").arg(key).arg(&["epoch", "state", "replid"]);
        }
        let info: String = cmd("INFO").arg("replication").query_async(&mut self.connection).await?;
        let replid = field(&info, "master_replid:").ok_or(GateError::Malformed("INFO replication"))?;
        type Row = (Option<i64>, Option<String>, Option<String>);
        let rows: Vec<Row> = all.query_async(&mut self.connection).await?;
        let standing = |(epoch, state, filled_as): Row| {
            // "filling" is no status of a sale; what was filled on another master, or before a promotion, counts as lost
            let status = state?.parse().ok()?;
            (filled_as.as_deref() == Some(replid)).then_some((Epoch(epoch?), status))
        };
        Ok(rows.into_iter().map(standing).collect())
    }

    /// Stops selling at this epoch; what is held stays.
    pub async fn close(&mut self, sale: SaleId, epoch: Epoch) -> Result<(), GateError> {
        self.begin_with(sale, epoch, "close").await.map(drop)
    }

    /// Forgets the sale and starts a fill; `false` when the server has this epoch already, or a newer one.
    pub async fn begin(&mut self, sale: SaleId, epoch: Epoch) -> Result<bool, GateError> {
        self.begin_with(sale, epoch, "").await
    }

    async fn begin_with(&mut self, sale: SaleId, epoch: Epoch, how: &str) -> Result<bool, GateError> {
        let keys = self.gate.keys.sale(sale, Shard::HOME);
        let mut call = self.gate.scripts.begin_refill.prepare_invoke();
        call.key(keys.sale).key(keys.tickets).key(keys.buyers).key(keys.unconfirmed).key(keys.holders).key(keys.waves);
        call.arg(epoch.0).arg(how);
        Ok(agreed(&call.invoke_async::<Value>(&mut self.connection).await?))
    }

    /// Puts tickets back, oldest first; `false` when another fill has taken over.
    pub async fn put_tickets(&mut self, sale: SaleId, epoch: Epoch, rows: &[TicketRow]) -> Result<bool, GateError> {
        let keys = self.gate.keys.sale(sale, Shard::HOME);
        for rows in rows.chunks(TICKETS_A_CALL) {
            let mut call = self.gate.scripts.put_tickets.prepare_invoke();
            call.key(&keys.sale).key(&keys.tickets).key(&keys.buyers).key(&keys.holders);
            call.arg(epoch.0).arg(rows.len());
            for (order, user, units, kind) in rows {
                let kind = if *kind == TicketKind::Live { "h" } else { "t" };
                call.arg(order.to_string()).arg(user).arg(*units).arg(kind);
            }
            if !agreed(&call.invoke_async::<Value>(&mut self.connection).await?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens the sale with what is left, these waves in it; `false` when another fill has taken over.
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
        Ok(agreed(&call.invoke_async::<Value>(&mut self.connection).await?))
    }
}

/// A line of INFO.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
