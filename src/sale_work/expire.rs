//! Cancels orders that were not paid in time (protocol, rule 8): by delayed messages, and by a slow sweeper for those
//! whose message was lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use crate::die_at;
use crate::domain::delay::rung_for;
use crate::domain::ids::{GroupId, OrderId, SaleId};
use crate::domain::locked_sales::LockedSales;
use crate::domain::message::{GroupsExpireV1, ORDERS_A_MESSAGE, OrderExpireV1, OrdersExpireV1, OutboxKind};
use crate::ledger::Ledger;
use crate::ledger::notices::Notifier;
use crate::ledger::orders::cancel::ExpiryOutcome;
use crate::ledger::orders::groups::GroupSize;
use crate::ledger::outbox::RetryTerms;
use crate::queue::{Destination, Outgoing, Publisher, QueueError, Receipt};
use crate::sale::{SaleError, Step};
use crate::sale_work::fulfil::{by_sale, joined};
use crate::sale_work::relay_messages::{groups_expire, orders_expire};

/// Cancels orders that were not paid in time.
#[derive(Clone)]
pub struct OrderExpiry {
    pub ledger: Ledger,
    pub publisher: Arc<Publisher>,
    pub notifier: Notifier,
    pub retry: RetryTerms,
    /// Messages about orders of these are sent again later, so that the others do not wait for the same lock.
    pub locked: Arc<LockedSales>,
    /// Orders in one transaction.
    pub batch_max: usize,
}

impl OrderExpiry {
    /// Cancels the orders that are due, and sends the messages of the others again with the time they have left.
    ///
    /// # Errors
    /// When PostgreSQL or the broker fails: the whole batch is to be tried again.
    #[tracing::instrument(level = "debug", name = "expire", skip_all, fields(messages = messages.len()))]
    pub async fn settle(&self, messages: Vec<OrderExpireV1>) -> Result<(), SaleError> {
        let orders: Vec<OrderId> = messages.iter().map(|message| message.order_id).collect();
        let early: Vec<Outgoing> = self
            .expire(&orders)
            .await?
            .into_iter()
            .zip(messages)
            .filter_map(|((order, expiry), message)| match expiry {
                ExpiryOutcome::Settled => None,
                ExpiryOutcome::Early { remaining_ms } => Some(Outgoing {
                    to: Destination::OrderExpire { remaining_ms },
                    id: OutboxKind::OrderExpire.message_id(order),
                    body: serde_json::to_vec(&message).unwrap_or_default(),
                    trace: None,
                }),
            })
            .collect();
        self.notifier.outbox_changed();
        self.notifier.orders_changed();
        self.send_again(&early).await
    }

    /// The same for messages about many orders. The orders that are early go on together, those of one delay in one message.
    ///
    /// # Errors
    /// When PostgreSQL or the broker fails: the whole batch is to be tried again.
    #[tracing::instrument(level = "debug", name = "expire", skip_all, fields(messages = messages.len()))]
    pub async fn settle_many(&self, messages: Vec<OrdersExpireV1>) -> Result<(), SaleError> {
        let mut orders: Vec<OrderId> = messages.into_iter().flat_map(|message| message.orders).collect();
        // An order that came twice goes on once.
        orders.sort_unstable();
        orders.dedup();
        let mut early: BTreeMap<i64, Vec<OrderId>> = BTreeMap::new();
        for orders in orders.chunks(self.batch_max) {
            for (order, expiry) in self.expire(orders).await? {
                match expiry {
                    ExpiryOutcome::Settled => {}
                    ExpiryOutcome::Early { remaining_ms } => {
                        early.entry(rung_for(remaining_ms)).or_default().push(order);
                    }
                }
            }
            self.notifier.outbox_changed();
            self.notifier.orders_changed();
        }
        let mut again = Vec::new();
        for (rung_ms, orders) in early {
            again.extend(orders.chunks(ORDERS_A_MESSAGE).map(|orders| orders_expire(orders.to_vec(), rung_ms)));
        }
        self.send_again(&again).await
    }

