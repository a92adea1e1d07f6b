//! Reads and sets the state of a sale in Redis.

use std::collections::HashMap;

use redis::{RedisResult, cmd, pipe};

use super::holds::{StoredTicket, order_id};
use super::refill::SALES_A_CALL;
use super::{Gate, GateError};
use crate::domain::ids::{Epoch, OrderId, SaleId, Shard, WaveId};
use crate::domain::sale::SaleStatus;

/// The state of a sale on this server.
#[derive(Debug, Clone)]
pub struct SaleView {
    pub epoch: Epoch,
    /// `false` while the sale is being refilled.
    pub serving: bool,
    /// Units for sale, with returned units that are still kept back; `None` when unlimited.
    pub available: Option<i64>,
    /// Holds whose purchase row is not known to be committed.
    pub unconfirmed: i64,
    /// Purchases that ever got a hold: each left a ticket, also where its order has ended.
    pub winners: i64,
    /// A number that rises with every hold that is taken or ended.
    pub changes: i64,
    pub now_ms: i64,
}

/// Everything that Redis has of a sale.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub view: SaleView,
    pub tickets: HashMap<OrderId, StoredTicket>,
    pub unconfirmed: Vec<OrderId>,
    /// The waves that the stock contains.
    pub waves: Vec<WaveId>,
}

impl Gate {
    /// Pauses, resumes or closes a sale that is open at this epoch. `version` is the catalogue's version at which the ledger
    /// has this status. Returns `false` when the sale is not open at this epoch, or has a status of a newer version.
    pub async fn set_sale_state(
        &self,
        sale: SaleId,
        epoch: Epoch,
        status: SaleStatus,
        version: i64,
    ) -> Result<bool, GateError> {
        let keys = self.keys.sale(sale, Shard::HOME);
        let mut call = self.scripts.set_sale_state.key(keys.sale);
        call.arg(epoch.0).arg(status.as_str()).arg(version);
        Ok(call.invoke_async::<i64>(&mut self.connection.clone()).await? == 1)
    }

    /// The state of the sale; `None` when this server does not know it.
    pub async fn sale_view(&self, sale: SaleId) -> Result<Option<SaleView>, GateError> {
        let keys = self.keys.sale(sale, Shard::HOME);
        let mut fields = cmd("HMGET");
        fields.arg(&keys.sale).arg(&["epoch", "state", "stock", "returning", "changes"]);
        let (time, fields, unconfirmed, winners): (Vec<i64>, Vec<Option<String>>, i64, i64) = pipe()
            .atomic()
            .add_command(cmd("TIME"))
            .add_command(fields)
            .zcard(&keys.unconfirmed)
            .hlen(&keys.tickets)
            .query_async(&mut self.connection.clone())
            .await?;
        read_view(&time, &fields, unconfirmed, winners)
    }

    /// The epoch and the available units of many sales, in their order, not all of one moment; `None` for a sale that is unlimited, or
    /// cannot be read.
    pub async fn units_of(&self, sales: &[SaleId]) -> Result<Vec<Option<(Epoch, i64)>>, GateError> {
        let mut units = Vec::with_capacity(sales.len());
        for sales in sales.chunks(SALES_A_CALL) {
            let mut reads = pipe();
            for sale in sales {
                let key = self.keys.sale(*sale, Shard::HOME).sale;
                reads.cmd("HMGET").arg(key).arg(&["epoch", "stock", "returning"]);
            }
            let rows: Vec<RedisResult<[Option<i64>; 3]>> =
                reads.ignore_errors().query_async(&mut self.connection.clone()).await?;
            units.extend(rows.into_iter().map(|row| match row {
                Ok([Some(epoch), Some(stock @ 0..), returning]) => Some((Epoch(epoch), stock + returning.unwrap_or(0))),
                _ => None,
            }));
        }
        Ok(units)
    }

    /// Everything that Redis has of a sale, for the auditor; `None` when this server does not know the sale.
    ///
    /// It is read page by page over a connection of its own, so that a large sale delays no purchase. The pages are of
    /// one moment if the sale is then still `unchanged_since` the view.
    pub async fn snapshot(&self, sale: SaleId) -> Result<Option<Snapshot>, GateError> {
        let keys = self.keys.sale(sale, Shard::HOME);
        let Some(view) = self.sale_view(sale).await? else { return Ok(None) };
        let mut connection = self.connect_once().await?;
        let waves: Vec<String> = cmd("SMEMBERS").arg(&keys.waves).query_async(&mut connection).await?;
        let waves = waves.iter().map(|wave| order_id(wave).map(|id| WaveId(id.0))).collect::<Result<_, _>>()?;
        let unconfirmed: Vec<String> =
            cmd("ZRANGE").arg(&keys.unconfirmed).arg(0).arg(-1).query_async(&mut connection).await?;
        let unconfirmed = unconfirmed.iter().map(|order| order_id(order)).collect::<Result<_, _>>()?;
        let mut tickets = HashMap::new();
        let mut cursor = 0_u64;
        loop {
            let mut page = cmd("HSCAN");
            page.arg(&keys.tickets).arg(cursor).arg("COUNT").arg(1000);
            let (next, rows): (u64, Vec<(String, String)>) = page.query_async(&mut connection).await?;
            for (order, ticket) in rows {
                tickets.insert(order_id(&order)?, StoredTicket::parse(&ticket)?);
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        Ok(Some(Snapshot { view, tickets, unconfirmed, waves }))
    }

    /// Whether the sale is the same as in an earlier view.
    pub async fn unchanged_since(&self, sale: SaleId, before: &SaleView) -> Result<bool, GateError> {
        let now = self.sale_view(sale).await?;
        Ok(now.is_some_and(|now| {
            (now.epoch, now.available, now.changes, now.unconfirmed)
                == (before.epoch, before.available, before.changes, before.unconfirmed)
        }))
    }
}

fn read_view(
    time: &[i64],
    fields: &[Option<String>],
    unconfirmed: i64,
    winners: i64,
) -> Result<Option<SaleView>, GateError> {
    let (&[seconds, micros], [epoch, state, stock, returning, changes]) = (time, fields) else {
        return Err(GateError::Malformed("HMGET"));
    };
    let Some(epoch) = epoch.as_ref().and_then(|e| e.parse().ok()).map(Epoch) else { return Ok(None) };
    let number = |text: &Option<String>| text.as_ref().map_or(Ok(0), |t| t.parse::<i64>());
    let parsed = number(stock).and_then(|stock| Ok((stock, number(returning)?, number(changes)?)));
    let (stock, returning, changes) = parsed.map_err(|_| GateError::Malformed("HMGET"))?;
    Ok(Some(SaleView {
        epoch,
        serving: state.as_deref().is_some_and(|s| s != "filling"),
        available: (stock >= 0).then_some(stock + returning),
        unconfirmed,
        winners,
        changes,
        now_ms: seconds * 1000 + micros / 1000,
    }))
}
