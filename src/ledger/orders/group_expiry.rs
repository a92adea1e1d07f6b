//! Cancels the unpaid orders of groups (protocol, rule 8): those that were settled together have one deadline, and one message.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use crate::die_at;
use crate::domain::ids::{GroupId, SaleId};
use crate::domain::order::CancelReason;
use crate::ledger::orders::cancel::{ExpiryOutcome, Releases, cancel, lock_overdue};
use crate::ledger::orders::groups::GroupSize;
use crate::ledger::outbox::one_line;
use crate::ledger::{Ledger, LedgerError};

impl Ledger {
    /// The groups with the number of their members, each once. One that is not known any more counts as one member, of no sale.
    pub async fn group_sizes(&self, groups: &[GroupId]) -> Result<Vec<GroupSize>, LedgerError> {
        let mut ids: Vec<Uuid> = groups.iter().map(|group| group.0).collect();
        ids.sort_unstable();
        ids.dedup();
        let rows = sqlx::query!("SELECT id, sale_id, members FROM purchase_groups WHERE id = ANY($1)", &ids);
        let rows = rows.fetch_all(&self.pool).await?;
        let sizes: HashMap<Uuid, (i64, i32)> =
            rows.into_iter().map(|row| (row.id, (row.sale_id, row.members))).collect();
        let size = |id: Uuid| {
            let (sale, members) = sizes.get(&id).copied().unwrap_or((0, 1));
            GroupSize {
                group: GroupId(id),
                sale: SaleId::from_db(sale),
                members: usize::try_from(members).unwrap_or(1),
            }
        };
        Ok(ids.into_iter().map(size).collect())
    }

    /// Cancels the orders of these groups that are unpaid and overdue, in one transaction. Returns the outcome of each group: while one of
    /// its orders waits for a payment that began in time, the group is early by the shortest time that one has left.
    pub async fn expire_groups(&self, groups: &[GroupId]) -> Result<Vec<(GroupId, ExpiryOutcome)>, LedgerError> {
        let ids: Vec<Uuid> = groups.iter().map(|group| group.0).collect();
        let mut tx = self.begin().await?;
        let orders = sqlx::query_scalar!(
            r#"SELECT m.order_id AS "order!" FROM purchase_groups g CROSS JOIN LATERAL unnest(g.order_ids) AS m (order_id)
               WHERE g.id = ANY($1)"#,
            &ids
        )
        .fetch_all(&mut *tx)
        .await?;
        let overdue = lock_overdue(&mut tx, &orders).await?;
        cancel(&mut tx, overdue, CancelReason::Expired, Releases::Together).await?;
        // Only now: a payment that began meanwhile has prolonged an order, which was then not cancelled.
        let early = sqlx::query!(
            r#"SELECT group_id AS "group!",
                      ceil(extract(epoch FROM min(coalesce(wait_until, expires_at)) - now()) * 1000)::bigint AS "remaining_ms!"
               FROM orders
               WHERE id = ANY($1) AND group_id = ANY($2) AND status || '' = 'pending_payment' GROUP BY group_id"#,
            &orders,
            &ids
        )
        .fetch_all(&mut *tx)
        .await?;
        let early: BTreeMap<Uuid, i64> = early.into_iter().map(|row| (row.group, row.remaining_ms)).collect();
        let ended: Vec<Uuid> = ids.iter().copied().filter(|id| !early.contains_key(id)).collect();
        // Rows that the relay has locked are skipped, as those of single orders are.
        sqlx::query!(
            "UPDATE outbox SET status = 'processed', processed_at = now()
             WHERE id IN (SELECT id FROM outbox WHERE kind = 'group_expire' AND order_id = ANY($1) AND status || '' <> 'processed'
                          FOR UPDATE SKIP LOCKED)",
            &ended
        )
        .execute(&mut *tx)
        .await?;
        die_at!("expire_group.before_commit");
        tx.commit().await?;
        die_at!("expire_group.after_commit");
        let expiry = |id| early.get(id).map_or(ExpiryOutcome::Settled, |ms| ExpiryOutcome::Early { remaining_ms: *ms });
        Ok(ids.iter().map(|id| (GroupId(*id), expiry(id))).collect())
    }

    /// Gives each unpaid order of a group an expiry of its own, and closes the group's: all in one transaction. Returns how many there are;
    /// `None` when the group's expiry was closed before.
    pub async fn split_expiry(&self, group: GroupId, why: &str) -> Result<Option<u64>, LedgerError> {
        let mut tx = self.begin().await?;
        let closed = sqlx::query!(
            "UPDATE outbox SET status = 'processed', processed_at = now(), sent_at = coalesce(sent_at, now()), last_error = $2
             WHERE kind = 'group_expire' AND order_id = $1 AND status || '' <> 'processed'",
            group.0,
            one_line(why)
        )
        .execute(&mut *tx)
        .await?;
        if closed.rows_affected() == 0 {
            return Ok(None);
        }
        // One that is paid meanwhile has an expiry without effect.
        let rows = sqlx::query!(
            "INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard, due_at)
             SELECT 'order_expire', o.id, o.sale_id, o.user_id, o.quantity, g.epoch, o.shard, o.expires_at
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

    /// Splits expiries of groups that wait for their time, at most `limit`, so that an older version can read what is left. Returns how
    /// many were split.
    pub async fn split_some_expiries(&self, limit: i64) -> Result<usize, LedgerError> {
        let groups = sqlx::query_scalar!(
            r#"SELECT order_id AS "group!" FROM outbox WHERE kind = 'group_expire' AND status = 'pending'
               UNION ALL SELECT order_id FROM outbox WHERE kind = 'group_expire' AND status = 'sent'
               UNION ALL SELECT order_id FROM outbox WHERE kind = 'group_expire' AND status = 'parked'
               LIMIT $1"#,
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        let mut split = 0;
        for group in groups {
            split += usize::from(self.split_expiry(GroupId(group), "groups were switched off").await?.is_some());
        }
        Ok(split)
    }
}
