//! Fills Redis with a sale from PostgreSQL under a new epoch, and decides when a server may sell (protocol, rules 10
//! and 11).
//!
//! A refill uses one connection that never reconnects, so that every step reaches the server whose run_id was read.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult, Value, cmd};

use super::holds::{TicketKind, is_done};
use super::{Gate, GateError};
use crate::domain::ids::{Epoch, OrderId, SaleId, Shard, WaveId};
use crate::domain::sale::{Sale, SaleStatus, Stock};

/// A connection to one run of one server; clones share it.
#[derive(Clone)]
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
    pub lapsed_at_ms: Option<i64>,
}

/// Tickets in one call of put_tickets.lua, which takes no more.
const TICKETS_A_CALL: usize = 500;
/// Sales whose state is read in one pipeline, so that purchases do not wait behind thousands.
pub(super) const SALES_A_CALL: usize = 200;

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
            .arg(keys.waves)
            .arg(keys.passes);
        unlink.arg(&keys.limits);
        Ok(unlink.query_async::<()>(&mut self.connection.clone()).await?)
    }

    /// Connects to the server and reads its run_id.
    ///
    /// # Errors
    /// `Evicts`, or the server cannot be asked.
    pub async fn connect_to_run(&self) -> Result<ServerRun, GateError> {
        let mut connection = self.connect_once().await?;
        let mut about = redis::pipe();
        about.cmd("INFO").arg("server").cmd("INFO").arg("memory");
        let (info, memory): (String, String) = about.query_async(&mut connection).await?;
        match info_value(&memory, "maxmemory_policy:") {
            Some("noeviction") => {}
            policy => return Err(GateError::Evicts(policy.unwrap_or("unknown").to_owned())),
        }
        let run_id = info_value(&info, "run_id:").ok_or(GateError::Malformed("INFO server"))?.to_owned();
        Ok(ServerRun { gate: self.clone(), connection, run_id })
    }
}

impl ServerRun {
    /// The run_id of the server, which changes with every start.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The run id and the replication id. Whatever makes a server forget without being told to changes one of them (protocol, rule 10).
    pub async fn identity(&mut self) -> Result<[String; 2], GateError> {
        Ok([self.run_id.clone(), self.master().await?.id])
    }

    /// The epoch and status of each sale on this server; `None` for a sale that this server does not serve.
    pub async fn sale_states(&mut self, sales: &[SaleId]) -> Result<Vec<Option<(Epoch, SaleStatus)>>, GateError> {
        let mut states = Vec::with_capacity(sales.len());
        for sales in sales.chunks(SALES_A_CALL) {
            let mut reads = redis::pipe();
            for sale in sales {
                let key = self.gate.keys.sale(*sale, Shard::HOME).sale;
                reads.cmd("HMGET").arg(key).arg(&["epoch", "state", "replid", "server"]);
            }
            // The ids are read first: a sale that was opened under a later one counts as lost, and is looked at again.
            let master = self.master().await?;
            // A key that is no hash is an error for that sale only, which then counts as lost.
            let rows: Vec<RedisResult<StateRow>> = reads.ignore_errors().query_async(&mut self.connection).await?;
            states.extend(rows.into_iter().map(|row| master.state_of(row.ok()?)));
        }
        Ok(states)
    }

    /// What this server says of itself.
    async fn master(&mut self) -> Result<Master, GateError> {
        let mut info = redis::pipe();
        info.cmd("INFO").arg("replication").cmd("INFO").arg("stats");
        let (replication, stats): (String, String) = info.query_async(&mut self.connection).await?;
        let id = info_value(&replication, "master_replid:").ok_or(GateError::Malformed("INFO replication"))?;
        let second = info_value(&replication, "master_replid2:").unwrap_or_default();
        let bytes = info_value(&stats, "total_net_repl_input_bytes:");
        let server = bytes.map(|bytes| format!("{}|{bytes}", self.run_id));
        Ok(Master { id: id.to_owned(), never_promoted: second.bytes().all(|digit| digit == b'0'), server })
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
        call.key(keys.passes).arg(epoch.0).arg(mode);
        Ok(is_done(&call.invoke_async::<Value>(&mut self.connection).await?))
    }

    /// Puts tickets back, oldest first. In a sale that `asks_pass`, each of them has spent a pass. Returns `false` when another
    /// refill has taken over.
    pub async fn put_tickets(
        &mut self,
        sale: SaleId,
        epoch: Epoch,
        asks_pass: bool,
        rows: &[TicketRow],
    ) -> Result<bool, GateError> {
        let keys = self.gate.keys.sale(sale, Shard::HOME);
        for rows in rows.chunks(TICKETS_A_CALL) {
            let mut call = self.gate.scripts.put_tickets.prepare_invoke();
            call.key(&keys.sale).key(&keys.tickets).key(&keys.buyers).key(&keys.holders).key(&keys.passes);
            call.arg(epoch.0).arg(u8::from(asks_pass)).arg(rows.len());
            for TicketRow { order, user, units, kind, lapsed_at_ms } in rows {
                call.arg(order.to_string()).arg(user).arg(*units).arg(kind.letter()).arg(lapsed_at_ms.unwrap_or(0));
            }
            if !is_done(&call.invoke_async::<Value>(&mut self.connection).await?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens the sale with this stock, which contains these waves. Returns `false` when another refill has taken over.
    /// `version` is the catalogue's version at which the ledger has these terms.
    pub async fn open(
        &mut self,
        sale: &Sale,
        version: i64,
        epoch: Epoch,
        stock: Stock,
        waves: &[WaveId],
    ) -> Result<bool, GateError> {
        let keys = self.gate.keys.sale(sale.id, Shard::HOME);
        let mut call = self.gate.scripts.open_sale.prepare_invoke();
        call.key(keys.sale).key(keys.waves).arg(epoch.0).arg(sale.status.as_str()).arg(stock.as_i64()).arg(waves.len());
        for wave in waves {
            call.arg(wave.to_string());
        }
        call.arg("state_version").arg(version);
        call.arg("starts_at_ms").arg(sale.starts_at_ms).arg("ends_at_ms").arg(sale.ends_at_ms);
        call.arg("key").arg(&sale.purchase_key).arg("per_user").arg(sale.per_user.get());
        call.arg("min_level").arg(sale.min_level).arg("pay_within_ms").arg(sale.pay_within_ms);
        Ok(is_done(&call.invoke_async::<Value>(&mut self.connection).await?))
    }
}

/// Epoch, state, replid and server of a sale.
type StateRow = (Option<i64>, Option<String>, Option<String>, Option<String>);

/// The replication ids of a server, and what begin_refill.lua calls "server".
struct Master {
    id: String,
    /// Whether the second id is empty: no promotion since the id was changed.
    never_promoted: bool,
    server: Option<String>,
}

impl Master {
    /// The epoch and status of a sale, unless this server may have lost some of it: the same decision as `serves` of
    /// sale_begin.lua. "filling" is not a status.
    fn state_of(&self, (epoch, state, replid, server): StateRow) -> Option<(Epoch, SaleStatus)> {
        let status = state?.parse().ok()?;
        let same =
            replid.as_deref() == Some(&self.id) || self.never_promoted && server.is_some() && server == self.server;
        same.then_some((Epoch(epoch?), status))
    }
}

/// The value of a line of INFO.
pub(super) fn info_value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
