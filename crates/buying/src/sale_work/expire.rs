//! Cancels orders that were not paid in time (protocol, rule 8): by delayed messages, and by a slow sweeper in case a message was lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::group_work::GroupWork;
use crate::sale::{SaleError, Step};
use crate::sale_work::relay_messages::groups_expire;
use seckill_domain::delay::rung_for;
use seckill_domain::ids::GroupId;
use seckill_domain::message::{GroupsExpireV1, ORDERS_A_MESSAGE, OutboxKind};
use seckill_postgres::LedgerError;
use seckill_postgres::orders::expiry::ExpiryOutcome;
use seckill_postgres::orders::groups::GroupSize;
use seckill_rabbitmq::{Publisher, QueueError, Receipt};
use seckill_runtime::die_at;

#[derive(Clone)]
pub struct OrderExpiry {
    pub work: GroupWork,
    pub publisher: Arc<Publisher>,
}

impl OrderExpiry {
    /// Cancels the due orders of groups. The other groups get a new message for their remaining time. After an error, retry the whole batch.
    #[tracing::instrument(level = "debug", name = "expire", skip_all, fields(messages = messages.len()))]
    pub async fn settle(&self, messages: Vec<GroupsExpireV1>) -> Result<(), SaleError> {
        let groups: Vec<GroupId> = messages.into_iter().flat_map(|message| message.groups).collect();
        let mut early: BTreeMap<i64, Vec<GroupId>> = BTreeMap::new();
        for (group, expiry) in self.expire(&groups).await? {
            if let ExpiryOutcome::Early { remaining_ms } = expiry {
                early.entry(rung_for(remaining_ms)).or_default().push(group);
            }
        }
        let mut again = Vec::new();
        for (rung_ms, groups) in early {
            again.extend(groups.chunks(ORDERS_A_MESSAGE).map(|groups| groups_expire(groups.to_vec(), rung_ms)));
        }
        if again.is_empty() {
            return Ok(());
        }
        die_at!("expire.round_again");
        // The original messages are acknowledged only after these are confirmed.
        let receipts = self.publisher.publish(&again).await?;
        let all_confirmed = receipts.iter().all(|receipt| *receipt == Receipt::Confirmed);
        if all_confirmed { Ok(()) } else { Err(QueueError::Unconfirmed.into()) }
    }

    /// Cancels orders that are overdue by more than `grace_ms`, because their message was lost. Skips locked sales until later.
    pub async fn sweep(&self, grace_ms: u64, batch_max: usize) -> Result<Step, SaleError> {
        let limit = i64::try_from(batch_max).unwrap_or(i64::MAX);
        let overdue = self.work.ledger.orders.overdue(grace_ms, limit, &self.work.locked.all()).await?;
        if !overdue.is_empty() {
            tracing::warn!(orders = overdue.len(), "overdue orders found by the sweeper");
            self.expire(&overdue).await?;
        }
        Ok(Step::after(overdue.len(), batch_max))
    }

    /// Expires groups. Groups of locked sales are postponed, and have no outcome.
    async fn expire(&self, groups: &[GroupId]) -> Result<Vec<(GroupId, ExpiryOutcome)>, LedgerError> {
        let groups = self.work.ledger.orders.group_sizes(groups).await?;
        let expire = |groups: Vec<GroupSize>| async move { self.expire_together(&groups).await };
        self.work.in_transactions(OutboxKind::GroupExpire, groups, expire).await
    }

    async fn expire_together(&self, sizes: &[GroupSize]) -> Result<Vec<(GroupId, ExpiryOutcome)>, LedgerError> {
        let groups: Vec<GroupId> = sizes.iter().map(|size| size.group).collect();
        match self.work.ledger.orders.expire(&groups).await {
            Err(error) if !error.is_outage() => {
                tracing::warn!(%error, groups = groups.len(), "expiry failed, trying one by one");
            }
            done => return done,
        }
        let mut done = Vec::with_capacity(groups.len());
        for size in sizes {
            match self.work.ledger.orders.expire(&[size.group]).await {
                Ok(outcome) => done.extend(outcome),
                Err(error) if error.is_temporary() => return Err(error),
                Err(error) => self.expire_unusual(size, &error.to_string()).await?,
            }
        }
        Ok(done)
    }

    /// Splits the expiry of a group that cannot be cancelled whole, so that its orders are cancelled one by one. If the split fails, or for
    /// a single order, the message is sent again later, and finally parked.
    async fn expire_unusual(&self, size: &GroupSize, why: &str) -> Result<(), LedgerError> {
        let group = size.group;
        let failure = if size.members > 1 {
            match self.work.ledger.orders.split_expiry(group, why).await {
                Ok(orders) => {
                    tracing::warn!(%group, why, orders, "group not cancelled; its orders are, one by one");
                    return Ok(());
                }
                Err(error) if error.is_temporary() => return Err(error),
                Err(error) => error.to_string(),
            }
        } else {
            why.to_owned()
        };
        let parked =
            self.work.ledger.outbox.fail_message(OutboxKind::GroupExpire, group, &failure, self.work.retry).await?;
        tracing::error!(%group, failure, parked, "orders not cancelled");
        Ok(())
    }
}
