//! Turns purchases into orders (protocol, rule 7): dedup rows, buyers' counters, stock, orders and their outbox rows, all
//! in one transaction.
//!
//! All transactions lock rows in one order, so that they never deadlock: outbox, orders, buyers, and last the sales,
//! whose rows are contended most. Orders that are made here are locked by nobody before the commit, so they may come after the
//! buyers. What refers to a sale locks its row only against its removal, which hinders no update of the stock.
//!
//! A purchase may have two records, a purchase row and a place in a group row (`groups`). Both settlements lock the buyer's counter before
//! they make the order, so they come one after the other. The second finds the order, or is refused it by the primary key; it is then
//! undone as a whole, and tried again where it sees the order.

use std::collections::{BTreeMap, HashMap};

use sqlx::PgConnection;
use uuid::Uuid;

use crate::die_at;
use crate::domain::ids::OrderId;
use crate::domain::message::OutboxKind;
use crate::domain::order::Rejection;
use crate::domain::trace_context::TraceContext;
use crate::ledger::orders::claim::{Dedup, Row, claim};
use crate::ledger::{Ledger, LedgerError};

/// The outcome of a group of purchases.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Fulfilled {
    pub accepted: usize,
    pub rejected: usize,
    /// Already processed, made before from another record, or without a purchase row.
    pub skipped: usize,
}

/// What to do when a sale has too little stock for a group.
#[derive(Clone, Copy)]
enum OnShortage {
    /// Roll the whole group back: each purchase is then tried alone.
    GiveUp,
    /// Reject the orders.
    Reject,
}

impl Ledger {
    /// Turns purchases into orders, each once however often it is given.
    pub async fn fulfil(&self, orders: &[OrderId]) -> Result<Fulfilled, LedgerError> {
        self.fulfil_traced(orders, &HashMap::new()).await
    }

    /// The same. What happens to an order later belongs to the trace that is given for it, or else to that of its purchase row.
    pub async fn fulfil_traced(
        &self,
        orders: &[OrderId],
        traces: &HashMap<OrderId, TraceContext>,
    ) -> Result<Fulfilled, LedgerError> {
        self.fulfil_each(orders, traces, Dedup::Purchases).await
    }

    /// The same for the purchases of several messages about many. They are settled together.
    pub async fn fulfil_messages(&self, messages: &[&[OrderId]]) -> Result<Fulfilled, LedgerError> {
        let ids = messages.iter().map(|orders| OutboxKind::OrderPlaced.message_id_of_many(orders));
        let (ids, orders): (Vec<Uuid>, Vec<OrderId>) = (ids.collect(), messages.concat());
        self.fulfil_each(&orders, &HashMap::new(), Dedup::Messages(&ids)).await
    }

    /// Fulfils all in one transaction, or each alone where the stock is too little for all, or one was made by another transaction.
    async fn fulfil_each(
        &self,
        orders: &[OrderId],
        traces: &HashMap<OrderId, TraceContext>,
        dedup: Dedup<'_>,
    ) -> Result<Fulfilled, LedgerError> {
        let on_shortage = if orders.len() == 1 { OnShortage::Reject } else { OnShortage::GiveUp };
        if let Some(done) = unless_made_meanwhile(self.fulfil_group(orders, traces, dedup, on_shortage).await)? {
            return Ok(done);
        }
        let mut sum = Fulfilled::default();
        for order in orders {
            let alone = std::slice::from_ref(order);
            let fulfil = || self.fulfil_group(alone, traces, Dedup::Purchases, OnShortage::Reject);
            let done = match unless_made_meanwhile(fulfil().await)? {
                Some(done) => done,
                // The order is there now, for all to see.
                None => fulfil().await?.unwrap_or_default(),
            };
            sum.accepted += done.accepted;
            sum.rejected += done.rejected;
            sum.skipped += done.skipped;
        }
        Ok(sum)
    }

