//! A buyer for whom units are borrowed, and the next shard to ask.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::calls::LoanRequest;
use super::empty_shards::EmptyShards;
use crate::thread_gate::{Answered, Reply};
use seckill_domain::admission::{Admission, ReserveRequest};
use seckill_domain::ids::{Epoch, Shard};
use seckill_domain::shards::SaleShards;

/// Counts a borrower among the queued requests: one bound holds for all.
pub(crate) struct QueueSlot(Rc<Cell<usize>>);

impl QueueSlot {
    pub(crate) fn new(queued: &Rc<Cell<usize>>) -> Self {
        queued.update(|queued| queued + 1);
        Self(Rc::clone(queued))
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.0.update(|queued| queued - 1);
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Home {
    pub(crate) of: SaleShards,
    pub(crate) shard: Shard,
    pub(crate) epoch: Epoch,
    /// The database's time of the requests.
    pub(crate) now_ms: i64,
}

pub(crate) struct Borrower {
    pub(crate) request: ReserveRequest,
    pub(crate) reply: Reply,
    pub(crate) home: Home,
    pub(crate) lender: Shard,
    pub(crate) number: i64,
    /// The lenders that have refused, a bit each.
    refused_by: u64,
    questions: u8,
    /// Whether one of them may have units, because it does not serve or has another epoch.
    unsure: bool,
    began: Instant,
    _slot: QueueSlot,
}

pub(super) struct NextStep {
    pub(crate) lender: Option<Shard>,
    /// Whether no other shard has enough units.
    pub(crate) all_refuse: bool,
}

/// A buyer of several units gets "sold out" when all shards have refused within this time.
const TOO_FEW_WITHIN: Duration = Duration::from_millis(500);

const fn bit(shard: Shard) -> u64 {
    1_u64 << shard.0
}

impl Borrower {
    pub(crate) fn new(
        (request, reply): (ReserveRequest, Reply),
        home: Home,
        lender: Shard,
        number: i64,
        slot: QueueSlot,
    ) -> Self {
        Self {
            request,
            reply,
            home,
            lender,
            number,
            refused_by: 0,
            questions: 0,
            unsure: false,
            began: Instant::now(),
            _slot: slot,
        }
    }

    pub(super) fn asked(&self) -> LoanRequest<'_> {
        LoanRequest { request: &self.request, number: self.number }
    }

    pub(super) fn with(self, admission: Admission) -> Answered {
        (self.request, self.reply, admission)
    }

    pub(super) fn at(self, lender: Shard, number: i64) -> Self {
        Self { lender, number, ..self }
    }

    pub(super) fn refused(mut self, is_clear: bool) -> Self {
        self.refused_by |= bit(self.lender);
        self.questions = self.questions.saturating_add(1);
        self.unsure |= !is_clear;
        self
    }

    /// The next lender has not refused, and is not known to be empty. If there is none, a lender that may have units again is asked once
    /// more, but not the last one.
    pub(super) fn next_step(&self, empty: &EmptyShards, now: Instant) -> NextStep {
        let (Home { of, shard: home, epoch, .. }, user) = (self.home, self.request.user.as_str());
        let find = |refused: u64| of.lender(user, |shard| refused & bit(shard) != 0 || empty.is_empty(of, shard, now));
        let refuses = |shard| shard == home || self.refused_by & bit(shard) != 0 || empty.is_empty(of, shard, now);
        let wants_many = self.request.units.get() > 1;
        let asks_again = !wants_many && !self.unsure && self.questions < 2 * of.count.get();
        let lender = find(self.refused_by).or_else(|| asks_again.then(|| find(bit(self.lender))).flatten());
        let is_of_now = self.began.elapsed() < TOO_FEW_WITHIN && empty.epoch(of).is_none_or(|known| known == epoch);
        NextStep { lender, all_refuse: wants_many && !self.unsure && is_of_now && of.count.all().all(refuses) }
    }
}
