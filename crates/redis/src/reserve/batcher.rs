//! Batches the purchase requests of one worker thread into calls of reserve.lua.
//!
//! A sale's next call is made when its last one has returned, for all requests that have come meanwhile. When they fill more than one
//! call, several are in flight. No request waits for a timer, and a slow call of one sale delays no other sale. The next call does not
//! wait for the commit of a call's winners.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::sold_out_cache::SoldOutCache;
use crate::keys::SaleKeys;
use crate::loans::lending::Lending;
use crate::thread_gate::{CallWinners, Reply, ThreadGate};
use crate::{Gate, GateError};
use seckill_domain::admission::{Admission, ReserveRequest};
use seckill_domain::ids::{SaleId, Shard, UserId};
use seckill_domain::shards::SaleShards;

/// Calls in flight. Further sales wait for one of them to return.
const CALLS_MAX: usize = 64;
/// Full calls of one sale in flight: a busy thread is slow to read what has returned.
const FULL_CALLS_MAX: usize = 4;
/// A call slower than this, on a thread that is not late itself, means that Redis is overloaded. Then one call of the sale runs at a time.
const PROMPT: Duration = Duration::from_millis(50);
/// A call's answer waits for a busy thread when it is sent, when it arrives, and when it is read.
const TURNS_A_CALL: u32 = 3;
/// Empty lines that are kept: a busy sale needs its line again at once.
const LINES_KEPT: usize = 1024;

/// The batcher of one worker thread; clones share it. It has no locks and stays on its thread.
#[derive(Clone)]
pub struct ReserveBatcher(Rc<Shared>);

/// A home shard. Each has its own line.
pub(super) type Place = (SaleId, Shard);

/// Shared by the batcher and the tasks of its sales.
pub(super) struct Shared {
    pub(super) thread: Rc<ThreadGate>,
    pub(super) lending: Rc<Lending>,
    lines: RefCell<HashMap<Place, Line>>,
    /// The requests in all lines, and the borrowers.
    pub(super) queued: Rc<Cell<usize>>,
    calls: Semaphore,
    pub(super) sold_out: RefCell<SoldOutCache>,
    pub(super) wants_holders: Cell<bool>,
    /// The lines with a call in flight that asks for the holders: a second one would get the same answer.
    pub(super) learning: RefCell<HashSet<Place>>,
    late: Cell<Duration>,
}

struct Line {
    keys: Rc<SaleKeys>,
    waiting: VecDeque<Queued>,
    is_served: bool,
    /// The longest wait for a call since `take_waits`.
    waited: Duration,
    /// How long the last call took.
    took: Duration,
}

/// The waits at one sale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SaleWait {
    /// The longest wait of a request for its call since the last look.
    pub in_line: Duration,
    /// How long a call takes, without the thread's own lateness.
    pub call: Duration,
}

struct Queued {
    request: ReserveRequest,
    now_ms: i64,
    queued_at: Instant,
    reply: Reply,
}

/// A task that makes the calls of a line. If a bug ends it while requests wait, they are refused, and the next request starts another
/// task.
struct Serving {
    shared: Rc<Shared>,
    of: SaleShards,
    shard: Shard,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let place = (self.of.sale, self.shard);
        _ = self.shared.learning.try_borrow_mut().map(|mut learning| learning.remove(&place));
        let Ok(mut lines) = self.shared.lines.try_borrow_mut() else { return };
        if let Some(line) = lines.get_mut(&place).filter(|line| line.is_served) {
            line.is_served = false;
            self.shared.queued.update(|queued| queued - line.waiting.len());
            line.waiting.clear();
        }
    }
}

pub(super) struct Batch {
    pub(super) requests: Vec<ReserveRequest>,
    pub(super) replies: Vec<Reply>,
    pub(super) now_ms: i64,
}

