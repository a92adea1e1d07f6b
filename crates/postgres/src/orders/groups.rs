//! Turns purchases into orders (protocol, rule 7), whole groups at a time. A group that cannot be settled whole is split into groups of
//! one, which `one` settles.
//!
//! All transactions lock rows in one order, to avoid deadlocks: outbox, orders, buyers, sales. Sales come last, because their rows are
//! contended most. New orders may come after the buyers: no other transaction can lock them before the commit.

use std::collections::{BTreeMap, HashMap};

use sqlx::PgConnection;
use uuid::Uuid;

use crate::outbox::close_split;
use crate::{LedgerError, Orders};
use seckill_domain::ids::{GroupId, SaleId};
use seckill_domain::message::OutboxKind;
use seckill_domain::order::Rejection;
use seckill_domain::trace_context::TraceContext;
use seckill_runtime::die_at;

/// The consumer's name in the dedup rows.
const CONSUMER: &str = "fulfil";

pub type Traces = HashMap<GroupId, TraceContext>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSize {
    pub group: GroupId,
    pub sale: SaleId,
    pub members: usize,
}

impl GroupSize {
    pub(super) fn new(group: Uuid, sale: i64, members: i32) -> Self {
        let members = usize::try_from(members).unwrap_or(1);
        Self { group: GroupId(group), sale: SaleId::from_db(sale), members }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settling {
    /// All groups are settled. `orders`: how many orders were made now.
    Settled { orders: usize },
    /// A group cannot be settled whole. Nothing was changed.
    Unusual(String),
}

/// An unsettled group with a locked outbox row.
pub(super) struct ClaimedGroup {
    /// The outbox row's id.
    pub(super) id: i64,
    pub(super) group: Uuid,
    pub(super) sale: i64,
    pub(super) members: i32,
    pub(super) units: i32,
    pub(super) unlimited: bool,
    pub(super) trace: Option<String>,
}

impl Orders {
    pub async fn unsettled_groups(&self, groups: &[GroupId]) -> Result<Vec<GroupSize>, LedgerError> {
        let rows = sqlx::query!(
            "SELECT id, sale_id, members FROM purchase_groups WHERE id = ANY($1) AND num_nulls(settled_at) = 1 ORDER BY place",
            &uuids(groups)
        )
        .fetch_all(&self.0.pool)
        .await?;
        Ok(rows.into_iter().map(|row| GroupSize::new(row.id, row.sale_id, row.members)).collect())
    }

    /// Turns the purchases of these groups into orders, in one transaction. A repeated group makes no second order. The later steps of the
    /// orders belong to the given trace of the group. Without one, they belong to the trace of its outbox row.
    /// Fails only in an outage of PostgreSQL, or if one of the sales is locked.
    pub async fn settle_groups(&self, groups: &[GroupId], traces: &Traces) -> Result<Settling, LedgerError> {
        match self.try_to_settle(groups, traces).await {
            Err(error) if !error.is_outage() => Ok(Settling::Unusual(error.to_string())),
            settled => settled,
        }
    }

    async fn try_to_settle(&self, groups: &[GroupId], traces: &Traces) -> Result<Settling, LedgerError> {
        let mut tx = self.0.begin().await?;
        let claimed = claim(&mut tx, groups).await?;
        if claimed.is_empty() {
            return Ok(Settling::Settled { orders: 0 });
        }
        let (rows, ids): (Vec<i64>, Vec<Uuid>) = claimed.iter().map(|row| (row.id, row.group)).unzip();
        if !write_dedup_rows(&mut tx, &ids).await? {
            return Ok(Settling::Unusual("a group's message was processed before".to_owned()));
        }
        if !count_buyers(&mut tx, &ids).await? {
            return Ok(Settling::Unusual("a buyer is over the limit".to_owned()));
        }
        make_orders(&mut tx, &ids, &traces_of(&claimed, traces), None).await?;
        close(&mut tx, &rows, &ids).await?;
        let mut needed = BTreeMap::<i64, i64>::new();
        for row in claimed.iter().filter(|row| !row.unlimited) {
            *needed.entry(row.sale).or_default() += i64::from(row.units);
        }
        // Last, to lock the sale's row only for the commit.
        for (sale, units) in needed {
            if !take_units(&mut tx, sale, units).await? {
                return Ok(Settling::Unusual("too little stock is left".to_owned()));
            }
        }
        die_at!("group.before_commit");
        tx.commit().await?;
        die_at!("group.after_commit");
        Ok(Settling::Settled { orders: claimed.iter().map(|row| row.members.unsigned_abs() as usize).sum() })
    }

    /// Splits a group into groups of one, for its purchases without an order, and closes it, in one transaction. Returns the number of new
    /// groups; `None` if the group was settled or split before.
    pub async fn split_group(&self, group: GroupId, why: &str) -> Result<Option<u64>, LedgerError> {
        let mut tx = self.0.begin().await?;
        if !close_split(&mut tx, OutboxKind::GroupPlaced, group, why).await? {
            return Ok(None);
        }
        // By id, as in every insert of groups, to avoid deadlocks. A buyer's repeat may have inserted one of these before.
        let ones = sqlx::query!(
            "WITH whole AS (
               UPDATE purchase_groups SET settled_at = now(), was_split = true WHERE id = $1 AND num_nulls(settled_at) = 1 RETURNING *),
             made AS (
               INSERT INTO purchase_groups (id, sale_id, epoch, shard, members, units, order_ids, user_ids, quantities, addresses)
               SELECT m.order_id, w.sale_id, w.epoch, w.shard, 1, m.quantity, ARRAY[m.order_id], ARRAY[m.user_id], ARRAY[m.quantity],
                      ARRAY[m.address]
               FROM whole w
               CROSS JOIN LATERAL unnest(w.order_ids, w.user_ids, w.quantities, w.addresses)
                                  AS m (order_id, user_id, quantity, address)
               WHERE NOT EXISTS (SELECT FROM orders o WHERE o.id = m.order_id)
               ORDER BY m.order_id ON CONFLICT (id) DO NOTHING RETURNING id, sale_id, units, shard)
             INSERT INTO outbox (kind, order_id, sale_id, quantity, shard)
             SELECT 'group_placed', id, sale_id, units, shard FROM made",
            group.0
        )
        .execute(&mut *tx)
        .await?;
        die_at!("group.split_before");
        tx.commit().await?;
        die_at!("group.split_after");
        Ok(Some(ones.rows_affected()))
    }
}

pub(super) fn uuids(groups: &[GroupId]) -> Vec<Uuid> {
    groups.iter().map(|group| group.0).collect()
}

pub(super) fn traces_of(claimed: &[ClaimedGroup], traces: &Traces) -> Vec<(Uuid, String)> {
    let trace = |row: &ClaimedGroup| {
        let given = traces.get(&GroupId(row.group)).map(TraceContext::to_text);
        Some((row.group, given.or_else(|| row.trace.clone())?))
    };
    claimed.iter().filter_map(trace).collect()
}

/// Locks the unsettled groups among these. Waits for groups that another worker is settling, then skips them.
pub(super) async fn claim(tx: &mut PgConnection, groups: &[GroupId]) -> Result<Vec<ClaimedGroup>, LedgerError> {
    let claimed = sqlx::query_as!(
        ClaimedGroup,
        r#"SELECT o.id, g.id AS "group", g.sale_id AS sale, g.members, g.units, s.total_stock = -1 AS "unlimited!", o.trace
           FROM outbox o JOIN purchase_groups g ON g.id = o.order_id JOIN sales s ON s.id = g.sale_id
           WHERE o.kind = 'group_placed' AND o.order_id = ANY($1) AND o.status || '' <> 'processed'
           ORDER BY o.id FOR UPDATE OF o"#,
        &uuids(groups)
    );
    Ok(claimed.fetch_all(tx).await?)
}

/// Writes a dedup row for each group's message. Returns `false` if one existed. The outbox row's status, read under its lock, says the
/// same: one transaction closes a group and makes its orders.
pub(super) async fn write_dedup_rows(tx: &mut PgConnection, groups: &[Uuid]) -> Result<bool, LedgerError> {
    let messages: Vec<Uuid> = groups.iter().map(|group| OutboxKind::GroupPlaced.message_id(*group)).collect();
    let written = sqlx::query!(
        "INSERT INTO processed_messages (message_id, consumer) SELECT id, $2 FROM unnest($1::uuid[]) AS m (id)
         ON CONFLICT DO NOTHING",
        &messages,
        CONSUMER
    );
    Ok(written.execute(tx).await?.rows_affected() == groups.len() as u64)
}

/// Adds the units of all members to their buyers' counters. Returns `false` if a counter would exceed the limit. Must run before the orders
/// are made. If two groups contain the same order, the second one waits here, and then finds the order made.
pub(super) async fn count_buyers(tx: &mut PgConnection, groups: &[Uuid]) -> Result<bool, LedgerError> {
    let row = sqlx::query!(
        r#"WITH wanted AS MATERIALIZED (
             SELECT g.sale_id, m.user_id, sum(m.quantity)::integer AS units, s.per_user
             FROM purchase_groups g JOIN sales s ON s.id = g.sale_id
             CROSS JOIN LATERAL unnest(g.user_ids, g.quantities) AS m (user_id, quantity)
             WHERE g.id = ANY($1) GROUP BY g.sale_id, m.user_id, s.per_user),
           counted AS (
             INSERT INTO sale_buyers (sale_id, user_id, units, per_user)
             SELECT sale_id, user_id, units, per_user FROM wanted WHERE units <= per_user ORDER BY sale_id, user_id COLLATE "C"
             ON CONFLICT (sale_id, user_id) DO UPDATE SET units = sale_buyers.units + excluded.units
               WHERE sale_buyers.units + excluded.units <= sale_buyers.per_user
             RETURNING 1)
           SELECT (SELECT count(*) FROM wanted) = (SELECT count(*) FROM counted) AS "all_counted!""#,
        groups
    )
    .fetch_one(tx)
    .await?;
    Ok(row.all_counted)
}

