//! The statements that make purchases durable (protocol, rule 3): purchase rows, and rows for whole groups.

use std::collections::HashSet;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::domain::ids::{GroupId, SaleId};
use crate::domain::trace_context::TraceContext;
use crate::ledger::LedgerError;
use crate::ledger::orders::purchase::{Committed, Purchase};

/// What became of purchases, in their order.
pub(super) struct Inserted {
    pub outcomes: Vec<Committed>,
    /// Whether group rows were not written because purchases are not committed as groups (`seckill upgrade groups off`).
    pub ungrouped: bool,
}

/// Purchases as the columns of a statement.
struct Columns<'a> {
    orders: Vec<Uuid>,
    sales: Vec<i64>,
    users: Vec<&'a str>,
    units: Vec<i32>,
    addresses: Vec<Option<&'a str>>,
    epochs: Vec<i64>,
    shards: Vec<i16>,
    traces: Vec<Option<String>>,
}

impl<'a> Columns<'a> {
    fn of(purchases: &[&'a Purchase]) -> Self {
        // An array that is too short is filled up with NULL, so one that is all NULL is empty.
        let traces = match purchases.iter().all(|purchase| purchase.trace.is_none()) {
            true => Vec::new(),
            false => purchases.iter().map(|purchase| purchase.trace().map(TraceContext::to_text)).collect(),
        };
        Self {
            orders: purchases.iter().map(|p| p.order.0).collect(),
            sales: purchases.iter().map(|p| p.sale.get()).collect(),
            users: purchases.iter().map(|p| p.user.as_str()).collect(),
            units: purchases.iter().map(|p| p.units).collect(),
            addresses: purchases.iter().map(|p| p.address.as_deref()).collect(),
            epochs: purchases.iter().map(|p| p.hold.epoch.0).collect(),
            shards: purchases.iter().map(|p| p.hold.shard.0).collect(),
            traces,
        }
    }
}

/// The groups among purchases as the columns of a statement. The members of a group stand side by side in the columns of all members.
#[derive(Default)]
struct Groups<'a> {
    members: Vec<&'a Purchase>,
    ids: Vec<Uuid>,
    sales: Vec<i64>,
    epochs: Vec<i64>,
    shards: Vec<i16>,
    /// The first and the last member, counted from 1.
    firsts: Vec<i32>,
    lasts: Vec<i32>,
    units: Vec<i32>,
}

impl<'a> Groups<'a> {
    /// A group are all purchases that name it, in their order. They have the same sale, epoch and shard, because one call to Redis has
    /// answered all of them.
    fn of(purchases: &'a [Purchase]) -> Self {
        let mut members: Vec<(GroupId, &Purchase)> = purchases.iter().filter_map(|p| Some((p.group?, p))).collect();
        members.sort_by_key(|(group, _)| *group);
        let mut groups = Self::default();
        for (id, purchase) in members {
            groups.members.push(purchase);
            let place = i32::try_from(groups.members.len()).unwrap_or(i32::MAX);
            if groups.ids.last() == Some(&id.0)
                && let (Some(last), Some(units)) = (groups.lasts.last_mut(), groups.units.last_mut())
            {
                *last = place;
                *units = units.saturating_add(purchase.units);
                continue;
            }
            groups.ids.push(id.0);
            groups.sales.push(purchase.sale.get());
            groups.epochs.push(purchase.hold.epoch.0);
            groups.shards.push(purchase.hold.shard.0);
            groups.firsts.push(place);
            groups.lasts.push(place);
            groups.units.push(purchase.units);
        }
        groups
    }
}

/// Inserts purchases in one transaction, each only if its epoch is still the sale's: those that name a group as its members, all others
/// as purchase rows. Says of each whether it is in the tables afterwards.
pub(super) async fn insert_on(connection: &mut PgConnection, purchases: &[Purchase]) -> Result<Inserted, LedgerError> {
    if purchases.iter().any(|purchase| purchase.group.is_some()) {
        return insert_groups_on(connection, purchases).await;
    }
    let all: Vec<&Purchase> = purchases.iter().collect();
    Ok(Inserted { outcomes: insert_rows_on(connection, &all).await?, ungrouped: false })
}

