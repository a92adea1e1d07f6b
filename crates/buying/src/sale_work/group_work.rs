//! Transactions for the messages of groups: for fulfilment and for expiry. One bad group, or a locked sale, does not delay the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use seckill_domain::ids::SaleId;
use seckill_domain::locked_sales::LockedSales;
use seckill_domain::message::OutboxKind;
use seckill_postgres::notices::Notifier;
use seckill_postgres::orders::groups::GroupSize;
use seckill_postgres::outbox::RetryPolicy;
use seckill_postgres::{Ledger, LedgerError};

#[derive(Clone)]
pub struct GroupWork {
    pub ledger: Ledger,
    pub notifier: Notifier,
    pub retry: RetryPolicy,
    /// Sales with a locked row. Their messages are sent again later, so that other sales do not wait for the same lock.
    pub locked: Arc<LockedSales>,
    /// Orders per transaction.
    pub batch_max: usize,
}

impl GroupWork {
    /// Runs `step` for groups, with about `batch_max` orders per transaction. If a sale was locked a moment ago, each sale has its own
    /// transactions. The messages of groups of a locked sale are postponed, and have no result.
    pub(super) async fn in_transactions<T, F>(
        &self,
        kind: OutboxKind,
        groups: Vec<GroupSize>,
        step: impl Fn(Vec<GroupSize>) -> F,
    ) -> Result<Vec<T>, LedgerError>
    where
        F: Future<Output = Result<Vec<T>, LedgerError>>,
    {
        let mut results = Vec::new();
        for together in in_parts(groups, self.batch_max, |group| group.members) {
            let done = if self.locked.is_any() { Err(LedgerError::Locked) } else { step(together.clone()).await };
            match done {
                Err(LedgerError::Locked) => {
                    for (sale, of_sale) in by_sale(together) {
                        let is_known = self.locked.contains(sale);
                        let done = if is_known { Err(LedgerError::Locked) } else { step(of_sale.clone()).await };
                        match done {
                            Err(LedgerError::Locked) => self.put_off(kind, sale, &of_sale, is_known).await?,
                            done => results.extend(done?),
                        }
                    }
                }
                done => results.extend(done?),
            }
            // Notified now, because the next transaction may take a while.
            self.notifier.outbox_changed();
            self.notifier.orders_changed();
        }
        Ok(results)
    }

    async fn put_off(
        &self,
        kind: OutboxKind,
        sale: SaleId,
        groups: &[GroupSize],
        is_known: bool,
    ) -> Result<(), LedgerError> {
        if !is_known {
            tracing::error!(%sale, %kind, "the sale is locked by another transaction; its messages are handled later");
            self.locked.insert(sale);
        }
        let groups: Vec<Uuid> = groups.iter().map(|size| size.group.0).collect();
        self.ledger.outbox.put_off(kind, &groups, self.locked.put_off_for()).await
    }
}

/// Splits items into parts of at most `max` orders. A larger item is a part by itself.
pub(super) fn in_parts<T>(items: Vec<T>, max: usize, orders_of: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let (mut parts, mut orders) = (Vec::<Vec<T>>::new(), 0);
    for item in items {
        let more = orders_of(&item);
        orders += more;
        match parts.last_mut().filter(|_| orders <= max) {
            Some(open) => open.push(item),
            None => {
                parts.push(vec![item]);
                orders = more;
            }
        }
    }
    parts
}

fn by_sale(groups: Vec<GroupSize>) -> BTreeMap<SaleId, Vec<GroupSize>> {
    let mut by_sale = BTreeMap::<_, Vec<_>>::new();
    groups.into_iter().for_each(|size| by_sale.entry(size.sale).or_default().push(size));
    by_sale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_joined_up_to_a_bound_and_never_parted() {
        let sizes = |groups: &[usize]| {
            in_parts(groups.to_vec(), 10, |members| *members).into_iter().map(|part| part.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[3, 3, 4, 1]), [3, 1]);
        assert_eq!(sizes(&[23, 6, 1, 30, 2]), [1, 2, 1, 1]);
        assert_eq!(sizes(&[]), Vec::<usize>::new());
    }
}
