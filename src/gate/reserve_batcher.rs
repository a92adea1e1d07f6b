//! Batches the purchase requests of one worker thread into calls of reserve.lua, one call of a sale at a time.
//!
//! A sale's next call is made when its last one has returned, for all requests that have come meanwhile. No request waits for
//! a timer, under load one call serves hundreds, and a slow call of one sale holds back no other sale. The winners of a call go on
//! together, to be committed; the sale's next call does not wait for that.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use redis::Value;
use redis::aio::ConnectionManager;
use tokio::sync::{Semaphore, oneshot};

use super::keys::SaleKeys;
use super::reserve_call::{CallTerms, reserve_call};
use super::reserve_reply::ReserveReply;
use super::sold_out_cache::SoldOutCache;
use super::{Gate, GateError, Terms, is_no_script, timed};
use crate::domain::admission::{Admission, Hold, PurchaseGroup, ReserveRequest};
use crate::domain::ids::{Epoch, SaleId, Shard, UserId};

/// Calls under way at the same time, each of another sale. Further sales wait for one of these to return.
const CALLS_MAX: usize = 64;
/// Lines that are kept although nobody waits there: a busy sale needs its own again at once.
const LINES_KEPT: usize = 1024;

/// Commits a group, and says of each of its members, and then of each repeat, whether it is durable.
pub type CommitGroup = Box<dyn Fn(PurchaseGroup) -> LocalBoxFuture<'static, Vec<bool>>>;

type Reply = oneshot::Sender<Result<Admission, GateError>>;

/// The batcher of one worker thread; clones share it. It has no locks and stays on its thread.
#[derive(Clone)]
pub struct ReserveBatcher(Rc<Shared>);

/// What the batcher and the tasks of its sales share.
struct Shared {
    gate: Gate,
    connection: ConnectionManager,
    commit: CommitGroup,
    lines: RefCell<HashMap<SaleId, Line>>,
    /// The requests in all lines.
    queued: Cell<usize>,
    calls: Semaphore,
    sold_out: RefCell<SoldOutCache>,
    /// Whether each call asks for the holders, too.
    wants_holders: Cell<bool>,
    /// The longest that a request has waited since this was last asked for.
    waited: Cell<Duration>,
}

/// The requests that wait for a sale's next call.
struct Line {
    keys: Rc<SaleKeys>,
    waiting: VecDeque<Queued>,
    /// Whether a task makes the sale's calls.
    is_served: bool,
}

struct Queued {
    request: ReserveRequest,
    now_ms: i64,
    queued_at: Instant,
    reply: Reply,
}

/// A task that makes the calls of a sale. Should it end while requests wait, by a bug, they are refused, and the next request starts
/// another: otherwise they would wait for ever, and the sale would be closed on this thread.
struct Serving {
    shared: Rc<Shared>,
    sale: SaleId,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let Ok(mut lines) = self.shared.lines.try_borrow_mut() else { return };
        if let Some(line) = lines.get_mut(&self.sale).filter(|line| line.is_served) {
            line.is_served = false;
            self.shared.queued.update(|queued| queued - line.waiting.len());
            line.waiting.clear();
        }
    }
}

/// The requests of one call.
struct Batch {
    requests: Vec<ReserveRequest>,
    replies: Vec<Reply>,
    /// The latest of the times that came with the requests.
    now_ms: i64,
}

impl ReserveBatcher {
    /// A batcher for this thread, which must run a `LocalSet`. It has winners committed by `commit`.
    pub fn new(gate: Gate, commit: CommitGroup) -> Result<Self, GateError> {
        Ok(Self(Rc::new(Shared {
            connection: gate.own_connection()?,
            gate,
            commit,
            lines: RefCell::default(),
            queued: Cell::default(),
            calls: Semaphore::new(CALLS_MAX),
            sold_out: RefCell::default(),
            wants_holders: Cell::default(),
            waited: Cell::default(),
        })))
    }

    /// Whether this buyer can be refused as sold out without a call to Redis.
    pub fn remembers_sold_out(&self, sale: SaleId, user: &UserId) -> bool {
        self.0.sold_out.borrow().is_sold_out_for(sale, user)
    }

    /// From now on, learns all holders of the sales that are asked for, or no longer.
    pub fn learn_holders(&self, learn: bool) {
        self.0.wants_holders.set(learn);
    }

    /// Whether this user is known not to hold a ticket, and not to have held one: `false` unless holders are being learnt.
    pub fn is_stranger(&self, sale: SaleId, user: &str) -> bool {
        self.0.sold_out.borrow().is_stranger(sale, user)
    }

