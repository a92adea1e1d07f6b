//! Turns the purchases of group rows into orders (protocol, rule 7): whole groups, by statements over all of their orders. Whatever is
//! unusual leaves this way: the group is split into purchase rows, which `fulfil` settles one by one.
//!
//! Locks are taken in the order of `fulfil`.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::die_at;
use crate::domain::ids::{GroupId, SaleId};
use crate::domain::message::OutboxKind;
use crate::ledger::orders::claim::write_dedup_rows;
use crate::ledger::orders::fulfil::take_units;
use crate::ledger::outbox::one_line;
use crate::ledger::{Ledger, LedgerError};

/// A group, and how much work it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSize {
    pub group: GroupId,
    pub sale: SaleId,
    pub members: usize,
}

/// What came of settling groups in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settling {
    /// Each of them is settled, now or since before. So many orders were made.
    Settled { orders: usize },
    /// Something does not go as for all others, and nothing was changed.
    Unusual(String),
}

/// A group that is not settled yet, and whose outbox row is locked.
struct Claimed {
    /// The outbox row.
    id: i64,
    group: Uuid,
    sale: i64,
    members: i32,
    units: i32,
    unlimited: bool,
}

impl Ledger {
    /// Those of the groups that are not settled.
    pub async fn unsettled_groups(&self, groups: &[GroupId]) -> Result<Vec<GroupSize>, LedgerError> {
        let ids: Vec<Uuid> = groups.iter().map(|group| group.0).collect();
        let rows = sqlx::query!(
            "SELECT id, sale_id, members FROM purchase_groups WHERE id = ANY($1) AND num_nulls(settled_at) = 1 ORDER BY place",
            &ids
        )
        .fetch_all(&self.pool)
        .await?;
        let size = |members| usize::try_from(members).unwrap_or(1);
        let group =
            |id, sale, members| GroupSize { group: GroupId(id), sale: SaleId::from_db(sale), members: size(members) };
        Ok(rows.into_iter().map(|row| group(row.id, row.sale_id, row.members)).collect())
    }

    /// Turns the purchases of these groups into orders, each once however often it is given, all in one transaction.
    ///
    /// # Errors
    /// Only an outage of PostgreSQL, or a lock on one of the sales.
    pub async fn settle_groups(&self, groups: &[GroupId]) -> Result<Settling, LedgerError> {
        match self.try_to_settle(groups).await {
            Err(error) if !error.is_outage() => Ok(Settling::Unusual(error.to_string())),
            settled => settled,
        }
    }

    async fn try_to_settle(&self, groups: &[GroupId]) -> Result<Settling, LedgerError> {
        let mut tx = self.begin().await?;
        let claimed = claim(&mut tx, groups).await?;
        if claimed.is_empty() {
            return Ok(Settling::Settled { orders: 0 });
        }
        let (rows, ids): (Vec<i64>, Vec<Uuid>) = claimed.iter().map(|row| (row.id, row.group)).unzip();
        let messages: Vec<Uuid> =
            claimed.iter().map(|row| OutboxKind::GroupPlaced.message_id(GroupId(row.group))).collect();
        if write_dedup_rows(&mut tx, &messages).await?.len() < messages.len() {
            return Ok(Settling::Unusual("a group's message was processed before".to_owned()));
        }
        if !count_buyers(&mut tx, &ids).await? {
            return Ok(Settling::Unusual("a buyer is over the limit".to_owned()));
        }
        make_orders(&mut tx, &ids).await?;
        close(&mut tx, &rows, &ids).await?;
        let mut needed = BTreeMap::<i64, i64>::new();
        for row in claimed.iter().filter(|row| !row.unlimited) {
            *needed.entry(row.sale).or_default() += i64::from(row.units);
        }
        // Last, so that the sale's row is locked for a commit, and not for a batch.
        if !take_units(&mut tx, &needed).await?.is_empty() {
            return Ok(Settling::Unusual("too little stock is left".to_owned()));
        }
        die_at!("group.before_commit");
        tx.commit().await?;
        die_at!("group.after_commit");
        Ok(Settling::Settled { orders: claimed.iter().map(|row| row.members.unsigned_abs() as usize).sum() })
    }

