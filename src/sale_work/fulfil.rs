//! Purchases become orders, as their messages arrive (protocol, rule 7). One bad message does not delay the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use uuid::Uuid;

use crate::domain::ids::{GroupId, OrderId, SaleId};
use crate::domain::locked_sales::LockedSales;
use crate::domain::message::{GroupsPlacedV1, OrderPlacedV1, OrdersPlacedV1, OutboxKind};
use crate::domain::trace_context::TraceContext;
use crate::ledger::notices::Notifier;
use crate::ledger::orders::fulfil::Fulfilled;
use crate::ledger::orders::groups::{GroupSize, Settling};
use crate::ledger::outbox::RetryTerms;
use crate::ledger::{Ledger, LedgerError};
use crate::queue::Received;
use crate::sale::SaleError;
use crate::telemetry::spans::{Span, SpanKind};

/// Turns purchases into orders.
#[derive(Clone)]
pub struct Fulfilment {
    pub ledger: Ledger,
    pub notifier: Notifier,
    pub retry: RetryTerms,
    /// Messages about these are sent again later, so that the others do not wait for the same lock.
    pub locked: Arc<LockedSales>,
    /// Orders in one transaction.
    pub batch_max: usize,
}

impl Fulfilment {
    /// Turns a batch of purchases into orders. Returns the indexes of messages that have failed for the last time.
    ///
    /// # Errors
    /// When PostgreSQL cannot be reached: the whole batch is to be tried again.
    #[tracing::instrument(level = "debug", name = "fulfil", skip_all, fields(messages = received.messages.len()))]
    pub async fn settle(&self, received: Received<OrderPlacedV1>) -> Result<Vec<usize>, SaleError> {
        let orders: Vec<OrderId> = received.messages.iter().map(|message| message.order_id).collect();
        let mut spans: HashMap<OrderId, Span> = HashMap::new();
        for (index, trace) in &received.traces {
            let mut span = Span::below(trace, SpanKind::Consumer, "fulfil");
            span.set("order", orders[*index].to_string());
            spans.insert(orders[*index], span);
        }
        let traces: HashMap<OrderId, TraceContext> =
            spans.iter().map(|(order, span)| (*order, span.context().clone())).collect();
        for order in &orders {
            let trace_id = traces.get(order).map(TraceContext::trace_id);
            tracing::debug!(%order, trace_id, "to be fulfilled");
        }
        let _group = Span::group("fulfil group", orders.len(), traces.values());
        let settled = self.settle_all(orders, &traces).await;
        if let Err(error) = &settled {
            spans.values_mut().for_each(|span| span.fail(error.to_string()));
        }
        settled
    }

