//! Reads and sets the state of a sale in Redis.

use std::collections::HashMap;

use futures_util::future::join_all;
use redis::{Cmd, RedisResult, cmd, pipe};

use super::holds::{BEFORE_MARK, StoredTicket, order_id};
use super::keys::SALE_KEYS;
use super::server_runs::SALES_A_CALL;
use super::{Gate, GateError, scripts};
use seckill_domain::ids::{Epoch, OrderId, Shard, WaveId};
use seckill_domain::sale::SaleStatus;
use seckill_domain::shards::SaleShards;

/// The entry of begin_refill.lua in each key.
const MARK: &str = "";

#[derive(Debug, Clone)]
pub struct SaleView {
    pub epoch: Epoch,
    /// `false` during a refill, and when a key is lost.
    pub serving: bool,
    /// Units for sale, and returned units that are kept back; `None` when unlimited.
    pub available: Option<i64>,
    pub unconfirmed: i64,
    /// Purchases that ever got a hold: also ended orders keep a ticket.
    pub winners: i64,
    /// Rises with every hold that is taken or ended.
    pub(crate) changes: i64,
    pub(crate) now_ms: i64,
}

/// Everything that Redis has of a sale.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub view: SaleView,
    pub shards: Vec<ShardSnapshot>,
}

#[derive(Debug, Clone, Default)]
pub struct ShardSnapshot {
    pub tickets: HashMap<OrderId, StoredTicket>,
    pub unconfirmed: Vec<OrderId>,
    /// The waves in the stock.
    pub waves: Vec<WaveId>,
}

impl Gate {
    /// Pauses, resumes or closes a sale that is open at this epoch. `version` is the catalogue's at which the ledger has this status.
    /// `false`: a shard is not open at this epoch, or has a status of a newer version.
    pub async fn set_sale_state(
        &self,
        of: SaleShards,
        epoch: Epoch,
        status: SaleStatus,
        version: i64,
    ) -> Result<bool, GateError> {
        let set = async |shard: Shard| {
            let keys = self.keys.sale(of, shard);
            let mut call = scripts::SET_SALE_STATE.key(&keys.lasting());
            call.arg(epoch.0).arg(status.as_str()).arg(version);
            call.invoke_async::<i64>(&mut self.connections.of(&keys.sale)).await
        };
        // All shards, also when one does not answer: the others go on selling.
        let done = join_all(of.count.all().map(set)).await.into_iter().collect::<RedisResult<Vec<i64>>>()?;
        Ok(done.into_iter().all(|done| done == 1))
    }

    /// The state of the sale; `None` for an unknown sale, or while shards have different epochs. Shards are not read at one moment.
    pub async fn sale_view(&self, of: SaleShards) -> Result<Option<SaleView>, GateError> {
        let mut sum: Option<SaleView> = None;
        for view in join_all(of.count.all().map(|shard| self.shard_view(of, shard))).await {
            let Some(view) = view? else { return Ok(None) };
            sum = match sum {
                None => Some(view),
                Some(sum) if sum.epoch == view.epoch => Some(sum.with(view)),
                Some(_) => return Ok(None),
            };
        }
        Ok(sum)
    }

    async fn shard_view(&self, of: SaleShards, shard: Shard) -> Result<Option<SaleView>, GateError> {
        let keys = self.keys.sale(of, shard);
        type Fields = (Option<i64>, Option<String>, Option<i64>, Option<i64>, Option<i64>);
        let mut fields = cmd("HMGET");
        fields.arg(&keys.sale).arg(&["epoch", "state", "stock", "returning", "changes"]);
        // A shard has tickets of other shards' buyers, too. Only its own buyers are its holders, once for each purchase.
        let winners = if of.count.is_one() { Cmd::hlen(&keys.tickets) } else { Cmd::llen(&keys.holders) };
        let ((seconds, micros), fields, unconfirmed, winners, present): ((i64, i64), Fields, i64, i64, usize) = pipe()
            .atomic()
            .add_command(cmd("TIME"))
            .add_command(fields)
            .zcount(&keys.unconfirmed, "-inf", BEFORE_MARK)
            .add_command(winners)
            .exists(&keys.lasting())
            .query_async(&mut self.connections.of(&keys.sale))
            .await?;
        let (Some(epoch), state, stock, returning, changes) = fields else { return Ok(None) };
        let stock = stock.unwrap_or(0);
        Ok(Some(SaleView {
            epoch: Epoch(epoch),
            serving: state.is_some_and(|state| state != "filling") && present == SALE_KEYS,
            available: (stock >= 0).then_some(stock + returning.unwrap_or(0)),
            unconfirmed,
            // The first entry is `MARK`.
            winners: (winners - 1).max(0),
            changes: changes.unwrap_or(0),
            now_ms: seconds * 1000 + micros / 1000,
        }))
    }