/// Those of the sales whose epochs no other transaction keeps locked.
pub(super) async fn unlocked_epochs(
    connection: &mut PgConnection,
    sales: &[SaleId],
) -> Result<HashSet<SaleId>, LedgerError> {
    let sales: Vec<i64> = sales.iter().map(|sale| sale.get()).collect();
    let free = sqlx::query_scalar!(
        "SELECT sale_id FROM sale_epochs WHERE sale_id = ANY($1) ORDER BY sale_id FOR KEY SHARE SKIP LOCKED",
        &sales
    );
    Ok(free.fetch_all(connection).await?.into_iter().map(SaleId::from_db).collect())
}

/// Does all that a commit does, with nothing to write.
pub(super) async fn insert_nothing_on(connection: &mut PgConnection) -> Result<(), LedgerError> {
    insert_groups_on(connection, &[]).await.map(drop)
}

/// Inserts purchase rows, whatever group the purchases name.
async fn insert_rows_on(connection: &mut PgConnection, purchases: &[&Purchase]) -> Result<Vec<Committed>, LedgerError> {
    let rows = Columns::of(purchases);
    // One statement: one round trip and one commit. FOR KEY SHARE makes a raise of the epoch wait for this insert, or this insert see
    // the new epoch; other changes of the row pass. The order by key keeps two groups with the same rows from a deadlock.
    let inserted = sqlx::query!(
        "WITH current AS MATERIALIZED (
               SELECT sale_id, epoch FROM sale_epochs WHERE sale_id = ANY($2) ORDER BY sale_id FOR KEY SHARE)
             INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard, address, trace)
             SELECT 'order_placed', p.order_id, p.sale_id, p.user_id, p.quantity, p.epoch, p.shard, p.address, p.trace
             FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::integer[], $5::bigint[], $6::smallint[], $7::text[], $8::text[])
                    AS p (order_id, sale_id, user_id, quantity, epoch, shard, address, trace)
             JOIN current USING (sale_id, epoch)
             ORDER BY p.order_id
             ON CONFLICT (kind, order_id) DO NOTHING",
        &rows.orders,
        &rows.sales,
        &rows.users as &[&str],
        &rows.units,
        &rows.epochs,
        &rows.shards,
        &rows.addresses as &[Option<&str>],
        &rows.traces as &[Option<String>]
    )
    .execute(&mut *connection)
    .await?;
    if inserted.rows_affected() == purchases.len() as u64 {
        return Ok(vec![Committed::Durable; purchases.len()]);
    }
    let present = present_rows(connection, &rows.orders).await?;
    Ok(rows.orders.iter().map(|id| found(&present, *id)).collect())
}