impl ReserveBatcher {
    /// A batcher for this thread, which must run a `LocalSet`, and the winners of its calls, who wait for their commit.
    pub fn new(gate: Gate) -> Result<(Self, mpsc::UnboundedReceiver<CallWinners>), GateError> {
        let connections = gate.server.connections(gate.timeouts)?;
        let (thread, winners) = ThreadGate::new(gate, connections);
        let thread = Rc::new(thread);
        let batcher = Self(Rc::new(Shared {
            lending: Rc::new(Lending::new(Rc::clone(&thread))),
            thread,
            lines: RefCell::default(),
            queued: Rc::default(),
            calls: Semaphore::new(CALLS_MAX),
            sold_out: RefCell::default(),
            wants_holders: Cell::default(),
            learning: RefCell::default(),
            late: Cell::default(),
        }));
        Ok((batcher, winners))
    }

    /// Whether this buyer can be refused as sold out without a call to Redis.
    pub fn remembers_sold_out(&self, of: SaleShards, user: &UserId) -> bool {
        self.0.sold_out.borrow().is_sold_out_for((of.sale, of.home(user.as_str())), user)
    }

    /// Whether to learn all holders of the requested sales from now on.
    pub fn learn_holders(&self, learn: bool) {
        self.0.wants_holders.set(learn);
    }

    /// Whether this user has no ticket, and never had one. `false` unless holders are learnt.
    pub fn is_stranger(&self, of: SaleShards, user: &str) -> bool {
        self.0.sold_out.borrow().is_stranger((of.sale, of.home(user)), user)
    }

    /// The waits at each sale with requests. `late` is how late this thread runs its tasks.
    pub fn take_waits(&self, late: Duration) -> HashMap<SaleId, SaleWait> {
        self.0.late.set(late);
        let (now, mut waits) = (Instant::now(), HashMap::<_, SaleWait>::new());
        for ((sale, _), line) in self.0.lines.borrow_mut().iter_mut() {
            let oldest = line.waiting.front().map_or(Duration::ZERO, |queued| now - queued.queued_at);
            let waited = std::mem::take(&mut line.waited).max(oldest);
            if line.is_served || !waited.is_zero() {
                let wait = waits.entry(*sale).or_default();
                wait.in_line = wait.in_line.max(waited);
                wait.call = wait.call.max(line.took.saturating_sub(late * TURNS_A_CALL));
            }
        }
        waits
    }

    /// Refuses strangers who have waited longer than `patience` for a call of this sale.
    pub fn refuse_overdue(&self, sale: SaleId, patience: Duration) {
        let now = Instant::now();
        for (place, line) in self.0.lines.borrow_mut().iter_mut().filter(|((of, _), _)| *of == sale) {
            let overdue = line.waiting.partition_point(|queued| now - queued.queued_at > patience);
            let overdue = line.waiting.drain(..overdue).collect::<Vec<_>>();
            for queued in overdue.into_iter().rev() {
                match self.0.refuse_stranger(*place, queued) {
                    Some(holder) => line.waiting.push_front(holder),
                    None => self.0.queued.update(|queued| queued - 1),
                }
            }
        }
    }

    /// Asks for units. `now_ms` is the database's time. A buyer with new or unconfirmed units is answered when the purchase row is
    /// durable (rule 3), or when this cannot be known (`NotDurable`).
    ///
    /// # Errors
    /// `Overloaded`: nothing was taken. Other errors: units may have been taken.
    pub async fn reserve(&self, of: SaleShards, request: ReserveRequest, now_ms: i64) -> Result<Admission, GateError> {
        let (reply, answer) = oneshot::channel();
        self.0.enqueue(of, Queued { request, now_ms, queued_at: Instant::now(), reply })?;
        answer.await.unwrap_or(Err(GateError::Unknown))
    }
}

