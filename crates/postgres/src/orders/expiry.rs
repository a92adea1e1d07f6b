//! Cancels unpaid orders at their deadline (protocol, rule 8), a whole group at once. A single order counts as a group of one.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use crate::orders::cancel::{cancel, lock_overdue, settle_expiries};
use crate::orders::groups::{GroupSize, uuids};
use crate::outbox::close_split;
use crate::{LedgerError, Orders, numbers};
use seckill_domain::ids::{GroupId, SaleId};
use seckill_domain::message::OutboxKind;
use seckill_domain::order::CancelReason;
use seckill_runtime::die_at;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryOutcome {
    /// All orders have ended or are paid.
    Settled,
    /// The shortest time that an order has left.
    Early { remaining_ms: i64 },
}

impl Orders {
    /// The sizes of these groups, each once. A single order of a larger group counts as one member. So does an unknown id, without a sale.
    pub async fn group_sizes(&self, groups: &[GroupId]) -> Result<Vec<GroupSize>, LedgerError> {
        let mut ids = uuids(groups);
        ids.sort_unstable();
        ids.dedup();
        let rows = sqlx::query!(
            r#"SELECT id AS "id!", sale_id AS "sale_id!", members AS "members!" FROM purchase_groups WHERE id = ANY($1)
               UNION ALL
               SELECT id, sale_id, 1 FROM orders WHERE id = ANY($1) AND group_id <> id"#,
            &ids
        );
        let rows = rows.fetch_all(&self.0.pool).await?;
        let sizes = rows.into_iter().map(|row| (row.id, GroupSize::new(row.id, row.sale_id, row.members)));
        let sizes: HashMap<Uuid, GroupSize> = sizes.collect();
        Ok(ids.into_iter().map(|id| sizes.get(&id).copied().unwrap_or(GroupSize::new(id, 0, 1))).collect())
    }

    /// Cancels the unpaid, overdue orders of these groups in one transaction. A group is early while a payment in flight began in time.
    pub async fn expire(&self, groups: &[GroupId]) -> Result<Vec<(GroupId, ExpiryOutcome)>, LedgerError> {
        let ids = uuids(groups);
        let mut tx = self.0.begin().await?;
        let mut orders = sqlx::query_scalar!(
            r#"SELECT m.order_id AS "order!" FROM purchase_groups g CROSS JOIN LATERAL unnest(g.order_ids) AS m (order_id)
               WHERE g.id = ANY($1) AND g.members > 1"#,
            &ids
        )
        .fetch_all(&mut *tx)
        .await?;
        orders.extend(&ids);
        let overdue = lock_overdue(&mut tx, &orders).await?;
        cancel(&mut tx, overdue, CancelReason::Expired).await?;
        // Read last: a payment that began meanwhile has prolonged its order, and the order was not cancelled.
        let unpaid = sqlx::query!(
            r#"SELECT id, group_id, ceil(extract(epoch FROM coalesce(wait_until, expires_at) - now()) * 1000)::bigint AS "remaining_ms!"
               FROM orders WHERE id = ANY($1) AND status || '' = 'pending_payment'"#,
            &orders
        )
        .fetch_all(&mut *tx)
        .await?;
        let mut early = BTreeMap::<Uuid, i64>::new();
        for row in unpaid {
            for of in [row.id, row.group_id] {
                early.entry(of).and_modify(|ms| *ms = row.remaining_ms.min(*ms)).or_insert(row.remaining_ms);
            }
        }
        let ended: Vec<Uuid> = ids.iter().copied().filter(|id| !early.contains_key(id)).collect();
        settle_expiries(&mut tx, &ended).await?;
        die_at!("expire.before_commit");
        tx.commit().await?;
        die_at!("expire.after_commit");
        let expiry = |id| early.get(id).map_or(ExpiryOutcome::Settled, |ms| ExpiryOutcome::Early { remaining_ms: *ms });
        Ok(ids.iter().map(|id| (GroupId(*id), expiry(id))).collect())
    }

    /// Gives each unpaid order of a group its own expiry instead of the group's. Returns their number; `None` if the group's was closed.
    pub async fn split_expiry(&self, group: GroupId, why: &str) -> Result<Option<u64>, LedgerError> {
        let mut tx = self.0.begin().await?;
        if !close_split(&mut tx, OutboxKind::GroupExpire, group, why).await? {
            return Ok(None);
        }
        // If an order is paid meanwhile, its expiry has no effect.
        let rows = sqlx::query!(
            "INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, due_at)
             SELECT 'group_expire', o.id, o.sale_id, o.quantity, o.shard, o.expires_at
             FROM purchase_groups g CROSS JOIN LATERAL unnest(g.order_ids) AS m (order_id)
             JOIN orders o ON o.id = m.order_id AND o.status || '' = 'pending_payment'
             WHERE g.id = $1 ORDER BY o.id ON CONFLICT (kind, order_id) DO NOTHING",
            group.0
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(Some(rows.rows_affected()))
    }

    /// Orders that are overdue by more than `grace_ms`, because their message was lost. Each is named as a group of one. Orders with a
    /// parked expiry are left to people. Sales in `without` are skipped.
    pub async fn overdue(&self, grace_ms: u64, limit: i64, without: &[SaleId]) -> Result<Vec<GroupId>, LedgerError> {
        let ids = sqlx::query_scalar!(
            "SELECT id FROM orders o
             WHERE status = 'pending_payment' AND expires_at < now() - $1::bigint * interval '1 ms'
               AND coalesce(wait_until, expires_at) < now() - $1::bigint * interval '1 ms'
               AND NOT EXISTS (SELECT FROM outbox p WHERE p.kind = 'group_expire' AND p.order_id IN (o.id, o.group_id)
                               AND (p.status = 'parked' OR p.attempts > 0 AND p.next_attempt_at > now()))
               AND sale_id <> ALL($3)
             ORDER BY expires_at LIMIT $2",
            grace_ms.cast_signed(),
            limit,
            &numbers(without)
        )
        .fetch_all(&self.0.pool)
        .await?;
        Ok(ids.into_iter().map(GroupId).collect())
    }
}