/// Inserts group rows, and with them the purchase rows of those that name no group. Where purchases are not committed as groups, all
/// become purchase rows, by a second statement.
async fn insert_groups_on(connection: &mut PgConnection, purchases: &[Purchase]) -> Result<Inserted, LedgerError> {
    let groups = Groups::of(purchases);
    let singles: Vec<&Purchase> = purchases.iter().filter(|purchase| purchase.group.is_none()).collect();
    let (members, rows) = (Columns::of(&groups.members), Columns::of(&singles));
    let sales: Vec<i64> = groups.sales.iter().chain(&rows.sales).copied().collect();
    // As above. The switch is read FOR SHARE, too: a statement that switches groups off waits for this one, or this one sees the change. The order
    // by id keeps two statements with the same groups from a deadlock.
    let made = sqlx::query!(
        r#"WITH form AS MATERIALIZED (SELECT grouped FROM purchase_form WHERE grouped FOR SHARE),
                current AS MATERIALIZED (
                  SELECT sale_id, epoch FROM sale_epochs WHERE sale_id = ANY($1) ORDER BY sale_id FOR KEY SHARE),
                made AS (
                  INSERT INTO purchase_groups
                    (id, sale_id, epoch, shard, members, units, order_ids, user_ids, quantities, addresses)
                  SELECT g.id, g.sale_id, g.epoch, g.shard, g.last - g.first + 1, g.units, ($9::uuid[])[g.first:g.last],
                         ($10::text[])[g.first:g.last], ($11::integer[])[g.first:g.last], ($12::text[])[g.first:g.last]
                  FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::smallint[], $6::integer[], $7::integer[], $8::integer[])
                         AS g (id, sale_id, epoch, shard, first, last, units)
                  JOIN current USING (sale_id, epoch) CROSS JOIN form
                  ORDER BY g.id
                  ON CONFLICT (id) DO NOTHING
                  RETURNING id, sale_id, epoch, shard, units),
                announced AS (
                  INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard)
                  SELECT 'group_placed', id, sale_id, '', units, epoch, shard FROM made RETURNING order_id),
                alone AS (
                  INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard, address, trace)
                  SELECT 'order_placed', p.order_id, p.sale_id, p.user_id, p.quantity, p.epoch, p.shard, p.address, p.trace
                  FROM unnest($13::uuid[], $14::bigint[], $15::text[], $16::integer[], $17::bigint[], $18::smallint[],
                              $19::text[], $20::text[])
                         AS p (order_id, sale_id, user_id, quantity, epoch, shard, address, trace)
                  JOIN current USING (sale_id, epoch)
                  ORDER BY p.order_id
                  ON CONFLICT (kind, order_id) DO NOTHING RETURNING order_id)
           SELECT EXISTS (SELECT FROM form) AS "grouped!", ARRAY(SELECT order_id FROM announced) AS "groups!",
                  ARRAY(SELECT order_id FROM alone) AS "rows!""#,
        &sales,
        &groups.ids,
        &groups.sales,
        &groups.epochs,
        &groups.shards,
        &groups.firsts,
        &groups.lasts,
        &groups.units,
        &members.orders,
        &members.users as &[&str],
        &members.units,
        &members.addresses as &[Option<&str>],
        &rows.orders,
        &rows.sales,
        &rows.users as &[&str],
        &rows.units,
        &rows.epochs,
        &rows.shards,
        &rows.addresses as &[Option<&str>],
        &rows.traces as &[Option<String>]
    )
    .fetch_one(&mut *connection)
    .await?;
    if !made.grouped {
        let all: Vec<&Purchase> = purchases.iter().collect();
        return Ok(Inserted { outcomes: insert_rows_on(connection, &all).await?, ungrouped: true });
    }
    let mut present_groups: HashSet<Uuid> = made.groups.into_iter().collect();
    if present_groups.len() < groups.ids.len() {
        let known = sqlx::query_scalar!("SELECT id FROM purchase_groups WHERE id = ANY($1)", &groups.ids);
        present_groups.extend(known.fetch_all(&mut *connection).await?);
    }
    let mut present: HashSet<Uuid> = made.rows.into_iter().collect();
    if present.len() < rows.orders.len() {
        present.extend(present_rows(connection, &rows.orders).await?);
    }
    let outcome = |purchase: &Purchase| match purchase.group {
        Some(group) => found(&present_groups, group.0),
        None => found(&present, purchase.order.0),
    };
    Ok(Inserted { outcomes: purchases.iter().map(outcome).collect(), ungrouped: false })
}

/// Those of the orders that have a purchase row.
async fn present_rows(connection: &mut PgConnection, orders: &[Uuid]) -> Result<HashSet<Uuid>, LedgerError> {
    let present =
        sqlx::query_scalar!("SELECT order_id FROM outbox WHERE kind = 'order_placed' AND order_id = ANY($1)", orders);
    Ok(present.fetch_all(connection).await?.into_iter().collect())
}

fn found(present: &HashSet<Uuid>, id: Uuid) -> Committed {
    if present.contains(&id) { Committed::Durable } else { Committed::StaleEpoch }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::admission::Hold;
    use crate::domain::ids::{Epoch, OrderId, SaleId, Shard};

    fn purchase(n: u128, group: Option<u128>) -> Purchase {
        Purchase {
            order: OrderId(Uuid::from_u128(n)),
            sale: SaleId::from_db(i64::try_from(group.unwrap_or(9)).unwrap()),
            user: "ann".to_owned(),
            units: 2,
            address: None,
            hold: Hold { epoch: Epoch(3), shard: Shard::FIRST },
            group: group.map(|group| GroupId(Uuid::from_u128(group))),
            trace: None,
        }
    }

    #[test]
    fn members_of_a_group_are_a_range_of_all_members_wherever_they_stood() {
        let purchases = [
            purchase(1, Some(1)),
            purchase(2, None),
            purchase(3, Some(1)),
            purchase(4, Some(2)),
            purchase(5, Some(3)),
            purchase(6, Some(1)),
        ];
        let groups = Groups::of(&purchases);
        assert_eq!(groups.ids, [1, 2, 3].map(Uuid::from_u128));
        assert_eq!(groups.sales, [1, 2, 3]);
        assert_eq!((groups.firsts, groups.lasts, groups.units), (vec![1, 4, 5], vec![3, 4, 5], vec![6, 2, 2]));
        let members: Vec<Uuid> = groups.members.iter().map(|member| member.order.0).collect();
        assert_eq!(members, [1, 3, 6, 4, 5].map(Uuid::from_u128));
    }
}
