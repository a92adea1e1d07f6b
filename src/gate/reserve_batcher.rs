//! Batches the purchase requests of one worker thread into calls of reserve.lua.
//!
//! The next call is made when the last one has returned, for all requests that have come meanwhile. No request waits for
//! a timer, and under load one call serves hundreds.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::Value;
use redis::aio::ConnectionManager;
use tokio::sync::{mpsc, oneshot};

use super::reserve_call::{CallTerms, reserve_call};
use super::reserve_reply::ReserveReply;
use super::sold_out_cache::SoldOutCache;
use super::{Gate, GateError, Terms, is_no_script, timed};
use crate::domain::admission::{Admission, ReserveRequest};
use crate::domain::ids::{Epoch, SaleId, Shard, UserId};

type Reply = oneshot::Sender<Result<Admission, GateError>>;

/// The batcher of one worker thread; clones share it. It has no locks and stays on its thread.
#[derive(Clone)]
pub struct ReserveBatcher {
    queue: mpsc::Sender<Queued>,
    shared: Rc<Shared>,
}

/// What the batcher and its loop share.
#[derive(Default)]
struct Shared {
    sold_out: RefCell<SoldOutCache>,
    /// Whether each call asks for the holders, too.
    wants_holders: Cell<bool>,
    /// Since when the request waits that is to be sent next, if one waits.
    waiting_since: Cell<Option<Instant>>,
    /// The longest that a request has waited since this was last asked for.
    waited: Cell<Duration>,
}

struct Queued {
    sale: SaleId,
    request: ReserveRequest,
    now_ms: i64,
    queued_at: Instant,
    reply: Reply,
}

/// The requests for one sale in a batch.
#[derive(Default)]
struct SaleBatch {
    requests: Vec<ReserveRequest>,
    replies: Vec<Reply>,
    /// The latest of the times that came with the requests.
    now_ms: i64,
}

impl ReserveBatcher {
    /// Starts the batcher on this thread, which must run a `LocalSet`. It ends when its last clone is dropped.
    pub fn start(gate: Gate) -> Result<Self, GateError> {
        let (queue, requests) = mpsc::channel(gate.terms.queue_max);
        let shared = Rc::<Shared>::default();
        let batch_loop = BatchLoop { connection: gate.own_connection()?, gate, shared: Rc::clone(&shared) };
        tokio::task::spawn_local(batch_loop.run(requests));
        Ok(Self { queue, shared })
    }

    /// Whether this buyer can be refused as sold out without a call to Redis.
    pub fn remembers_sold_out(&self, sale: SaleId, user: &UserId) -> bool {
        self.shared.sold_out.borrow().is_sold_out_for(sale, user)
    }

    /// From now on, learns all holders of the sales that are asked for, or no longer.
    pub fn learn_holders(&self, learn: bool) {
        self.shared.wants_holders.set(learn);
    }

    /// Whether this user is known not to hold a ticket, and not to have held one: `false` unless holders are being learnt.
    pub fn is_stranger(&self, sale: SaleId, user: &str) -> bool {
        self.shared.sold_out.borrow().is_stranger(sale, user)
    }

    /// The longest that a request has waited for its call since this was last asked for.
    pub fn take_wait(&self) -> Duration {
        let waiting = self.shared.waiting_since.get().map_or(Duration::ZERO, |since| since.elapsed());
        self.shared.waited.take().max(waiting)
    }

    /// Asks for units. `now_ms` is the database's time.
    ///
    /// # Errors
    ///
    /// `Overloaded`: nothing was taken. Any other error: whether units were taken is unknown.
    pub async fn reserve(&self, sale: SaleId, request: ReserveRequest, now_ms: i64) -> Result<Admission, GateError> {
        let (reply, answer) = oneshot::channel();
        let queued_at = Instant::now();
        let queued = Queued { sale, request, now_ms, queued_at, reply };
        self.queue.try_send(queued).map_err(|_| GateError::Overloaded)?;
        if self.shared.waiting_since.get().is_none() {
            self.shared.waiting_since.set(Some(queued_at));
        }
        answer.await.unwrap_or(Err(GateError::Overloaded))
    }
}

struct BatchLoop {
    gate: Gate,
    connection: ConnectionManager,
    shared: Rc<Shared>,
}

impl Shared {
    /// Records how long the oldest request of a batch has waited, and since when the oldest one waits that is left behind.
    fn note_wait(&self, oldest: Instant, left_since: Option<Instant>) {
        self.waited.set(self.waited.get().max(oldest.elapsed()));
        self.waiting_since.set(left_since);
    }
}

impl BatchLoop {
    async fn run(self, mut requests: mpsc::Receiver<Queued>) {
        let batch_max = self.gate.terms.batch_max;
        let mut batch = Vec::with_capacity(batch_max);
        while requests.recv_many(&mut batch, batch_max).await > 0 {
            metrics::histogram!("seckill_gate_batch_size").record(batch.len() as f64);
            if let [first, .., last] | [first @ last] = &batch[..] {
                self.shared.note_wait(first.queued_at, (!requests.is_empty()).then_some(last.queued_at));
            }
            let mut by_sale: HashMap<SaleId, SaleBatch> = HashMap::new();
            for Queued { sale, request, now_ms, reply, .. } in batch.drain(..) {
                let of_sale = by_sale.entry(sale).or_default();
                of_sale.requests.push(request);
                of_sale.replies.push(reply);
                of_sale.now_ms = of_sale.now_ms.max(now_ms);
            }
            let calls = by_sale.into_iter().map(|(sale, batch)| self.answer(sale, batch));
            join_all(calls).await;
        }
    }

    async fn answer(&self, sale: SaleId, batch: SaleBatch) {
        let SaleBatch { requests, replies, now_ms } = batch;
        let asked_at = Instant::now();
        let known = self.shared.sold_out.borrow().known(sale);
        let learn = self.shared.wants_holders.get();
        match self.gate.reserve(&self.connection, sale, (known, learn), now_ms, &requests).await {
            Ok(Some(mut reply)) => {
                let sold_out = Duration::from_millis(self.gate.terms.sold_out_ms);
                self.shared.sold_out.borrow_mut().record(sale, known, &mut reply, asked_at, sold_out);
                for (caller, admission) in replies.into_iter().zip(reply.admissions) {
                    // The caller may have gone away; the reconciler then finishes the hold.
                    let _ = caller.send(Ok(admission));
                }
            }
            Ok(None) => {
                self.gate.refill_wanted.add(sale);
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
    /// Calls reserve.lua for many buyers of a sale, of which some holders are known, and more are wanted if `learn`. Returns
    /// `None` when this server does not serve the sale.
    async fn reserve(
        &self,
        connection: &ConnectionManager,
        sale: SaleId,
        (known, learn): ((Epoch, usize), bool),
        now_ms: i64,
        requests: &[ReserveRequest],
    ) -> Result<Option<ReserveReply>, GateError> {
        let Terms { sold_out_ms, lapses, .. } = self.terms;
        let terms = CallTerms { known, learn, now_ms, sold_out_ms, lapses, limits: self.limits() };
        let keys = self.keys.sale(sale, Shard::HOME);
        let call = reserve_call(self.scripts.reserve.get_hash(), &keys, &terms, requests);
        let mut connection = connection.clone();
        let reply = match timed("reserve", call.query_async::<Vec<Value>>(&mut connection)).await {
            Err(error) if is_no_script(&error) => {
                self.scripts.reserve.load_async(&mut connection).await?;
                call.query_async(&mut connection).await?
            }
            reply => reply?,
        };
        ReserveReply::read(reply, requests.len())
    }
}
