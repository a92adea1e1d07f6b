//! Purchases that wait to be settled, and the workers that settle them.

use std::collections::VecDeque;

use super::outcome::Outcome;
use super::step::Batch;
use crate::engine::{Nanos, ThreadId, seconds};

/// The workers.
pub(super) struct Settling {
    /// By loop: the worker's thread, and PostgreSQL's process for it.
    pub threads: Vec<ThreadId>,
    pub backends: Vec<ThreadId>,
    pub broker: Vec<ThreadId>,
    pub idle: Vec<usize>,
    pub backlog: u64,
    /// Whether the workers no longer give way.
    pub is_let: bool,
    /// All batches change the sale's row, one after the other: each holds it until it is durable.
    pub has_row: bool,
    pub wait_for_row: VecDeque<Batch>,
    pub settled: u64,
    pub first_begun: Option<Nanos>,
    pub last_settled: Nanos,
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
