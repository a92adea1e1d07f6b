//! What happens to holds after they were made, and how a sale stands in Redis.

use std::collections::HashMap;

use redis::{Value, cmd, pipe};
use uuid::Uuid;

use super::{Gate, GateError};
use crate::domain::ids::{Epoch, OrderId, SaleId, Shard};
use crate::domain::sale::SaleStatus;

/// Whether a ticket's hold is live or has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketKind {
    Live,
    Ended,
}

/// What Redis keeps of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    pub kind: TicketKind,
    pub units: i64,
    pub user: String,
}

impl Ticket {
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
    pub now_ms: i64,
}

/// Everything that Redis knows of a sale at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub view: SaleView,
    pub tickets: HashMap<OrderId, Ticket>,
    pub unconfirmed: Vec<OrderId>,
    /// Waves that the stock contains.
    pub waves: Vec<OrderId>,
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
            call.invoke_async::<i64>(&mut self.connection.clone()).await?;
        }
        Ok(())
    }

    /// Ends holds (rule 9); those marked `true` return their units. Says under which epoch the server did so.
    pub async fn release(&self, sale: SaleId, shard: Shard, orders: &[(OrderId, bool)]) -> Result<Epoch, GateError> {
        let keys = self.keys.sale(sale, shard);
        let mut call = self.scripts.release.prepare_invoke();
        call.key(keys.sale).key(keys.tickets).key(keys.buyers).key(keys.unconfirmed).arg(orders.len());
        for (order, returns) in orders {
            call.arg(order.to_string()).arg(i32::from(*returns));
        }
        self.epoch_of(call.invoke_async(&mut self.connection.clone()).await?)
    }

    /// Puts a wave's units up for sale, once an epoch. Says under which epoch the server did so.
    pub async fn release_wave(&self, sale: SaleId, wave: OrderId, units: i64) -> Result<Epoch, GateError> {
        let keys = self.keys.sale(sale, Shard::HOME);
        let mut call = self.scripts.release_wave.prepare_invoke();
        call.key(keys.sale).key(keys.waves).arg(wave.to_string()).arg(units);
        self.epoch_of(call.invoke_async(&mut self.connection.clone()).await?)
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

    /// Everything at one moment, for the auditor.
    pub async fn snapshot(&self, sale: SaleId) -> Result<Option<Snapshot>, GateError> {
        let keys = self.keys.sale(sale, Shard::HOME);
        let mut all = pipe();
        all.atomic().add_command(cmd("TIME")).add_command(view_fields(&keys.sale));
        all.hgetall(&keys.tickets).zrange(&keys.unconfirmed, 0, -1).smembers(&keys.waves);
        type Reply = (Vec<i64>, Vec<Option<String>>, HashMap<String, String>, Vec<String>, Vec<String>);
        let (time, fields, tickets, unconfirmed, waves): Reply = all.query_async(&mut self.connection.clone()).await?;
        let pending = i64::try_from(unconfirmed.len()).unwrap_or(i64::MAX);
        let Some(view) = read_view(&time, &fields, pending)? else { return Ok(None) };
        const MALFORMED: GateError = GateError::Malformed("snapshot");
        let id = |text: &str| Uuid::try_parse(text).map(OrderId).map_err(|_| MALFORMED);
        let tickets = tickets
            .iter()
            .map(|(order, ticket)| Ok((id(order)?, Ticket::parse(ticket).ok_or(MALFORMED)?)))
            .collect::<Result<_, GateError>>()?;
        let unconfirmed = unconfirmed.iter().map(|order| id(order)).collect::<Result<_, _>>()?;
        let waves = waves.iter().map(|wave| id(wave)).collect::<Result<_, _>>()?;
        Ok(Some(Snapshot { view, tickets, unconfirmed, waves }))
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
        let Some(view) = self.sale_view(sale).await? else { return Ok(Vec::new()) };
        let mut connection = self.connection.clone();
        let mut range = cmd("ZRANGEBYSCORE");
        range.arg(&keys.unconfirmed).arg("-inf").arg(view.now_ms - age_ms).arg("LIMIT").arg(0).arg(limit);
        let orders: Vec<String> = range.query_async(&mut connection).await?;
        if orders.is_empty() || !view.serving {
            return Ok(Vec::new());
        }
        let tickets: Vec<Option<String>> =
            cmd("HMGET").arg(&keys.tickets).arg(&orders).query_async(&mut connection).await?;
        let found = orders.iter().zip(tickets).filter_map(|(order, ticket)| {
            let ticket = Ticket::parse(&ticket?)?;
            let order = OrderId(Uuid::try_parse(order).ok()?);
            Some(Unconfirmed { order, user: ticket.user, units: ticket.units, epoch: view.epoch })
        });
        Ok(found.collect())
    }
}

fn view_fields(sale_key: &str) -> redis::Cmd {
    let mut fields = cmd("HMGET");
    fields.arg(sale_key).arg(&["epoch", "state", "stock", "returning"]);
    fields
}

fn read_view(time: &[i64], fields: &[Option<String>], unconfirmed: i64) -> Result<Option<SaleView>, GateError> {
    let (&[seconds, micros], [epoch, state, stock, returning]) = (time, fields) else {
        return Err(GateError::Malformed("HMGET"));
    };
    let Some(epoch) = epoch.as_ref().and_then(|e| e.parse().ok()).map(Epoch) else { return Ok(None) };
    let number = |text: &Option<String>| text.as_ref().map_or(Ok(0), |t| t.parse::<i64>());
    let parsed = number(stock).and_then(|stock| Ok((stock, number(returning)?)));
    let (stock, returning) = parsed.map_err(|_| GateError::Malformed("HMGET"))?;
    Ok(Some(SaleView {
        epoch,
        serving: state.as_deref().is_some_and(|s| s != "filling"),
        available: (stock >= 0).then_some(stock + returning),
        unconfirmed,
        now_ms: seconds * 1000 + micros / 1000,
    }))
}

/// Whether Redis said yes to a script that answers 1 or 0.
pub(super) fn agreed(reply: &Value) -> bool {
    matches!(reply, Value::Int(1))
}
