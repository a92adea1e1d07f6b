//! Where a worker thread's buyers queue for Redis.
//!
//! Natural batching: the next call is made when the last one has returned, for all who have come meanwhile. Nobody
//! waits for a timer, and under load a call serves hundreds.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::aio::ConnectionManager;
use redis::{Value, cmd};
use tokio::sync::{mpsc, oneshot};

use super::reserve_reply::ReserveReply;
use super::sold_out_cache::SoldOutCache;
use super::{Gate, GateError, is_no_script, timed};
use crate::domain::admission::{Admission, Limit, ReserveRequest};
use crate::domain::ids::{Epoch, SaleId, Shard, UserId};

type Reply = oneshot::Sender<Result<Admission, GateError>>;

/// One worker thread's place at the gate. Not for sharing between threads: nothing here is locked.
#[derive(Clone)]
pub struct ReserveBatcher {
    queue: mpsc::Sender<Queued>,
    memory: Rc<RefCell<SoldOutCache>>,
}

struct Queued {
    sale: SaleId,
    ask: ReserveRequest,
    reply: Reply,
}

impl ReserveBatcher {
    /// Opens a desk on this thread, which must run a `LocalSet`; it closes when its last handle is dropped.
    pub fn start(gate: Gate) -> Result<Self, GateError> {
        let (queue, asks) = mpsc::channel(gate.terms.queue_max);
        let memory = Rc::<RefCell<SoldOutCache>>::default();
        let batch_loop = BatchLoop { connection: gate.own_connection()?, gate, memory: Rc::clone(&memory) };
        tokio::task::spawn_local(batch_loop.serve(asks));
        Ok(Self { queue, memory })
    }

    /// Whether this buyer can be told "sold out" without asking anybody.
    pub fn remembers_sold_out(&self, sale: SaleId, user: &UserId) -> bool {
        self.memory.borrow().covers(sale, user)
    }

    /// Asks for units. An error means that whether they were taken is unknown.
    pub async fn reserve(&self, sale: SaleId, ask: ReserveRequest) -> Result<Admission, GateError> {
        let (reply, answer) = oneshot::channel();
        self.queue.try_send(Queued { sale, ask, reply }).map_err(|_| GateError::Overloaded)?;
        answer.await.unwrap_or(Err(GateError::Overloaded))
    }
}

/// Serves the queue of one desk.
struct BatchLoop {
    gate: Gate,
    connection: ConnectionManager,
    memory: Rc<RefCell<SoldOutCache>>,
}

impl BatchLoop {
    async fn serve(self, mut asks: mpsc::Receiver<Queued>) {
        let batch_max = self.gate.terms.batch_max;
        let mut batch = Vec::with_capacity(batch_max);
        while asks.recv_many(&mut batch, batch_max).await > 0 {
            metrics::histogram!("seckill_gate_batch_size").record(batch.len() as f64);
            let mut by_sale: HashMap<SaleId, (Vec<ReserveRequest>, Vec<Reply>)> = HashMap::new();
            for Queued { sale, ask, reply } in batch.drain(..) {
                let (asks, replies) = by_sale.entry(sale).or_default();
                asks.push(ask);
                replies.push(reply);
            }
            join_all(by_sale.into_iter().map(|(sale, (asks, replies))| self.settle(sale, asks, replies))).await;
        }
    }

    async fn settle(&self, sale: SaleId, asks: Vec<ReserveRequest>, replies: Vec<Reply>) {
        let asked_at = Instant::now();
        let known = self.memory.borrow().known(sale);
        match self.gate.reserve(&self.connection, sale, known, &asks).await {
            Ok(Some(mut answers)) => {
                let sold_out = Duration::from_millis(self.gate.terms.sold_out_ms);
                self.memory.borrow_mut().learn(sale, &mut answers, asked_at, sold_out);
                for (reply, admission) in replies.into_iter().zip(answers.admissions) {
                    // A caller who has gone away is no concern of ours: the reconciler finishes his hold.
                    let _ = reply.send(Ok(admission));
                }
            }
            Ok(None) => {
                self.gate.doubt.notify_one();
                for reply in replies {
                    let _ = reply.send(Ok(Admission::NotServing));
                }
            }
            Err(error) => {
                tracing::warn!(%sale, %error, buyers = replies.len(), "reserve failed");
                for reply in replies {
                    let _ = reply.send(Err(GateError::Unknown));
                }
            }
        }
    }
}

impl Gate {
    /// One call of reserve.lua for many buyers of a sale. `None`: this server does not serve the sale.
    async fn reserve(
        &self,
        connection: &ConnectionManager,
        sale: SaleId,
        known: (Epoch, usize),
        asks: &[ReserveRequest],
    ) -> Result<Option<ReserveReply>, GateError> {
        let keys = self.keys.sale(sale, Shard::HOME);
        let mut call = cmd("EVALSHA");
        call.arg(self.scripts.reserve.get_hash()).arg(8);
        call.arg(&keys.sale).arg(&keys.tickets).arg(&keys.buyers).arg(&keys.unconfirmed).arg(&keys.holders);
        call.arg(&keys.limits);
        call.arg(known.0.0).arg(known.1).arg(self.terms.sold_out_ms);
        let limits = self.limits();
        for limit in Limit::ALL {
            let window = limits.of(limit);
            call.arg(window.max).arg(window.window_ms);
        }
        call.arg(asks.len());
        let mut id = uuid::Uuid::encode_buffer();
        for ask in asks {
            call.arg(&*ask.order.0.hyphenated().encode_lower(&mut id)).arg(ask.user.as_str()).arg(&ask.address);
            call.arg(ask.units.get()).arg(&ask.purchase_key).arg(ask.level);
        }
        match timed("reserve", call.query_async::<Vec<Value>>(&mut connection.clone())).await {
            Ok(reply) => ReserveReply::read(reply, asks.len()),
            Err(error) if is_no_script(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
