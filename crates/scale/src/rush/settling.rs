//! What becomes of a winner after the 202: workers settle purchases in batches, through the broker, into PostgreSQL.

use std::collections::VecDeque;

use super::commits::Flushing;
use super::outcome::Outcome;
use super::system::{Step, System};
use crate::engine::{Nanos, ThreadId, nanos, seconds};

/// `orders.batch_max`: orders in one transaction.
const BATCH_MAX: u64 = 250;
/// Settling gives way to purchases until it has been behind for so long.
pub(super) const SETTLE_BY_S: f64 = 5.0;

/// Orders that are settled together, and the loop that does it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    on: usize,
    orders: u64,
}

/// The workers.
pub(super) struct Settling {
    /// By loop: the worker's thread, and PostgreSQL's process for it.
    threads: Vec<ThreadId>,
    backends: Vec<ThreadId>,
    broker: Vec<ThreadId>,
    idle: Vec<usize>,
    backlog: u64,
    /// Whether the workers no longer give way.
    is_let: bool,
    /// All batches change the sale's row, one after the other: each holds it until it is durable.
    has_row: bool,
    wait_for_row: VecDeque<Batch>,
    settled: u64,
    first_begun: Option<Nanos>,
    last_settled: Nanos,
}

impl Settling {
    /// Loops of a `work` that are busy at the same time: the relay and fulfilment.
    pub const LOOPS: usize = 2;

    pub fn new(backlog: u64, threads: Vec<ThreadId>, broker: Vec<ThreadId>) -> Self {
        Self {
            idle: (0..threads.len()).collect(),
            threads,
            backends: Vec::new(),
            broker,
            backlog,
            is_let: false,
            has_row: true,
            wait_for_row: VecDeque::new(),
            settled: 0,
            first_begun: None,
            last_settled: 0,
        }
    }

    pub fn loops(&self) -> usize {
        self.threads.len()
    }

    /// Gives each loop a process of PostgreSQL.
    pub fn with_backends(self, backends: Vec<ThreadId>) -> Self {
        Self { backends, ..self }
    }

    /// Adds purchases. Whether they are the first.
    pub fn add(&mut self, purchases: u64) -> bool {
        let is_first = self.backlog == 0 && self.first_begun.is_none() && !self.is_let;
        self.backlog += purchases;
        is_first
    }

    /// Completes an outcome.
    pub fn add_to(&self, outcome: Outcome) -> Outcome {
        let took = self.first_begun.map_or(0.0, |begun| seconds(self.last_settled - begun));
        Outcome {
            settled: self.settled,
            settled_after_s: (self.settled > 0).then(|| seconds(self.last_settled)),
            settled_a_second: if took > 0.0 { self.settled as f64 / took } else { 0.0 },
            ..outcome
        }
    }
}

impl System<'_> {
    /// The workers give way no longer: they have for long enough, or nobody buys any more.
    pub(super) fn settle_from_now_on(&mut self) {
        self.settling.is_let = true;
        self.settle();
    }

    /// Begins batches, while there are purchases to settle and a loop that is idle.
    pub(super) fn settle(&mut self) {
        let us = self.rush.costs.settled.work_us;
        while self.settling.is_let
            && self.settling.backlog > 0
            && let Some(on) = self.settling.idle.pop()
        {
            let orders = self.settling.backlog.min(BATCH_MAX);
            self.settling.backlog -= orders;
            self.settling.first_begun.get_or_insert(self.engine.now());
            self.engine.run(self.settling.threads[on], nanos(us * orders as f64), Step::Worked(Batch { on, orders }));
        }
    }

    pub(super) fn worked(&mut self, batch: Batch) {
        let broker = self.settling.broker[batch.on % self.settling.broker.len()];
        let us = self.rush.costs.settled.broker_us * batch.orders as f64;
        self.engine.run(broker, nanos(us), Step::Carried(batch));
    }

    pub(super) fn carried(&mut self, batch: Batch) {
        let us = self.rush.costs.settled.postgres_us * batch.orders as f64;
        self.engine.run(self.settling.backends[batch.on], nanos(us), Step::Written(batch));
    }

    /// The batch takes the sale's row, last of all (rule 7 of docs/protocol.md), and is committed.
    pub(super) fn written(&mut self, batch: Batch) {
        if std::mem::take(&mut self.settling.has_row) {
            self.flush(Flushing::Settled(batch));
        } else {
            self.settling.wait_for_row.push_back(batch);
        }
    }

    pub(super) fn settled(&mut self, batch: Batch) {
        let of = &mut self.settling;
        of.settled += batch.orders;
        of.last_settled = self.engine.now();
        of.idle.push(batch.on);
        match of.wait_for_row.pop_front() {
            Some(next) => self.flush(Flushing::Settled(next)),
            None => of.has_row = true,
        }
        self.settle();
    }
}
