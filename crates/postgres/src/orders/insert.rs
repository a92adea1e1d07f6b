//! The statement that makes purchases durable (protocol, rule 3): a row for each group, and its outbox row.

use std::collections::HashSet;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::orders::purchase::{CommitOutcome, Purchase};
use crate::{LedgerError, numbers};
use seckill_domain::ids::{GroupId, SaleId};
use seckill_domain::trace_context::TraceContext;

/// Groups as the columns of a statement. The members of a group are neighbours in the member columns.
#[derive(Default)]
struct Groups<'a> {
    ids: Vec<Uuid>,
    sales: Vec<i64>,
    epochs: Vec<i64>,
    shards: Vec<i16>,
    /// The first and last member, counted from 1.
    firsts: Vec<i32>,
    lasts: Vec<i32>,
    units: Vec<i32>,
    traces: Vec<Option<String>>,
    orders: Vec<Uuid>,
    users: Vec<&'a str>,
    quantities: Vec<i32>,
    addresses: Vec<Option<&'a str>>,
}

impl<'a> Groups<'a> {
    /// A group is all purchases with its id, in their order. One call to Redis has answered all, so they have one sale, epoch and shard.
    fn of(purchases: &'a [Purchase]) -> Self {
        let mut members: Vec<&Purchase> = purchases.iter().collect();
        members.sort_by_key(|purchase| purchase.group);
        let mut groups = Self::default();
        for purchase in members {
            let is_known = groups.ids.last() == Some(&purchase.group.0);
            // Two callers commit the same order as a group of one.
            if is_known && purchase.group == GroupId::of_one(purchase.order) {
                continue;
            }
            groups.orders.push(purchase.order.0);
            groups.users.push(&purchase.user);
            groups.quantities.push(purchase.units);
            groups.addresses.push(purchase.address.as_deref());
            let place = i32::try_from(groups.orders.len()).unwrap_or(i32::MAX);
            if is_known && let (Some(last), Some(units)) = (groups.lasts.last_mut(), groups.units.last_mut()) {
                *last = place;
                *units = units.saturating_add(purchase.units);
                continue;
            }
            groups.ids.push(purchase.group.0);
            groups.sales.push(purchase.sale.get());
            groups.epochs.push(purchase.hold.epoch.0);
            groups.shards.push(purchase.hold.shard.0);
            groups.firsts.push(place);
            groups.lasts.push(place);
            groups.units.push(purchase.units);
            groups.traces.push(purchase.trace().map(TraceContext::to_text));
        }
        groups
    }
}

/// Inserts the groups of these purchases that are of their sale's current epoch. Returns for each purchase whether its group has a row.
pub(super) async fn insert_on(
    connection: &mut PgConnection,
    purchases: &[Purchase],
) -> Result<Vec<CommitOutcome>, LedgerError> {
    let groups = Groups::of(purchases);
    // One statement: one round trip and one commit. FOR KEY SHARE conflicts only with a raise of the epoch: the raise waits for this
    // insert, or this insert sees the new epoch. The order by id avoids deadlocks of two statements with the same groups.
    let inserted = sqlx::query_scalar!(
        r#"WITH current AS MATERIALIZED (
             SELECT sale_id, epoch FROM sale_epochs WHERE sale_id = ANY($2) ORDER BY sale_id FOR KEY SHARE),
           wanted AS MATERIALIZED (
             SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::smallint[], $5::integer[], $6::integer[], $7::integer[],
                                  $8::text[]) AS g (id, sale_id, epoch, shard, first, last, units, trace)),
           made AS (
             INSERT INTO purchase_groups
               (id, sale_id, epoch, shard, members, units, order_ids, user_ids, quantities, addresses)
             SELECT g.id, g.sale_id, g.epoch, g.shard, g.last - g.first + 1, g.units, ($9::uuid[])[g.first:g.last],
                    ($10::text[])[g.first:g.last], ($11::integer[])[g.first:g.last], ($12::text[])[g.first:g.last]
             FROM wanted g JOIN current USING (sale_id, epoch)
             ORDER BY g.id
             ON CONFLICT (id) DO NOTHING
             RETURNING id, sale_id, shard, units)
           INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, trace)
           SELECT 'group_placed', id, m.sale_id, m.units, m.shard, w.trace FROM made m JOIN wanted w USING (id)
           RETURNING order_id"#,
        &groups.ids,
        &groups.sales,
        &groups.epochs,
        &groups.shards,
        &groups.firsts,
        &groups.lasts,
        &groups.units,
        &groups.traces as &[Option<String>],
        &groups.orders,
        &groups.users as &[&str],
        &groups.quantities,
        &groups.addresses as &[Option<&str>]
    );
    let mut present: HashSet<Uuid> = inserted.fetch_all(&mut *connection).await?.into_iter().collect();
    if present.len() < groups.ids.len() {
        let known = sqlx::query_scalar!("SELECT id FROM purchase_groups WHERE id = ANY($1)", &groups.ids);
        present.extend(known.fetch_all(connection).await?);
    }
    let outcome = |purchase: &Purchase| match present.contains(&purchase.group.0) {
        true => CommitOutcome::Durable,
        false => CommitOutcome::StaleEpoch,
    };
    Ok(purchases.iter().map(outcome).collect())
}

pub(super) async fn unlocked_epochs(
    connection: &mut PgConnection,
    sales: &[SaleId],
) -> Result<HashSet<SaleId>, LedgerError> {
    let free = sqlx::query_scalar!(
        "SELECT sale_id FROM sale_epochs WHERE sale_id = ANY($1) ORDER BY sale_id FOR KEY SHARE SKIP LOCKED",
        &numbers(sales)
    );
    Ok(free.fetch_all(connection).await?.into_iter().map(SaleId::from_db).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use seckill_domain::admission::Hold;
    use seckill_domain::ids::{Epoch, OrderId, SaleId, Shard};

    fn purchase(n: u128, group: u128) -> Purchase {
        Purchase {
            order: OrderId(Uuid::from_u128(n)),
            sale: SaleId::from_db(i64::try_from(group).unwrap()),
            user: "ann".to_owned(),
            units: 2,
            address: None,
            hold: Hold { epoch: Epoch(3), shard: Shard::FIRST },
            group: GroupId(Uuid::from_u128(group)),
            trace: None,
        }
    }

    #[test]
    fn members_of_a_group_are_a_range_of_all_members_wherever_they_stood() {
        let purchases = [purchase(1, 1), purchase(3, 1), purchase(4, 2), purchase(5, 3), purchase(6, 1)];
        let groups = Groups::of(&purchases);
        assert_eq!(groups.ids, [1, 2, 3].map(Uuid::from_u128));
        assert_eq!(groups.sales, [1, 2, 3]);
        assert_eq!((groups.firsts, groups.lasts, groups.units), (vec![1, 4, 5], vec![3, 4, 5], vec![6, 2, 2]));
        assert_eq!(groups.orders, [1, 3, 6, 4, 5].map(Uuid::from_u128));
    }

    #[test]
    fn an_order_that_is_committed_twice_at_once_is_one_member() {
        let purchases = [purchase(7, 7), purchase(8, 8), purchase(7, 7)];
        let groups = Groups::of(&purchases);
        assert_eq!(
            (groups.ids, groups.orders),
            ([7, 8].map(Uuid::from_u128).into(), [7, 8].map(Uuid::from_u128).into())
        );
        assert_eq!((groups.firsts, groups.lasts, groups.units), (vec![1, 2], vec![1, 2], vec![2, 2]));
    }
}