    /// The same for messages about groups. Those that are early go on together, those of one delay in one message.
    ///
    /// # Errors
    /// When PostgreSQL or the broker fails: the whole batch is to be tried again.
    #[tracing::instrument(level = "debug", name = "expire", skip_all, fields(messages = messages.len()))]
    pub async fn settle_groups(&self, messages: Vec<GroupsExpireV1>) -> Result<(), SaleError> {
        let groups: Vec<GroupId> = messages.into_iter().flat_map(|message| message.groups).collect();
        let sizes = self.ledger.group_sizes(&groups).await?;
        let mut early: BTreeMap<i64, Vec<GroupId>> = BTreeMap::new();
        for groups in joined(sizes, self.batch_max) {
            for (group, expiry) in self.expire_groups(&groups).await? {
                if let ExpiryOutcome::Early { remaining_ms } = expiry {
                    early.entry(rung_for(remaining_ms)).or_default().push(group);
                }
            }
            self.notifier.outbox_changed();
            self.notifier.orders_changed();
        }
        let mut again = Vec::new();
        for (rung_ms, groups) in early {
            again.extend(groups.chunks(ORDERS_A_MESSAGE).map(|groups| groups_expire(groups.to_vec(), rung_ms)));
        }
        if !again.is_empty() {
            die_at!("expire_group.round_again");
        }
        self.send_again(&again).await
    }

    /// Expires groups, or each alone when the ledger refuses them together. One that it refuses alone is split: its orders are cancelled one
    /// by one. One that cannot even be split has its message sent again later, up to `max_attempts`.
    async fn expire_groups(&self, sizes: &[GroupSize]) -> Result<Vec<(GroupId, ExpiryOutcome)>, SaleError> {
        if !self.locked.is_any() {
            match self.expire_groups_together(sizes).await {
                Err(error) if error.is_locked() => {}
                done => return done,
            }
        }
        let mut all = Vec::new();
        for (sale, of_sale) in by_sale(sizes) {
            if !self.locked.contains(sale) {
                match self.expire_groups_together(&of_sale).await {
                    Err(error) if error.is_locked() => {}
                    done => {
                        all.extend(done?);
                        continue;
                    }
                }
            }
            let groups: Vec<Uuid> = of_sale.iter().map(|size| size.group.0).collect();
            self.put_off(sale, OutboxKind::GroupExpire, &groups).await?;
        }
        Ok(all)
    }

    async fn expire_groups_together(&self, sizes: &[GroupSize]) -> Result<Vec<(GroupId, ExpiryOutcome)>, SaleError> {
        let groups: Vec<GroupId> = sizes.iter().map(|size| size.group).collect();
        match self.ledger.expire_groups(&groups).await {
            Ok(done) => return Ok(done),
            Err(error) if error.is_outage() => return Err(error.into()),
            Err(error) => tracing::warn!(%error, groups = groups.len(), "expiry failed, trying one by one"),
        }
        let mut done = Vec::with_capacity(groups.len());
        for group in groups {
            match self.ledger.expire_groups(&[group]).await {
                Ok(outcome) => done.extend(outcome),
                Err(error) if error.is_temporary() => return Err(error.into()),
                Err(error) => self.split_expiry(group, &error.to_string()).await?,
            }
        }
        Ok(done)
    }

    /// Has messages about a locked sale sent again later: these ones are done with.
    async fn put_off(&self, sale: SaleId, kind: OutboxKind, about: &[Uuid]) -> Result<(), SaleError> {
        if !self.locked.contains(sale) {
            tracing::error!(%sale, "the sale is locked by another transaction; its orders are cancelled later");
            self.locked.insert(sale);
        }
        Ok(self.ledger.put_off(kind, about, self.locked.put_off_for()).await?)
    }