    /// Fulfils a group in one transaction; `None` when the stock was too little and the group was rolled back.
    async fn fulfil_group(
        &self,
        orders: &[OrderId],
        traces: &HashMap<OrderId, TraceContext>,
        dedup: Dedup<'_>,
        on_shortage: OnShortage,
    ) -> Result<Option<Fulfilled>, LedgerError> {
        let mut tx = self.begin().await?;
        let rows = claim(&mut tx, orders, dedup).await?;
        let skipped = orders.len().saturating_sub(rows.len());
        let (mut taken, over) = count_buyers(&mut tx, rows).await?;
        let mut rejected: Vec<(Row, Rejection)> = over.into_iter().map(|row| (row, Rejection::OverLimit)).collect();
        match on_shortage {
            OnShortage::GiveUp => {
                write_orders(&mut tx, &taken, &rejected, traces).await?;
                // Last, so that the sale's row is locked for a commit, and not for a batch. A shortage undoes everything anyway.
                if !take_stock(&mut tx, &taken).await?.is_empty() {
                    return Ok(None);
                }
            }
            OnShortage::Reject => {
                // First, because the order is made as the stock allows.
                for sale in take_stock(&mut tx, &taken).await? {
                    let (short, rest) = taken.into_iter().partition(|row| row.sale == sale);
                    taken = rest;
                    uncount_buyers(&mut tx, &short).await?;
                    rejected.extend(short.into_iter().map(|row| (row, Rejection::OutOfStock)));
                    order_refill(&mut tx, sale).await?;
                }
                write_orders(&mut tx, &taken, &rejected, traces).await?;
            }
        }
        die_at!("fulfil.before_commit");
        tx.commit().await?;
        die_at!("fulfil.after_commit");
        Ok(Some(Fulfilled { accepted: taken.len(), rejected: rejected.len(), skipped }))
    }
}

/// `None` also when another transaction has made one of the orders meanwhile, from another record of it: nothing was changed.
fn unless_made_meanwhile(done: Result<Option<Fulfilled>, LedgerError>) -> Result<Option<Fulfilled>, LedgerError> {
    match done {
        Err(LedgerError::Refused(constraint)) if constraint == "orders_pkey" => Ok(None),
        done => done,
    }
}

/// Adds the units to the buyers' counters. Returns the rows within the limit, and those that exceed it.
async fn count_buyers(tx: &mut PgConnection, rows: Vec<Row>) -> Result<(Vec<Row>, Vec<Row>), LedgerError> {
    let (mut within, mut over) = (Vec::with_capacity(rows.len()), Vec::new());
    // One statement can count a buyer once: the further purchases of the same buyer wait for the next round.
    let mut waiting = rows;
    while !waiting.is_empty() {
        let mut round: BTreeMap<(i64, String), Row> = BTreeMap::new();
        let mut later = Vec::new();
        for row in waiting {
            if row.quantity > row.per_user {
                over.push(row);
            } else if let std::collections::btree_map::Entry::Vacant(place) = round.entry((row.sale, row.user.clone()))
            {
                place.insert(row);
            } else {
                later.push(row);
            }
        }
        waiting = later;
        let sales: Vec<i64> = round.values().map(|row| row.sale).collect();
        let users: Vec<String> = round.values().map(|row| row.user.clone()).collect();
        let units: Vec<i32> = round.values().map(|row| row.quantity).collect();
        let limits: Vec<i32> = round.values().map(|row| row.per_user).collect();
        let counted = sqlx::query!(
            "INSERT INTO sale_buyers (sale_id, user_id, units, per_user)
             SELECT * FROM unnest($1::bigint[], $2::text[], $3::integer[], $4::integer[])
             ON CONFLICT (sale_id, user_id) DO UPDATE SET units = sale_buyers.units + excluded.units
               WHERE sale_buyers.units + excluded.units <= sale_buyers.per_user
             RETURNING sale_id, user_id",
            &sales,
            &users,
            &units,
            &limits
        )
        .fetch_all(&mut *tx)
        .await?;
        for counted in counted {
            within.extend(round.remove(&(counted.sale_id, counted.user_id)));
        }
        over.extend(round.into_values());
    }
    Ok((within, over))
}

/// Takes the units off the buyers' counters again.
async fn uncount_buyers(tx: &mut PgConnection, rows: &[Row]) -> Result<(), LedgerError> {
    for row in rows {
        sqlx::query!(
            "UPDATE sale_buyers SET units = units - $3 WHERE sale_id = $1 AND user_id = $2",
            row.sale,
            row.user,
            row.quantity
        )
        .execute(&mut *tx)
        .await?;
    }
    Ok(())
}

