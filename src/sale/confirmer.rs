//! Takes committed orders off Redis's unconfirmed list, in the background (rule 5).

use tokio::sync::mpsc;

use crate::die_at;
use crate::domain::ids::{OrderId, SaleId, Shard};
use crate::gate::Gate;

/// Orders of one sale that were committed together.
type Group = (SaleId, Shard, Vec<OrderId>);

/// Queues committed orders for the task that takes them off Redis's unconfirmed list.
#[derive(Clone)]
pub struct Confirmer {
    queue: mpsc::Sender<Group>,
}

impl Confirmer {
    /// Groups that wait to be confirmed. The reconciler confirms what does not fit.
    const QUEUE_MAX: usize = 10_000;
    const BATCH_MAX: usize = 100;

    /// The confirmer, and the task that does its work until the last handle is dropped.
    pub fn new(gate: Gate) -> (Self, impl Future<Output = ()>) {
        let (queue, mut groups) = mpsc::channel::<Group>(Self::QUEUE_MAX);
        let work = async move {
            let mut batch = Vec::new();
            while groups.recv_many(&mut batch, Self::BATCH_MAX).await > 0 {
                batch.sort_unstable_by_key(|(sale, shard, _)| (*sale, *shard));
                for of_sale in batch.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
                    die_at!("confirm.before");
                    let ids: Vec<OrderId> = of_sale.iter().flat_map(|(_, _, orders)| orders).copied().collect();
                    if let Some((sale, shard, _)) = of_sale.first()
                        && let Err(error) = gate.confirm(*sale, *shard, &ids).await
                    {
                        tracing::debug!(%sale, %error, "not confirmed; left to the reconciler");
                    }
                }
                batch.clear();
            }
        };
        (Self { queue }, work)
    }

    pub(super) fn confirm(&self, sale: SaleId, shard: Shard, orders: Vec<OrderId>) {
        let _ = self.queue.try_send((sale, shard, orders));
    }
}