    async fn split_expiry(&self, group: GroupId, why: &str) -> Result<(), SaleError> {
        match self.ledger.split_expiry(group, why).await {
            Ok(orders) => tracing::warn!(%group, why, orders, "group not cancelled; its orders are, one by one"),
            Err(error) if error.is_temporary() => return Err(error.into()),
            Err(error) => {
                let failure = error.to_string();
                let parked = self.ledger.fail_message(OutboxKind::GroupExpire, group, &failure, self.retry).await?;
                tracing::error!(%group, %error, why, parked, "group neither cancelled nor split");
            }
        }
        Ok(())
    }

    /// Sends messages round again. Those that they come from are acknowledged only after these are safe.
    async fn send_again(&self, early: &[Outgoing]) -> Result<(), SaleError> {
        if early.is_empty() {
            return Ok(());
        }
        let receipts = self.publisher.publish(early).await?;
        if receipts.iter().all(|receipt| *receipt == Receipt::Confirmed) {
            Ok(())
        } else {
            Err(QueueError::Unconfirmed.into())
        }
    }

    /// Expires a group of orders, or each alone when the ledger refuses the group. An order that cannot be cancelled has
    /// its message sent again later, up to `max_attempts`, and does not delay the others.
    async fn expire(&self, orders: &[OrderId]) -> Result<Vec<(OrderId, ExpiryOutcome)>, SaleError> {
        if !self.locked.is_any() {
            match self.expire_together(orders).await {
                Err(error) if error.is_locked() => {}
                done => return done,
            }
        }
        // In the order of the messages. Those without an order are settled, because nothing is left to be cancelled, and those that are put off.
        let mut outcomes: BTreeMap<OrderId, ExpiryOutcome> = BTreeMap::new();
        for (sale, of_sale) in self.ledger.orders_by_sale(orders).await? {
            if !self.locked.contains(sale) {
                match self.expire_together(&of_sale).await {
                    Err(error) if error.is_locked() => {}
                    done => {
                        outcomes.extend(done?);
                        continue;
                    }
                }
            }
            let orders: Vec<Uuid> = of_sale.iter().map(|order| order.0).collect();
            self.put_off(sale, OutboxKind::OrderExpire, &orders).await?;
        }
        let outcome = |order: &OrderId| (*order, outcomes.get(order).copied().unwrap_or(ExpiryOutcome::Settled));
        Ok(orders.iter().map(outcome).collect())
    }

    async fn expire_together(&self, orders: &[OrderId]) -> Result<Vec<(OrderId, ExpiryOutcome)>, SaleError> {
        match self.ledger.expire(orders).await {
            Ok(done) => return Ok(done),
            Err(error) if error.is_outage() => return Err(error.into()),
            Err(error) => tracing::warn!(%error, orders = orders.len(), "expiry failed, trying one by one"),
        }
        let mut done = Vec::with_capacity(orders.len());
        for order in orders {
            match self.ledger.expire(&[*order]).await {
                Ok(outcome) => done.extend(outcome),
                Err(error) if error.is_temporary() => return Err(error.into()),
                Err(error) => {
                    let parked = self
                        .ledger
                        .fail_message(OutboxKind::OrderExpire, *order, &error.to_string(), self.retry)
                        .await?;
                    tracing::error!(%order, %error, parked, "order not cancelled");
                    done.push((*order, ExpiryOutcome::Settled)); // settles this message; the outbox row sends another
                }
            }
        }
        Ok(done)
    }

    /// Cancels orders that are overdue by more than `grace_ms`: their message was lost. Those of locked sales have their turn later.
    pub async fn sweep(&self, grace_ms: u64, batch_max: usize) -> Result<Step, SaleError> {
        let limit = i64::try_from(batch_max).unwrap_or(i64::MAX);
        let overdue = self.ledger.overdue(grace_ms, limit, &self.locked.all()).await?;
        if !overdue.is_empty() {
            tracing::warn!(orders = overdue.len(), "overdue orders found by the sweeper");
            self.expire(&overdue).await?;
            self.notifier.outbox_changed();
            self.notifier.orders_changed();
        }
        Ok(Step::after(overdue.len(), batch_max))
    }
}