    /// The same for messages about many purchases. A purchase that fails is sent again by itself, so that no message goes to the
    /// dead-letter queue with the others in it.
    ///
    /// # Errors
    /// When PostgreSQL cannot be reached: the whole batch is to be tried again.
    #[tracing::instrument(level = "debug", name = "fulfil", skip_all, fields(messages = received.messages.len()))]
    pub async fn settle_many(&self, received: Received<OrdersPlacedV1>) -> Result<Vec<usize>, SaleError> {
        for together in transactions(&received.messages, self.batch_max) {
            for order in together.iter().copied().flatten() {
                tracing::debug!(%order, "to be fulfilled");
            }
            match self.unless_one_is_locked(self.ledger.fulfil_messages(&together)).await {
                Ok(done) => count(done),
                Err(LedgerError::Locked) => _ = self.settle_by_sale(&together.concat(), &HashMap::new()).await?,
                Err(error) if error.is_outage() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, messages = together.len(), "batch failed, trying one by one");
                    self.settle_one_by_one(&together.concat(), &HashMap::new()).await?;
                }
            }
            // The next transaction may take a while.
            self.notifier.outbox_changed();
            self.notifier.orders_changed();
        }
        Ok(Vec::new())
    }

    /// The same for messages about group rows. A group that cannot be settled as a whole is split: its purchases are sent again as purchase
    /// rows. No message goes to the dead-letter queue.
    ///
    /// # Errors
    /// When PostgreSQL cannot be reached: the whole batch is to be tried again.
    #[tracing::instrument(level = "debug", name = "fulfil", skip_all, fields(messages = received.messages.len()))]
    pub async fn settle_groups(&self, received: Received<GroupsPlacedV1>) -> Result<Vec<usize>, SaleError> {
        let groups: Vec<GroupId> = received.messages.into_iter().flat_map(|message| message.groups).collect();
        let groups = self.ledger.unsettled_groups(&groups).await?;
        for together in joined(groups, self.batch_max) {
            match self.unless_one_is_locked(self.settle_together(&together)).await {
                Err(LedgerError::Locked) => {
                    for (sale, of_sale) in by_sale(&together) {
                        self.settle_groups_of(sale, &of_sale).await?;
                    }
                }
                settled => settled?,
            }
            // The next transaction may take a while.
            self.notifier.outbox_changed();
            self.notifier.orders_changed();
        }
        Ok(Vec::new())
    }

    async fn settle_groups_of(&self, sale: SaleId, of_sale: &[GroupSize]) -> Result<(), LedgerError> {
        let settled =
            if self.locked.contains(sale) { Err(LedgerError::Locked) } else { self.settle_together(of_sale).await };
        match settled {
            Err(LedgerError::Locked) => {
                let groups: Vec<Uuid> = of_sale.iter().map(|size| size.group.0).collect();
                self.put_off(sale, OutboxKind::GroupPlaced, &groups).await
            }
            settled => settled,
        }
    }

    async fn settle_together(&self, together: &[GroupSize]) -> Result<(), LedgerError> {
        let groups: Vec<GroupId> = together.iter().map(|size| size.group).collect();
        for group in &groups {
            tracing::debug!(%group, "to be fulfilled");
        }
        match self.ledger.settle_groups(&groups).await? {
            Settling::Settled { orders } => count_made(orders),
            Settling::Unusual(why) => {
                tracing::warn!(why, groups = groups.len(), "groups not settled together; trying one by one");
                for group in groups {
                    self.settle_group(group).await?;
                }
            }
        }
        Ok(())
    }

    /// Does what may be about many sales, unless one of them was locked a moment ago: then it is as if it had been tried.
    async fn unless_one_is_locked<T>(
        &self,
        all: impl Future<Output = Result<T, LedgerError>>,
    ) -> Result<T, LedgerError> {
        if self.locked.is_any() { Err(LedgerError::Locked) } else { all.await }
    }

    /// Has messages about a locked sale sent again later.
    async fn put_off(&self, sale: SaleId, kind: OutboxKind, about: &[Uuid]) -> Result<(), LedgerError> {
        if !self.locked.contains(sale) {
            tracing::error!(%sale, "the sale is locked by another transaction; its purchases are settled later");
            self.locked.insert(sale);
        }
        self.ledger.put_off(kind, about, self.locked.put_off_for()).await
    }

    /// Settles one group alone, or splits it. One that cannot even be split is sent again later, and parked at last.
    async fn settle_group(&self, group: GroupId) -> Result<(), LedgerError> {
        let why = match self.ledger.settle_groups(&[group]).await? {
            Settling::Settled { orders } => {
                count_made(orders);
                return Ok(());
            }
            Settling::Unusual(why) => why,
        };
        match self.ledger.split_group(group, &why).await {
            Ok(rows) => {
                tracing::warn!(%group, why, rows, "group split; its purchases are settled one by one");
                metrics::counter!("seckill_groups_split_total").increment(1);
            }
            Err(error) if error.is_temporary() => return Err(error),
            Err(error) => {
                let failure = error.to_string();
                let parked = self.ledger.fail_message(OutboxKind::GroupPlaced, group, &failure, self.retry).await?;
                tracing::error!(%group, %error, why, parked, "group neither settled nor split");
            }
        }
        Ok(())
    }

    async fn settle_all(
        &self,
        orders: Vec<OrderId>,
        traces: &HashMap<OrderId, TraceContext>,
    ) -> Result<Vec<usize>, SaleError> {
        let failed = match self.unless_one_is_locked(self.ledger.fulfil_traced(&orders, traces)).await {
            Ok(done) => {
                count(done);
                Vec::new()
            }
            Err(LedgerError::Locked) => self.settle_by_sale(&orders, traces).await?,
            Err(error) if error.is_outage() => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, messages = orders.len(), "batch failed, trying one by one");
                self.settle_one_by_one(&orders, traces).await?
            }
        };
        self.notifier.outbox_changed();
        self.notifier.orders_changed();
        Ok((0..orders.len()).filter(|index| failed.contains(&orders[*index])).collect())
    }

    /// Fulfils the purchases of each sale together, and puts off those of a locked one. Returns those that have failed for the last time.
    async fn settle_by_sale(
        &self,
        orders: &[OrderId],
        traces: &HashMap<OrderId, TraceContext>,
    ) -> Result<Vec<OrderId>, SaleError> {
        let mut failed = Vec::new();
        for (sale, orders) in self.ledger.purchases_by_sale(orders).await? {
            let fulfil = self.ledger.fulfil_traced(&orders, traces);
            match if self.locked.contains(sale) { Err(LedgerError::Locked) } else { fulfil.await } {
                Ok(done) => count(done),
                Err(LedgerError::Locked) => {
                    let ids: Vec<Uuid> = orders.iter().map(|order| order.0).collect();
                    self.put_off(sale, OutboxKind::OrderPlaced, &ids).await?;
                }
                Err(error) if error.is_outage() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%sale, %error, messages = orders.len(), "batch failed, trying one by one");
                    failed.extend(self.settle_one_by_one(&orders, traces).await?);
                }
            }
        }
        Ok(failed)
    }

    /// Fulfils each alone, and puts off those of a locked sale. Returns those that have failed for the last time.
    async fn settle_one_by_one(
        &self,
        orders: &[OrderId],
        traces: &HashMap<OrderId, TraceContext>,
    ) -> Result<Vec<OrderId>, SaleError> {
        let mut failed = Vec::new();
        for (sale, orders) in self.ledger.purchases_by_sale(orders).await? {
            for (place, order) in orders.iter().enumerate() {
                let settled = self.settle_one(*order, traces);
                match if self.locked.contains(sale) { Err(LedgerError::Locked) } else { settled.await } {
                    Ok(false) => {}
                    Ok(true) => failed.push(*order),
                    Err(LedgerError::Locked) => {
                        let ids: Vec<Uuid> = orders[place..].iter().map(|order| order.0).collect();
                        self.put_off(sale, OutboxKind::OrderPlaced, &ids).await?;
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(failed)
    }

    /// Fulfils one purchase alone; `true` when it has failed for the last time. Before that its outbox row causes the
    /// message to be sent again.
    async fn settle_one(&self, order: OrderId, traces: &HashMap<OrderId, TraceContext>) -> Result<bool, LedgerError> {
        let error = match self.ledger.fulfil_traced(&[order], traces).await {
            Ok(done) => {
                count(done);
                return Ok(false);
            }
            Err(error) if error.is_temporary() => return Err(error),
            Err(error) => error,
        };
        let parked = self.ledger.fail_message(OutboxKind::OrderPlaced, order, &error.to_string(), self.retry).await?;
        let trace_id = traces.get(&order).map(TraceContext::trace_id);
        tracing::error!(%order, %error, parked, trace_id, "purchase not fulfilled");
        Ok(parked)
    }
}

fn count(done: Fulfilled) {
    count_made(done.accepted);
    metrics::counter!("seckill_orders_total", "outcome" => "rejected").increment(done.rejected as u64);
}

fn count_made(orders: usize) {
    metrics::counter!("seckill_orders_total", "outcome" => "accepted").increment(orders as u64);
}

/// Groups that go together: as long as they have `max` orders, or one that has more by itself.
pub(super) fn joined(groups: Vec<GroupSize>, max: usize) -> Vec<Vec<GroupSize>> {
    let (mut transactions, mut orders) = (Vec::<Vec<GroupSize>>::new(), 0);
    for group in groups {
        orders += group.members;
        match transactions.last_mut().filter(|_| orders <= max) {
            Some(open) => open.push(group),
            None => {
                transactions.push(vec![group]);
                orders = group.members;
            }
        }
    }
    transactions
}

/// The groups of each sale.
pub(super) fn by_sale(groups: &[GroupSize]) -> BTreeMap<SaleId, Vec<GroupSize>> {
    let mut by_sale = BTreeMap::<_, Vec<_>>::new();
    groups.iter().for_each(|size| by_sale.entry(size.sale).or_default().push(*size));
    by_sale
}

/// What is settled in one transaction each: whole messages, as long as they have `max` orders together. A message that has more by
/// itself is settled in parts.
fn transactions(messages: &[OrdersPlacedV1], max: usize) -> Vec<Vec<&[OrderId]>> {
    let (mut transactions, mut orders) = (Vec::<Vec<&[OrderId]>>::new(), 0);
    for part in messages.iter().flat_map(|message| message.orders.chunks(max)) {
        if let Some(open) = transactions.last_mut()
            && orders + part.len() <= max
        {
            open.push(part);
            orders += part.len();
        } else {
            transactions.push(vec![part]);
            orders = part.len();
        }
    }
    transactions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::message::Version;

    #[test]
    fn groups_are_joined_up_to_a_bound_and_never_parted() {
        let sizes = |groups: &[usize]| {
            let size = |members: &usize| GroupSize {
                group: GroupId(Uuid::nil()),
                sale: SaleId::from_db(1),
                members: *members,
            };
            let groups = groups.iter().map(size).collect();
            joined(groups, 10).into_iter().map(|together| together.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[3, 3, 4, 1]), [3, 1]);
        assert_eq!(sizes(&[23, 6, 1, 30, 2]), [1, 2, 1, 1]);
        assert_eq!(sizes(&[]), Vec::<usize>::new());
    }

    #[test]
    fn messages_are_joined_up_to_a_bound_and_parted_above_it() {
        let sizes = |messages: &[usize]| {
            let orders = |n: usize| vec![OrderId(Uuid::nil()); n];
            let message = |n: &usize| OrdersPlacedV1 { version: Version, orders: orders(*n) };
            let messages: Vec<OrdersPlacedV1> = messages.iter().map(message).collect();
            let sizes = |together: Vec<&[OrderId]>| together.into_iter().map(<[OrderId]>::len).collect::<Vec<_>>();
            transactions(&messages, 10).into_iter().map(sizes).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[3, 3, 4, 1]), [vec![3, 3, 4], vec![1]]);
        assert_eq!(sizes(&[23, 6, 1]), [vec![10], vec![10], vec![3, 6, 1]]);
        assert_eq!(sizes(&[9, 2]), [vec![9], vec![2]]);
        assert_eq!(sizes(&[0, 2, 0]), [vec![2]]);
        assert_eq!(sizes(&[]), Vec::<Vec<usize>>::new());
    }
}
