//! What happens to holds after they were made, and how a sale stands in Redis.

use std::collections::HashMap;

use redis::{Value, cmd, pipe};
use uuid::Uuid;

use super::{Gate, GateError, timed};
use crate::domain::ids::{Epoch, OrderId, SaleId, Shard, WaveId};
use crate::domain::order::HoldRelease;
use crate::domain::sale::SaleStatus;

/// Whether a ticket's hold is live or has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketKind {
    Live,
    Ended,
}

/// What Redis keeps of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTicket {
    pub kind: TicketKind,
    pub units: i64,
    pub user: String,
}

impl StoredTicket {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '|');
        let kind = match parts.next()? {
            "h" => TicketKind::Live,
            "t" => TicketKind::Ended,
            _ => return None,
        };
        Some(Self { kind, units: parts.next()?.parse().ok()?, user: parts.next()?.to_owned() })
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

/// How a sale stands on this server.
#[derive(Debug, Clone)]
pub struct SaleView {
    pub epoch: Epoch,
    /// `false` while it is being refilled.
    pub serving: bool,
    /// Units for sale, returned ones that wait for their moment included; `None` when unlimited.
    pub available: Option<i64>,
    /// Holds whose purchase row is not known to be committed.
    pub unconfirmed: i64,
    /// Rises with every hold that is taken or ended.
    pub changes: i64,
    pub now_ms: i64,
}

/// Everything that Redis knows of a sale.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub view: SaleView,
    pub tickets: HashMap<OrderId, StoredTicket>,
    pub unconfirmed: Vec<OrderId>,
    /// Waves that the stock contains.
    pub waves: Vec<WaveId>,
}

impl Gate {
    /// Takes orders whose rows are committed off the unconfirmed list (rule 5).
    pub async fn confirm(&self, sale: SaleId, shard: Shard, orders: &[OrderId]) -> Result<(), GateError> {
        let keys = self.keys.sale(sale, shard);
        for orders in orders.chunks(1000) {
            let mut call = self.scripts.confirm.prepare_invoke();
            call.key(keys.unconfirmed.as_str());
            for order in orders {
                call.arg(order.to_string());
            }
            timed("confirm", call.invoke_async::<i64>(&mut self.connection.clone())).await?;
        }
        Ok(())
    }

    /// Ends holds (rule 9). Returns the epoch under which the server did so.
    pub async fn release(&self, sale: SaleId, shard: Shard, holds: &[HoldRelease]) -> Result<Epoch, GateError> {
        let keys = self.keys.sale(sale, shard);
        let mut call = self.scripts.release.prepare_invoke();
        call.key(keys.sale).key(keys.tickets).key(keys.buyers).key(keys.unconfirmed).arg(holds.len());
        for hold in holds {
            call.arg(hold.order.to_string()).arg(i32::from(hold.returns_units));
        }
        self.epoch_of(timed("release", call.invoke_async(&mut self.connection.clone())).await?)
    }

    /// Puts a wave's units up for sale, once an epoch. Says under which epoch the server did so.
    pub async fn release_wave(&self, sale: SaleId, wave: WaveId, units: i64) -> Result<Epoch, GateError> {
        let keys = self.keys.sale(sale, Shard::HOME);
        let mut call = self.scripts.release_wave.prepare_invoke();
        call.key(keys.sale).key(keys.waves).arg(wave.to_string()).arg(units);
        self.epoch_of(timed("release_wave", call.invoke_async(&mut self.connection.clone())).await?)
    }

    /// The epoch in the reply of a script that needs a sale which is served.
    fn epoch_of(&self, reply: Vec<i64>) -> Result<Epoch, GateError> {
        match reply[..] {
            [epoch, _done] => Ok(Epoch(epoch)),
            _ => {
                self.doubt.notify_one();
                Err(GateError::NotServing)
            }
        }
    }

