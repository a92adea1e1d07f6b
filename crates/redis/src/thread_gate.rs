//! The connections of one worker thread, and the winners of its calls.

use tokio::sync::{mpsc, oneshot};

use super::servers::Connections;
use super::{Gate, GateError};
use seckill_domain::admission::{Admission, Hold, ReserveRequest};
use seckill_domain::shards::SaleShards;

pub(super) type Reply = oneshot::Sender<Result<Admission, GateError>>;

/// A request, its caller, and the answer of Redis.
pub(super) type Answered = (ReserveRequest, Reply, Admission);

/// The winners of one call, who must be made durable before they are answered (rule 3). That does not depend on callers, who may have
/// gone away.
pub struct CallWinners {
    pub shards: SaleShards,
    pub hold: Hold,
    pub winners: Vec<Winner>,
}

pub struct Winner {
    pub request: ReserveRequest,
    /// The request repeats an unconfirmed purchase, and took no units. The commit of that purchase may be in flight, or lost.
    pub is_repeat: bool,
    pub answer: PendingAnswer,
}

/// The answer to a winner who is durable.
pub struct PendingAnswer {
    caller: Reply,
    admission: Admission,
}

impl PendingAnswer {
    pub fn give(self, is_durable: bool) {
        // The caller may have gone away.
        _ = self.caller.send(Ok(if is_durable { self.admission } else { Admission::NotDurable }));
    }
}

/// Shared by the batcher of a thread and the loans of its sales.
pub(super) struct ThreadGate {
    pub(crate) gate: Gate,
    pub(crate) connections: Connections,
    winners: mpsc::UnboundedSender<CallWinners>,
}

impl ThreadGate {
    pub(crate) fn new(gate: Gate, connections: Connections) -> (Self, mpsc::UnboundedReceiver<CallWinners>) {
        let (winners, of_calls) = mpsc::unbounded_channel();
        (Self { gate, connections, winners }, of_calls)
    }

    /// Hands out the winners of a call, and answers the others at once.
    pub(super) fn pass_on(&self, shards: SaleShards, hold: Hold, asked: impl IntoIterator<Item = Answered>) {
        let mut winners = Vec::new();
        for (request, caller, admission) in asked {
            let is_repeat = match admission {
                Admission::Reserved { .. } => false,
                Admission::Repeat { confirmed: false } => true,
                answer => {
                    _ = caller.send(Ok(answer));
                    continue;
                }
            };
            winners.push(Winner { request, is_repeat, answer: PendingAnswer { caller, admission } });
        }
        if !winners.is_empty() {
            // Fails only when the thread ends. Then the callers learn that the outcome is unknown.
            _ = self.winners.send(CallWinners { shards, hold, winners });
        }
    }
}