    /// The longest that a request has waited for its call since this was last asked for.
    pub fn take_wait(&self) -> Duration {
        let lines = self.0.lines.borrow();
        let oldest = lines.values().filter_map(|line| line.waiting.front()).map(|queued| queued.queued_at).min();
        self.0.waited.take().max(oldest.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    /// Asks for units. `now_ms` is the database's time. A buyer who gets units, or has unconfirmed ones, is answered when the purchase
    /// row is durable (rule 3), or when it is clear that this cannot be known (`NotDurable`).
    ///
    /// # Errors
    ///
    /// `Overloaded`: nothing was taken. Any other error: whether units were taken is unknown.
    pub async fn reserve(&self, sale: SaleId, request: ReserveRequest, now_ms: i64) -> Result<Admission, GateError> {
        let (reply, answer) = oneshot::channel();
        self.0.enqueue(sale, Queued { request, now_ms, queued_at: Instant::now(), reply })?;
        answer.await.unwrap_or(Err(GateError::Unknown))
    }
}

impl Shared {
    /// Puts a request into the line of its sale, and starts a task that serves the line if there is none.
    fn enqueue(self: &Rc<Self>, sale: SaleId, queued: Queued) -> Result<(), GateError> {
        if self.queued.get() >= self.gate.terms.queue_max {
            return Err(GateError::Overloaded);
        }
        self.queued.set(self.queued.get() + 1);
        let mut lines = self.lines.borrow_mut();
        let line = lines.entry(sale).or_insert_with(|| Line {
            keys: Rc::new(self.gate.keys.sale(sale, Shard::HOME)),
            waiting: VecDeque::new(),
            is_served: false,
        });
        line.waiting.push_back(queued);
        if !line.is_served {
            line.is_served = true;
            let serving = Serving { shared: Rc::clone(self), sale };
            tokio::task::spawn_local(Self::serve(serving, Rc::clone(&line.keys)));
        }
        Ok(())
    }

    /// Makes the calls of a sale, one after the other, as long as requests wait for the next.
    async fn serve(serving: Serving, keys: Rc<SaleKeys>) {
        let Serving { shared, sale } = &serving;
        loop {
            // The line grows while other sales have all calls.
            let Ok(_call) = shared.calls.acquire().await else { return };
            let Some(batch) = shared.next_batch(*sale) else { return };
            shared.answer(*sale, &keys, batch).await;
        }
    }

    /// Takes what the next call of a sale serves; `None` if nobody waits: then the line is served no longer.
    fn next_batch(&self, sale: SaleId) -> Option<Batch> {
        let mut lines = self.lines.borrow_mut();
        // Room for a whole call in a few lines, or for a few requests in each of many.
        let room = self.gate.terms.batch_max.min(16 * LINES_KEPT / lines.len().max(1));
        let line = lines.get_mut(&sale)?;
        let size = line.waiting.len().min(self.gate.terms.batch_max);
        let mut batch =
            Batch { requests: Vec::with_capacity(size), replies: Vec::with_capacity(size), now_ms: i64::MIN };
        let mut oldest = None;
        while batch.requests.len() < self.gate.terms.batch_max
            && let Some(Queued { request, now_ms, queued_at, reply }) = line.waiting.pop_front()
        {
            self.queued.update(|queued| queued - 1);
            // A caller who has hung up takes no units: other buyers can have them.
            if !reply.is_closed() {
                oldest.get_or_insert(queued_at);
                batch.requests.push(request);
                batch.replies.push(reply);
                batch.now_ms = batch.now_ms.max(now_ms);
            }
        }
        let Some(oldest) = oldest else {
            line.is_served = false;
            line.waiting.shrink_to(room);
            if lines.len() > LINES_KEPT {
                lines.remove(&sale);
            }
            return None;
        };
        self.waited.set(self.waited.get().max(oldest.elapsed()));
        Some(batch)
    }

    async fn answer(&self, sale: SaleId, keys: &SaleKeys, batch: Batch) {
        let Batch { requests, replies, now_ms } = batch;
        metrics::histogram!("seckill_gate_batch_size").record(requests.len() as f64);
        let asked_at = Instant::now();
        let known = self.sold_out.borrow().known(sale);
        let learn = self.wants_holders.get();
        let reply = self.gate.reserve(&self.connection, keys, (known, learn), now_ms, &requests).await;
        match reply {
            Ok(Some(mut reply)) => {
                let sold_out = Duration::from_millis(self.gate.terms.sold_out_ms);
                self.sold_out.borrow_mut().record(sale, known, &mut reply, asked_at, sold_out);
                let hold = Hold { epoch: reply.epoch, shard: Shard::HOME };
                let group = PurchaseGroup { sale, hold, members: Vec::new(), repeats: Vec::new() };
                self.pass_on(group, requests, replies, reply.admissions);
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

    /// Answers the requests of a call: those that need a commit, which become the group, when it is done; all others at once. Callers
    /// may have gone away: what they asked for is committed all the same.
    fn pass_on(
        &self,
        mut group: PurchaseGroup,
        requests: Vec<ReserveRequest>,
        replies: Vec<Reply>,
        admissions: Vec<Admission>,
    ) {
        let (mut winners, mut repeating) = (Vec::new(), Vec::new());
        for ((request, caller), admission) in requests.into_iter().zip(replies).zip(admissions) {
            if !admission.needs_commit() {
                let _ = caller.send(Ok(admission));
            } else if let Admission::Reserved { .. } = admission {
                group.members.push(request);
                winners.push((caller, admission));
            } else {
                group.repeats.push(request);
                repeating.push((caller, admission));
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

impl Gate {
    /// Calls reserve.lua for many buyers of a sale, of which some holders are known, and more are wanted if `learn`. Returns
    /// `None` when this server does not serve the sale.
    async fn reserve(
        &self,
        connection: &ConnectionManager,
        keys: &SaleKeys,
        (known, learn): ((Epoch, usize), bool),
        now_ms: i64,
        requests: &[ReserveRequest],
    ) -> Result<Option<ReserveReply>, GateError> {
        let Terms { sold_out_ms, lapses, .. } = self.terms;
        let terms = CallTerms { known, learn, now_ms, sold_out_ms, lapses, limits: self.limits() };
        let call = reserve_call(self.scripts.reserve.get_hash(), keys, &terms, requests);
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