impl Shared {
    /// Puts a request into the line of its sale, and starts the line's task if there is none.
    fn enqueue(self: &Rc<Self>, of: SaleShards, queued: Queued) -> Result<(), GateError> {
        if self.queued.get() >= self.thread.gate.queue_max {
            return Err(GateError::Overloaded);
        }
        self.queued.set(self.queued.get() + 1);
        let mut lines = self.lines.borrow_mut();
        let shard = of.home(queued.request.user.as_str());
        let line = lines.entry((of.sale, shard)).or_insert_with(|| Line {
            keys: Rc::new(self.thread.gate.keys.sale(of, shard)),
            waiting: VecDeque::new(),
            is_served: false,
            waited: Duration::ZERO,
            took: Duration::ZERO,
        });
        line.waiting.push_back(queued);
        if !line.is_served {
            line.is_served = true;
            let serving = Serving { shared: Rc::clone(self), of, shard };
            tokio::task::spawn_local(Self::serve(serving, Rc::clone(&line.keys)));
        }
        Ok(())
    }

    /// Makes the calls of a line until it is empty: one after the other, or several full ones at the same time.
    async fn serve(serving: Serving, keys: Rc<SaleKeys>) {
        let Serving { shared, of, shard } = &serving;
        let place = (of.sale, *shard);
        let (mut calls, mut took) = (FuturesUnordered::new(), Duration::ZERO);
        loop {
            // The line grows while other sales have all calls.
            let Ok(call) = shared.calls.acquire().await else { return };
            let Some(batch) = shared.next_batch(place) else { return shared.end_line(place) };
            let answer = |batch, call| shared.answer(*of, *shard, &keys, batch, call);
            calls.push(answer(batch, call));
            while !calls.is_empty() {
                while calls.len() < FULL_CALLS_MAX
                    && took <= PROMPT + shared.late.get() * TURNS_A_CALL
                    && shared.has_full_batch(place)
                    && let Ok(call) = shared.calls.try_acquire()
                    && let Some(batch) = shared.next_batch(place)
                {
                    calls.push(answer(batch, call));
                }
                took = calls.next().await.unwrap_or_default();
                shared.lines.borrow_mut().entry(place).and_modify(|line| line.took = took);
            }
        }
    }

    fn has_full_batch(&self, place: Place) -> bool {
        let lines = self.lines.borrow();
        lines.get(&place).is_some_and(|line| line.waiting.len() >= self.thread.gate.batch_max)
    }

    /// The requests of the next call; `None` if the line is empty.
    fn next_batch(&self, place: Place) -> Option<Batch> {
        let now = Instant::now();
        let mut lines = self.lines.borrow_mut();
        let line = lines.get_mut(&place)?;
        let size = line.waiting.len().min(self.thread.gate.batch_max);
        let mut batch =
            Batch { requests: Vec::with_capacity(size), replies: Vec::with_capacity(size), now_ms: i64::MIN };
        let mut oldest = None;
        while batch.requests.len() < self.thread.gate.batch_max
            && let Some(queued) = line.waiting.pop_front()
        {
            self.queued.update(|queued| queued - 1);
            // A caller who has hung up takes no units.
            if queued.reply.is_closed() {
                continue;
            }
            let Queued { request, now_ms, queued_at, reply } = queued;
            oldest.get_or_insert(queued_at);
            batch.requests.push(request);
            batch.replies.push(reply);
            batch.now_ms = batch.now_ms.max(now_ms);
        }
        line.waited = line.waited.max(now - oldest?);
        Some(batch)
    }

    /// Refuses the request of a stranger. Returns other requests.
    fn refuse_stranger(&self, place: Place, queued: Queued) -> Option<Queued> {
        if !self.sold_out.borrow().is_stranger(place, queued.request.user.as_str()) {
            return Some(queued);
        }
        metrics::counter!("seckill_shed_total", "what" => "purchases").increment(1);
        let _ = queued.reply.send(Err(GateError::Overloaded));
        None
    }

    fn end_line(&self, place: Place) {
        let mut lines = self.lines.borrow_mut();
        // Room for a whole call in a few lines, or for a few requests in each of many.
        let room = self.thread.gate.batch_max.min(16 * LINES_KEPT / lines.len().max(1));
        let Some(line) = lines.get_mut(&place) else { return };
        line.is_served = false;
        line.waiting.shrink_to(room);
        if lines.len() > LINES_KEPT {
            lines.remove(&place);
        }
    }
}
