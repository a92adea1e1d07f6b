//! Takes committed orders off Redis's unconfirmed list, in the background (rule 5).

use tokio::sync::mpsc;

use crate::die_at;
use crate::domain::ids::{OrderId, SaleId, Shard};
use crate::gate::Gate;

/// Queues committed orders for the task that takes them off Redis's unconfirmed list.
#[derive(Clone)]
pub struct Confirmer {
    queue: mpsc::Sender<(SaleId, Shard, OrderId)>,
}

impl Confirmer {
    /// Orders that wait to be confirmed. The reconciler confirms what does not fit.
    const QUEUE_MAX: usize = 100_000;
    const BATCH_MAX: usize = 1000;

    /// The confirmer, and the task that does its work until the last handle is dropped.
    pub fn new(gate: Gate) -> (Self, impl Future<Output = ()>) {
        let (queue, mut orders) = mpsc::channel::<(SaleId, Shard, OrderId)>(Self::QUEUE_MAX);
        let work = async move {
            let mut batch = Vec::new();
            while orders.recv_many(&mut batch, Self::BATCH_MAX).await > 0 {
                batch.sort_unstable();
                for group in batch.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
                    die_at!("confirm.before");
                    let ids: Vec<OrderId> = group.iter().map(|(_, _, order)| *order).collect();
                    if let Some((sale, shard, _)) = group.first()
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

    pub(super) fn confirm(&self, sale: SaleId, shard: Shard, order: OrderId) {
        let _ = self.queue.try_send((sale, shard, order));
    }
}