/// Takes the units from the stock, one update a sale. Returns the sales that have too few.
async fn take_stock(tx: &mut PgConnection, rows: &[Row]) -> Result<Vec<i64>, LedgerError> {
    let mut needed: BTreeMap<i64, i64> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.unlimited) {
        *needed.entry(row.sale).or_default() += i64::from(row.quantity);
    }
    take_units(tx, &needed).await
}

/// Takes so many units from the stock of each sale. Returns the sales that have too few.
pub(super) async fn take_units(tx: &mut PgConnection, needed: &BTreeMap<i64, i64>) -> Result<Vec<i64>, LedgerError> {
    let mut short = Vec::new();
    for (&sale, &units) in needed {
        let taken = sqlx::query!("UPDATE sales SET stock = stock - $2 WHERE id = $1 AND stock >= $2", sale, units)
            .execute(&mut *tx)
            .await?;
        if taken.rows_affected() == 0 {
            short.push(sale);
        }
    }
    Ok(short)
}

/// Lets a sale be refilled: Redis has sold more than there is, so its stock is wrong.
async fn order_refill(tx: &mut PgConnection, sale: i64) -> Result<(), LedgerError> {
    sqlx::query!("UPDATE sale_epochs SET run_id = NULL WHERE sale_id = $1", sale).execute(&mut *tx).await?;
    Ok(())
}

/// Writes the orders, marks their purchase rows as processed, and adds outbox rows: the expiry of an order that waits for
/// payment, the hold release of one that was rejected.
async fn write_orders(
    tx: &mut PgConnection,
    taken: &[Row],
    rejected: &[(Row, Rejection)],
    traces: &HashMap<OrderId, TraceContext>,
) -> Result<(), LedgerError> {
    let rows = || taken.iter().map(|row| (row, None)).chain(rejected.iter().map(|(row, why)| (row, Some(*why))));
    let reasons: Vec<Option<String>> = rows().map(|(_, why)| why.map(|why| <&str>::from(why).to_owned())).collect();
    let returns: Vec<bool> = rows().map(|(_, why)| why != Some(Rejection::OutOfStock)).collect();
    let ids: Vec<i64> = rows().map(|(row, _)| row.id).collect();
    let amounts: Vec<i64> = rows().map(|(row, _)| row.price_cents * i64::from(row.quantity)).collect();
    let pay_within: Vec<i64> = rows().map(|(row, _)| row.pay_within_ms).collect();
    // An array that is too short is filled up with NULL.
    let traces: Vec<Option<String>> = match traces.is_empty() {
        true => Vec::new(),
        false => rows().map(|(row, _)| traces.get(&OrderId(row.order)).map(TraceContext::to_text)).collect(),
    };
    sqlx::query!(
        "WITH decided AS (
           SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::boolean[], $6::text[])
                      AS d (id, reason, amount_cents, pay_within_ms, returns_units, trace)),
         purchases AS (
           UPDATE outbox o SET status = 'processed', processed_at = now(), sent_at = coalesce(sent_at, now())
           FROM decided d WHERE o.id = d.id
           RETURNING o.order_id, o.sale_id, o.user_id, o.quantity, o.epoch, o.shard,
                     d.reason, d.amount_cents, d.returns_units, coalesce(d.trace, o.trace) AS trace,
                     now() + d.pay_within_ms * interval '1 ms' AS expires_at),
         made AS (
           INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, shard, status, reason, expires_at, trace)
           SELECT order_id, sale_id, user_id, quantity, amount_cents, shard,
                  CASE WHEN reason IS NULL THEN 'pending_payment' ELSE 'rejected' END, reason, expires_at, trace
           FROM purchases)
         INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard, due_at, returns_units)
         SELECT CASE WHEN reason IS NULL THEN 'order_expire' ELSE 'hold_release' END,
                order_id, sale_id, user_id, quantity, epoch, shard,
                CASE WHEN reason IS NULL THEN expires_at END,
                CASE WHEN reason IS NOT NULL THEN returns_units END
         FROM purchases",
        &ids,
        &reasons as &[Option<String>],
        &amounts,
        &pay_within,
        &returns,
        &traces as &[Option<String>]
    )
    .execute(&mut *tx)
    .await?;
    Ok(())
}
