//! The connections of one worker thread, and the commit of its winners.

use futures_util::future::LocalBoxFuture;
use tokio::sync::oneshot;

use super::servers::Connections;
use super::{Gate, GateError};
use seckill_domain::admission::{Admission, PurchaseGroup, ReserveRequest};

/// Commits a group. Returns for each member, and then for each repeat, whether it is durable.
pub type CommitGroup = Box<dyn Fn(PurchaseGroup) -> LocalBoxFuture<'static, Vec<bool>>>;

pub(super) type Reply = oneshot::Sender<Result<Admission, GateError>>;

/// A request, its caller, and the answer of Redis.
pub(super) type Answered = (ReserveRequest, Reply, Admission);

/// Shared by the batcher of a thread and the loans of its sales.
pub(super) struct ThreadGate {
    pub gate: Gate,
    pub connections: Connections,
    commit: CommitGroup,
}

impl ThreadGate {
    pub fn new(gate: Gate, connections: Connections, commit: CommitGroup) -> Self {
        Self { gate, connections, commit }
    }

    /// Answers the requests of a call. Winners and unconfirmed repeats become the group, and are answered after its commit (rule 3); the
    /// others at once. The commit does not depend on callers, which may have gone away.
    pub(super) fn pass_on(&self, mut group: PurchaseGroup, asked: impl IntoIterator<Item = Answered>) {
        let (mut winners, mut repeating) = (Vec::new(), Vec::new());
        for (request, caller, admission) in asked {
            match admission {
                Admission::Reserved { .. } => {
                    group.members.push(request);
                    winners.push((caller, admission));
                }
                Admission::Repeat { confirmed: false } => {
                    group.repeats.push(request);
                    repeating.push((caller, admission));
                }
                answer => _ = caller.send(Ok(answer)),
            }
        }
        winners.append(&mut repeating);
        if winners.is_empty() {
            return;
        }
        let committed = (self.commit)(group);
        tokio::task::spawn_local(async move {
            for ((caller, admission), is_durable) in winners.into_iter().zip(committed.await) {
                let _ = caller.send(Ok(if is_durable { admission } else { Admission::NotDurable }));
            }
        });
    }
}