    /// Puts purchase rows in the place of a group row, for those of its purchases that have no order, and closes the group: all in one
    /// transaction. Returns how many rows there are; `None` when the group was settled or split before.
    pub async fn split_group(&self, group: GroupId, why: &str) -> Result<Option<u64>, LedgerError> {
        let mut tx = self.begin().await?;
        let closed = sqlx::query!(
            "UPDATE outbox SET status = 'processed', processed_at = now(), sent_at = coalesce(sent_at, now()), last_error = $2
             WHERE kind = 'group_placed' AND order_id = $1 AND status || '' <> 'processed'",
            group.0,
            one_line(why)
        )
        .execute(&mut *tx)
        .await?;
        if closed.rows_affected() == 0 {
            return Ok(None);
        }
        // The order by id is that of all who insert purchase rows. A buyer's repeat may have inserted one before.
        let rows = sqlx::query!(
            "WITH whole AS (
               UPDATE purchase_groups SET settled_at = now(), was_split = true WHERE id = $1 AND num_nulls(settled_at) = 1 RETURNING *)
             INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard, address)
             SELECT 'order_placed', m.order_id, w.sale_id, m.user_id, m.quantity, w.epoch, w.shard, m.address
             FROM whole w
             CROSS JOIN LATERAL unnest(w.order_ids, w.user_ids, w.quantities, w.addresses)
                                AS m (order_id, user_id, quantity, address)
             WHERE NOT EXISTS (SELECT FROM orders o WHERE o.id = m.order_id)
             ORDER BY m.order_id ON CONFLICT (kind, order_id) DO NOTHING",
            group.0
        )
        .execute(&mut *tx)
        .await?;
        die_at!("group.split_before");
        tx.commit().await?;
        die_at!("group.split_after");
        Ok(Some(rows.rows_affected()))
    }
}

/// Locks the groups that are not settled yet. One that another worker settles is waited for, and is then left out.
async fn claim(tx: &mut PgConnection, groups: &[GroupId]) -> Result<Vec<Claimed>, LedgerError> {
    let ids: Vec<Uuid> = groups.iter().map(|group| group.0).collect();
    let claimed = sqlx::query_as!(
        Claimed,
        r#"SELECT o.id, g.id AS "group", g.sale_id AS sale, g.members, g.units, s.total_stock = -1 AS "unlimited!"
           FROM outbox o JOIN purchase_groups g ON g.id = o.order_id JOIN sales s ON s.id = g.sale_id
           WHERE o.kind = 'group_placed' AND o.order_id = ANY($1) AND o.status || '' <> 'processed'
           ORDER BY o.id FOR UPDATE OF o"#,
        &ids
    );
    Ok(claimed.fetch_all(tx).await?)
}

/// Adds the units of all members to their buyers' counters; `false` when one would exceed the limit. It comes before the orders: of two
/// records of an order that are settled at once, the second waits here, and then finds that it cannot make the order again.
async fn count_buyers(tx: &mut PgConnection, groups: &[Uuid]) -> Result<bool, LedgerError> {
    let row = sqlx::query!(
        r#"WITH wanted AS MATERIALIZED (
             SELECT g.sale_id, m.user_id, sum(m.quantity)::integer AS units, s.per_user
             FROM purchase_groups g JOIN sales s ON s.id = g.sale_id
             CROSS JOIN LATERAL unnest(g.user_ids, g.quantities) AS m (user_id, quantity)
             WHERE g.id = ANY($1) GROUP BY g.sale_id, m.user_id, s.per_user),
           counted AS (
             INSERT INTO sale_buyers (sale_id, user_id, units, per_user)
             SELECT sale_id, user_id, units, per_user FROM wanted ORDER BY sale_id, user_id COLLATE "C"
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

/// Makes the orders of all members, and a row for the delayed cancellation of each group.
async fn make_orders(tx: &mut PgConnection, groups: &[Uuid]) -> Result<(), LedgerError> {
    sqlx::query!(
        "INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, shard, status, expires_at, group_id)
         SELECT m.order_id, g.sale_id, m.user_id, m.quantity, s.price_cents * m.quantity, g.shard, 'pending_payment',
                now() + s.pay_within_ms * interval '1 ms', g.id
         FROM purchase_groups g JOIN sales s ON s.id = g.sale_id
         CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids, g.quantities) AS m (order_id, user_id, quantity)
         WHERE g.id = ANY($1) ORDER BY m.order_id",
        groups
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard, due_at)
         SELECT 'group_expire', g.id, g.sale_id, '', g.units, g.epoch, g.shard, now() + s.pay_within_ms * interval '1 ms'
         FROM purchase_groups g JOIN sales s ON s.id = g.sale_id WHERE g.id = ANY($1)",
        groups
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Marks groups and their outbox rows as settled.
async fn close(tx: &mut PgConnection, rows: &[i64], groups: &[Uuid]) -> Result<(), LedgerError> {
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
