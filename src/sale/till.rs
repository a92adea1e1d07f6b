//! What one worker thread sells with.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::barred::Barred;
use super::catalog::Catalog;
use crate::die_at;
use crate::domain::ids::{OrderId, SaleId, Shard};
use crate::gate::Gate;
use crate::gate::desk::Desk;
use crate::ledger::Ledger;
use crate::ledger::commit::Committer;

/// Takes committed orders off Redis's unconfirmed list, at leisure (rule 5).
#[derive(Clone)]
pub struct Confirmer {
    queue: mpsc::Sender<(SaleId, Shard, OrderId)>,
}

impl Confirmer {
    /// Orders that wait to be confirmed; beyond, the reconciler does it.
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
                        tracing::debug!(%sale, %error, "not confirmed; the reconciler will");
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

/// Where one worker thread sells.
pub struct Till {
    pub desk: Desk,
    pub gate: Gate,
    pub ledger: Ledger,
    pub catalog: Arc<Catalog>,
    pub committer: Committer,
    pub confirmer: Confirmer,
    pub order_id_secret: [u8; 32],
    pub retire_after_ms: i64,
    pub sold_out: SoldOutView,
    pub barred: Barred,
}

/// Whether sales are sold out, as one thread saw it a moment ago. However many pages ask, Redis hears of it rarely.
#[derive(Default)]
pub struct SoldOutView {
    seen: RefCell<HashMap<SaleId, (Instant, bool)>>,
}

impl SoldOutView {
    const GOOD_FOR: Duration = Duration::from_millis(200);
    const SALES_MAX: usize = 1024;

    pub(super) fn recall(&self, sale: SaleId) -> Option<bool> {
        let seen = self.seen.borrow();
        seen.get(&sale).filter(|(at, _)| at.elapsed() < Self::GOOD_FOR).map(|(_, sold_out)| *sold_out)
    }

    pub(super) fn note(&self, sale: SaleId, sold_out: bool) {
        let mut seen = self.seen.borrow_mut();
        if seen.len() >= Self::SALES_MAX {
            seen.clear();
        }
        seen.insert(sale, (Instant::now(), sold_out));
    }
}
