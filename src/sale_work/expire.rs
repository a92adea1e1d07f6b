//! Cancels orders that were not paid in time (protocol, rule 8): by delayed messages, and by a slow sweeper in case a message was lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use crate::die_at;
use crate::domain::delay::rung_for;
use crate::domain::ids::{GroupId, SaleId};
use crate::domain::locked_sales::LockedSales;
use crate::domain::message::{GroupsExpireV1, ORDERS_A_MESSAGE, OutboxKind};
use crate::ledger::notices::Notifier;
use crate::ledger::orders::expiry::ExpiryOutcome;
use crate::ledger::orders::groups::GroupSize;
use crate::ledger::outbox::RetryTerms;
use crate::ledger::{Ledger, LedgerError};
use crate::queue::{Outgoing, Publisher, QueueError, Receipt};
use crate::sale::{SaleError, Step};
use crate::sale_work::fulfil::{by_sale, joined};
use crate::sale_work::relay_messages::groups_expire;

#[derive(Clone)]
pub struct OrderExpiry {
    pub ledger: Ledger,
    pub publisher: Arc<Publisher>,
    pub notifier: Notifier,
    pub retry: RetryTerms,
    /// Sales with a locked row. Their messages are sent again later, so that other sales do not wait for the same lock.
    pub locked: Arc<LockedSales>,
    /// Orders per transaction.
    pub batch_max: usize,
}

impl OrderExpiry {
    /// Cancels the due orders of groups. The messages of the other groups are sent again with their remaining time. Groups of one share a
    /// delay message.
    ///
    /// # Errors
    /// PostgreSQL or the broker fails. Retry the whole batch.
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
        self.send_again(&again).await
    }

    /// Cancels orders that are overdue by more than `grace_ms`, because their message was lost. Skips locked sales until later.
    pub async fn sweep(&self, grace_ms: u64, batch_max: usize) -> Result<Step, SaleError> {
        let limit = i64::try_from(batch_max).unwrap_or(i64::MAX);
        let overdue = self.ledger.overdue(grace_ms, limit, &self.locked.all()).await?;
        if !overdue.is_empty() {
            tracing::warn!(orders = overdue.len(), "overdue orders found by the sweeper");
            self.expire(&overdue).await?;
        }
        Ok(Step::after(overdue.len(), batch_max))
    }

    /// Expires groups, with about `batch_max` orders per transaction. Groups of locked sales are postponed, and have no outcome.
    async fn expire(&self, groups: &[GroupId]) -> Result<Vec<(GroupId, ExpiryOutcome)>, LedgerError> {
        let mut outcomes = Vec::new();
        for groups in joined(self.ledger.group_sizes(groups).await?, self.batch_max) {
            // If a sale was locked a moment ago, each sale has its own transactions.
            let done =
                if self.locked.is_any() { Err(LedgerError::Locked) } else { self.expire_together(&groups).await };
            match done {
                Err(LedgerError::Locked) => {
                    for (sale, of_sale) in by_sale(&groups) {
                        outcomes.extend(self.expire_of_sale(sale, &of_sale).await?);
                    }
                }
                done => outcomes.extend(done?),
            }
            self.notifier.outbox_changed();
            self.notifier.orders_changed();
        }
        Ok(outcomes)
    }

    /// Expires groups of one sale. While the sale is locked, postpones their messages.
    async fn expire_of_sale(
        &self,
        sale: SaleId,
        groups: &[GroupSize],
    ) -> Result<Vec<(GroupId, ExpiryOutcome)>, LedgerError> {
        if !self.locked.contains(sale) {
            match self.expire_together(groups).await {
                Err(LedgerError::Locked) => {
                    tracing::error!(%sale, "the sale is locked by another transaction; its orders are cancelled later");
                    self.locked.insert(sale);
                }
                done => return done,
            }
        }
        let groups: Vec<Uuid> = groups.iter().map(|size| size.group.0).collect();
        self.ledger.put_off(OutboxKind::GroupExpire, &groups, self.locked.put_off_for()).await?;
        Ok(Vec::new())
    }

    /// Expires groups in one transaction. If that fails, expires each alone.
    async fn expire_together(&self, sizes: &[GroupSize]) -> Result<Vec<(GroupId, ExpiryOutcome)>, LedgerError> {
        let groups: Vec<GroupId> = sizes.iter().map(|size| size.group).collect();
        match self.ledger.expire(&groups).await {
            Err(error) if !error.is_outage() => {
                tracing::warn!(%error, groups = groups.len(), "expiry failed, trying one by one");
            }
            done => return done,
        }
        let mut done = Vec::with_capacity(groups.len());
        for size in sizes {
            match self.ledger.expire(&[size.group]).await {
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
            match self.ledger.split_expiry(group, why).await {
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
        let parked = self.ledger.fail_message(OutboxKind::GroupExpire, group, &failure, self.retry).await?;
        tracing::error!(%group, failure, parked, "orders not cancelled");
        Ok(())
    }

    /// Sends messages again. Their original messages are acknowledged only after these are confirmed.
    async fn send_again(&self, early: &[Outgoing]) -> Result<(), SaleError> {
        let receipts = self.publisher.publish(early).await?;
        if receipts.iter().all(|receipt| *receipt == Receipt::Confirmed) {
            Ok(())
        } else {
            Err(QueueError::Unconfirmed.into())
        }
    }
}