    /// Pauses, resumes or closes a sale that is open at this epoch; `false` when it is not.
    pub async fn set_sale_state(&self, sale: SaleId, epoch: Epoch, status: SaleStatus) -> Result<bool, GateError> {
        let keys = self.keys.sale(sale, Shard::HOME);
        let mut call = self.scripts.set_sale_state.key(keys.sale);
        call.arg(epoch.0).arg(status.as_str());
        Ok(call.invoke_async::<i64>(&mut self.connection.clone()).await? == 1)
    }

    /// How the sale stands; `None` when this server does not know it.
    pub async fn sale_view(&self, sale: SaleId) -> Result<Option<SaleView>, GateError> {
        let keys = self.keys.sale(sale, Shard::HOME);
        let (time, fields, unconfirmed): (Vec<i64>, Vec<Option<String>>, i64) = pipe()
            .atomic()
            .add_command(cmd("TIME"))
            .add_command(view_fields(&keys.sale))
            .zcard(&keys.unconfirmed)
            .query_async(&mut self.connection.clone())
            .await?;
        read_view(&time, &fields, unconfirmed)
    }

    /// Everything that Redis knows of a sale, for the auditor; `None` when this server does not know the sale. It is
    /// read page by page, over a patient connection of its own, so that a large sale holds nobody up; what was read
    /// is of one moment if the sale then still `stands_still` since.
    pub async fn snapshot(&self, sale: SaleId) -> Result<Option<Snapshot>, GateError> {
        let keys = self.keys.sale(sale, Shard::HOME);
        let Some(view) = self.sale_view(sale).await? else { return Ok(None) };
        let mut connection = self.patient_connection().await?;
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
                tickets.insert(order_id(&order)?, StoredTicket::parse(&ticket).ok_or(MALFORMED)?);
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        Ok(Some(Snapshot { view, tickets, unconfirmed, waves }))
    }

    /// Whether the sale has stood still since the snapshot was begun.
    pub async fn stands_still(&self, sale: SaleId, since: &SaleView) -> Result<bool, GateError> {
        let now = self.sale_view(sale).await?;
        Ok(now.is_some_and(|now| {
            (now.epoch, now.available, now.changes, now.unconfirmed)
                == (since.epoch, since.available, since.changes, since.unconfirmed)
        }))
    }

    /// Holds that have been unconfirmed for longer than `age_ms`, oldest first, at most `limit`.
    pub async fn unconfirmed_since(
        &self,
        sale: SaleId,
        shard: Shard,
        age_ms: i64,
        limit: usize,
    ) -> Result<Vec<Unconfirmed>, GateError> {
        let keys = self.keys.sale(sale, shard);
        let mut call = self.scripts.read_unconfirmed.prepare_invoke();
        call.key(keys.sale).key(keys.tickets).key(keys.unconfirmed).arg(age_ms).arg(limit);
        let reply: Vec<String> = call.invoke_async(&mut self.connection.clone()).await?;
        let Some((epoch, rows)) = reply.split_first() else { return Ok(Vec::new()) };
        let epoch = Epoch(epoch.parse().map_err(|_| MALFORMED)?);
        let hold = |row: &[String]| {
            let [order, ticket] = row else { return Err(MALFORMED) };
            let StoredTicket { units, user, .. } = StoredTicket::parse(ticket).ok_or(MALFORMED)?;
            Ok(Unconfirmed { order: order_id(order)?, user, units, epoch })
        };
        rows.chunks(2).map(hold).collect()
    }
}

const MALFORMED: GateError = GateError::Malformed("a read of tickets");

fn order_id(text: &str) -> Result<OrderId, GateError> {
    Uuid::try_parse(text).map(OrderId).map_err(|_| MALFORMED)
}

fn view_fields(sale_key: &str) -> redis::Cmd {
    let mut fields = cmd("HMGET");
    fields.arg(sale_key).arg(&["epoch", "state", "stock", "returning", "changes"]);
    fields
}

fn read_view(time: &[i64], fields: &[Option<String>], unconfirmed: i64) -> Result<Option<SaleView>, GateError> {
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
        changes,
        now_ms: seconds * 1000 + micros / 1000,
    }))
}

/// Whether Redis said yes to a script that answers 1 or 0.
pub(super) fn agreed(reply: &Value) -> bool {
    matches!(reply, Value::Int(1))
}