    /// The epoch and the available units of each sale; `None` for a sale that is unlimited, or cannot be read.
    pub async fn units_of(&self, sales: &[SaleShards]) -> Result<Vec<Option<(Epoch, i64)>>, GateError> {
        let shards: Vec<(SaleShards, Shard)> =
            sales.iter().flat_map(|of| of.count.all().map(move |shard| (*of, shard))).collect();
        let mut units = Vec::with_capacity(shards.len());
        for shards in shards.chunks(SALES_A_CALL) {
            let read = |(of, shard): &(SaleShards, Shard)| {
                let (key, mut read) = (self.keys.sale(*of, *shard).sale, cmd("HMGET"));
                read.arg(&key).arg(&["epoch", "stock", "returning"]);
                (key, read)
            };
            let rows = self.connections.send_each::<[Option<i64>; 3]>(shards.iter().map(read).collect()).await?;
            units.extend(rows.into_iter().map(|row| match row {
                Ok([Some(epoch), Some(stock @ 0..), returning]) => Some((Epoch(epoch), stock + returning.unwrap_or(0))),
                _ => None,
            }));
        }
        let mut units = units.into_iter();
        let mut sum = |of: &SaleShards| {
            let shards: Vec<_> = units.by_ref().take(of.count.get().into()).collect();
            shards.into_iter().reduce(|sum, next| {
                let ((epoch, units), (of_epoch, more)) = (sum?, next?);
                (epoch == of_epoch).then_some((epoch, units + more))
            })
        };
        Ok(sales.iter().map(|of| sum(of).flatten()).collect())
    }

    /// Everything that Redis has of a sale, for the auditor; `None` for an unknown sale.
    ///
    /// It is read page by page over its own connection: a large sale delays no purchase. The pages are of one moment if the sale is
    /// still `unchanged_since` the view.
    pub async fn snapshot(&self, of: SaleShards) -> Result<Option<Snapshot>, GateError> {
        let Some(view) = self.sale_view(of).await? else { return Ok(None) };
        let mut shards = Vec::with_capacity(of.count.get().into());
        for shard in of.count.all() {
            shards.push(self.shard_snapshot(of, shard).await?);
        }
        Ok(Some(Snapshot { view, shards }))
    }

    async fn shard_snapshot(&self, of: SaleShards, shard: Shard) -> Result<ShardSnapshot, GateError> {
        let keys = self.keys.sale(of, shard);
        let connection = &mut self.connect_once(&keys.sale).await?;
        let waves: Vec<String> = cmd("SMEMBERS").arg(&keys.waves).query_async(connection).await?;
        let waves = waves.iter().filter(|wave| *wave != MARK).map(|wave| Ok(WaveId(order_id(wave)?.0)));
        let waves = waves.collect::<Result<_, GateError>>()?;
        let unconfirmed: Vec<String> =
            cmd("ZRANGEBYSCORE").arg(&keys.unconfirmed).arg("-inf").arg(BEFORE_MARK).query_async(connection).await?;
        let unconfirmed = unconfirmed.iter().map(|order| order_id(order)).collect::<Result<_, _>>()?;
        let mut tickets = HashMap::new();
        let mut cursor = 0_u64;
        loop {
            let mut page = cmd("HSCAN");
            page.arg(&keys.tickets).arg(cursor).arg("COUNT").arg(1000);
            let (next, rows): (u64, Vec<(String, String)>) = page.query_async(connection).await?;
            for (order, ticket) in rows.into_iter().filter(|(order, _)| order != MARK) {
                tickets.insert(order_id(&order)?, StoredTicket::parse(&ticket)?);
            }
            cursor = next;
            if cursor == 0 {
                return Ok(ShardSnapshot { tickets, unconfirmed, waves });
            }
        }
    }

    pub async fn unchanged_since(&self, of: SaleShards, before: &SaleView) -> Result<bool, GateError> {
        let now = self.sale_view(of).await?;
        Ok(now.is_some_and(|now| {
            now.serving
                && (now.epoch, now.available, now.changes, now.unconfirmed)
                    == (before.epoch, before.available, before.changes, before.unconfirmed)
        }))
    }
}

impl SaleView {
    fn with(self, other: Self) -> Self {
        Self {
            epoch: self.epoch,
            serving: self.serving && other.serving,
            available: self.available.zip(other.available).map(|(some, more)| some + more),
            unconfirmed: self.unconfirmed + other.unconfirmed,
            winners: self.winners + other.winners,
            changes: self.changes + other.changes,
            now_ms: self.now_ms.max(other.now_ms),
        }
    }
}
