//! Takes committed orders off Redis's unconfirmed list, and closes their loans, in the background (rule 5).

use std::collections::BTreeMap;

use tokio::sync::mpsc;

use seckill_domain::ids::{OrderId, Shard};
use seckill_domain::shards::SaleShards;
use seckill_redis::Gate;
use seckill_runtime::die_at;

/// Orders of one sale that were committed together.
pub(super) struct Confirmation {
    pub(crate) shards: SaleShards,
    /// The shard that holds their units.
    pub(crate) shard: Shard,
    pub(crate) orders: Vec<OrderId>,
    /// The borrowed orders, with the home shards of their buyers.
    pub(crate) loans: Vec<(Shard, OrderId)>,
}

#[derive(Clone)]
pub struct Confirmer {
    queue: mpsc::Sender<Confirmation>,
}

impl Confirmer {
    /// Groups in the queue. The reconciler confirms the rest.
    const QUEUE_MAX: usize = 10_000;
    const BATCH_MAX: usize = 100;

    /// The confirmer, and its task, which ends with the last handle.
    pub fn new(gate: Gate) -> (Self, impl Future<Output = ()>) {
        let (queue, mut groups) = mpsc::channel::<Confirmation>(Self::QUEUE_MAX);
        let work = async move {
            let mut batch = Vec::new();
            while groups.recv_many(&mut batch, Self::BATCH_MAX).await > 0 {
                batch.sort_unstable_by_key(|group| (group.shards, group.shard));
                for of_shard in batch.chunk_by(|a, b| (a.shards, a.shard) == (b.shards, b.shard)) {
                    die_at!("confirm.before");
                    let (of, shard) = (of_shard[0].shards, of_shard[0].shard);
                    let orders: Vec<OrderId> = of_shard.iter().flat_map(|group| &group.orders).copied().collect();
                    if let Err(error) = gate.confirm(of, shard, &orders).await {
                        tracing::debug!(sale = %of.sale, %error, "not confirmed; left to the reconciler");
                    }
                }
                let mut by_home: BTreeMap<(SaleShards, Shard), Vec<OrderId>> = BTreeMap::new();
                for Confirmation { shards, loans, .. } in batch.drain(..) {
                    for (home, order) in loans {
                        by_home.entry((shards, home)).or_default().push(order);
                    }
                }
                for ((of, home), orders) in by_home {
                    if let Err(error) = gate.close_loans(of, home, &orders).await {
                        tracing::debug!(sale = %of.sale, %error, "loans not closed; left to the reconciler");
                    }
                }
            }
        };
        (Self { queue }, work)
    }

    pub(super) fn confirm(&self, confirmation: Confirmation) {
        let _ = self.queue.try_send(confirmation);
    }
}