/// Makes the orders of these groups, with their expiry, or rejected orders.
pub(super) async fn make_orders(
    tx: &mut PgConnection,
    groups: &[Uuid],
    traces: &[(Uuid, String)],
    rejection: Option<Rejection>,
) -> Result<(), LedgerError> {
    let (traced, traces): (Vec<Uuid>, Vec<String>) = traces.iter().cloned().unzip();
    sqlx::query!(
        "INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, currency, shard, status, reason, expires_at, group_id, trace)
         SELECT m.order_id, g.sale_id, m.user_id, m.quantity, s.price_cents * m.quantity, s.currency, g.shard,
                CASE WHEN $4::text IS NULL THEN 'pending_payment' ELSE 'rejected' END, $4,
                now() + s.pay_within_ms * interval '1 ms', g.id, t.trace
         FROM purchase_groups g JOIN sales s ON s.id = g.sale_id
         CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids, g.quantities) AS m (order_id, user_id, quantity)
         LEFT JOIN unnest($2::uuid[], $3::text[]) AS t (group_id, trace) ON t.group_id = g.id
         WHERE g.id = ANY($1) ORDER BY m.order_id",
        groups,
        &traced,
        &traces,
        rejection.map(<&str>::from)
    )
    .execute(&mut *tx)
    .await?;
    if rejection.is_some() {
        return Ok(());
    }
    sqlx::query!(
        "INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, due_at)
         SELECT 'group_expire', g.id, g.sale_id, g.units, g.shard, now() + s.pay_within_ms * interval '1 ms'
         FROM purchase_groups g JOIN sales s ON s.id = g.sale_id WHERE g.id = ANY($1)",
        groups
    )
    .execute(tx)
    .await?;
    Ok(())
}

pub(super) async fn close(tx: &mut PgConnection, rows: &[i64], groups: &[Uuid]) -> Result<(), LedgerError> {
    sqlx::query!(
        "WITH closed AS (
           UPDATE outbox SET status = 'processed', processed_at = now(), sent_at = coalesce(sent_at, now()) WHERE id = ANY($1))
         UPDATE purchase_groups SET settled_at = now() WHERE id = ANY($2)",
        rows,
        groups
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Takes units from the stock of a sale. Returns `false` if the stock is too small.
pub(super) async fn take_units(tx: &mut PgConnection, sale: i64, units: i64) -> Result<bool, LedgerError> {
    let taken = sqlx::query!("UPDATE sales SET stock = stock - $2 WHERE id = $1 AND stock >= $2", sale, units);
    Ok(taken.execute(tx).await?.rows_affected() == 1)
}
