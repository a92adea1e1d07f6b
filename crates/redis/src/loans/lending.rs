//! Borrows units for buyers whose home shard has too few. It asks lenders one after the other, until one holds the units or all have refused
//! (protocol, rule 15).
//!
//! Each lender has a line of borrowers on this thread, and is asked by one call at a time. A silent lender delays only its own line, and
//! the calls of home shards wait for no borrower.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::borrower::{Borrower, Home, NextStep};
use super::calls::{LendReply, LoanRequest, ONLY_ASK};
use super::empty_shards::EmptyShards;
use crate::GateError;
use crate::reply_codes::{BarCode, MoveCode};
use crate::thread_gate::ThreadGate;
use seckill_domain::admission::{Admission, Hold, ReserveRequest};
use seckill_domain::ids::{SaleId, Shard};
use seckill_domain::shards::SaleShards;
use seckill_runtime::die_at;

pub(crate) struct Lending {
    thread: Rc<ThreadGate>,
    pub(crate) empty: RefCell<EmptyShards>,
    /// The borrowers by lender. A lender without borrowers has no line.
    lines: RefCell<HashMap<(SaleId, Shard), VecDeque<Borrower>>>,
}

fn count(result: &'static str, borrowers: usize) {
    metrics::counter!("seckill_loans_total", "result" => result).increment(borrowers as u64);
}

/// A task that asks a lender until its line is empty. If a bug ends it earlier, the borrowers are refused, and their loans are left to the
/// reconciler.
struct Asking {
    lending: Rc<Lending>,
    of: SaleShards,
    lender: Shard,
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Ok(mut lines) = self.lending.lines.try_borrow_mut() {
            lines.remove(&(self.of.sale, self.lender));
        }
    }
}

impl Asking {
    async fn run(self) {
        while let Some(borrowers) = self.next_call() {
            let refused = self.ask(borrowers).await;
            self.lending.move_on(refused);
        }
    }

    /// The borrowers of the next call, with one epoch; `None` if the line is empty.
    fn next_call(&self) -> Option<Vec<Borrower>> {
        let mut lines = self.lending.lines.borrow_mut();
        let line = lines.get_mut(&(self.of.sale, self.lender))?;
        let epoch = line.front()?.home.epoch;
        let together = line.iter().take_while(|borrower| borrower.home.epoch == epoch).count();
        Some(line.drain(..together.min(self.lending.thread.gate.batch_max)).collect())
    }

    async fn ask(&self, borrowers: Vec<Borrower>) -> Vec<Borrower> {
        let Self { lending, of, lender } = self;
        let thread = &lending.thread;
        let refused = |borrowers: Vec<Borrower>, is_clear: bool| {
            borrowers.into_iter().map(|borrower| borrower.refused(is_clear)).collect()
        };
        let Some(Home { epoch, .. }) = borrowers.first().map(|borrower| borrower.home) else { return borrowers };
        let now_ms = borrowers.iter().map(|borrower| borrower.home.now_ms).max().unwrap_or_default();
        let asked_at = Instant::now();
        // Another call has found the lender empty meanwhile.
        if lending.empty.borrow().is_empty(*of, *lender, asked_at) {
            return refused(borrowers, true);
        }
        die_at!("loan.written");
        let asked: Vec<LoanRequest<'_>> = borrowers.iter().map(Borrower::asked).collect();
        let about = (epoch, now_ms, thread.gate.known_empty_ms());
        let answer = thread.gate.lend(&thread.connections, *of, *lender, about, &asked).await;
        drop(asked);
        match answer {
            Ok(Some(LendReply { expires_at_ms, empty_ms, held })) => {
                let until = (empty_ms > 0).then(|| asked_at + Duration::from_millis(empty_ms));
                lending.empty.borrow_mut().record(*of, *lender, epoch, until);
                let mut held = held.into_iter();
                let (winners, others): (Vec<_>, Vec<_>) =
                    borrowers.into_iter().partition(|_| held.next().unwrap_or_default());
                die_at!("loan.held");
                count("lent", winners.len());
                let winners = winners.into_iter().map(|borrower| borrower.with(Admission::Reserved { expires_at_ms }));
                thread.pass_on(*of, Hold { epoch, shard: *lender }, winners);
                refused(others, true)
            }
            Ok(None) => refused(borrowers, false),
            Err(error) => {
                // The units may be held. Only a repeat or the reconciler may act on the loan now.
                tracing::warn!(sale = %of.sale, shard = lender.0, %error, buyers = borrowers.len(), "lend failed");
                count("unknown", borrowers.len());
                answer_all(borrowers, || Err(GateError::Unknown));
                Vec::new()
            }
        }
    }
}

impl Lending {
    pub(crate) fn new(thread: Rc<ThreadGate>) -> Self {
        Self { thread, empty: RefCell::default(), lines: RefCell::default() }
    }

    pub(crate) fn borrow(self: &Rc<Self>, borrowers: impl IntoIterator<Item = Borrower>) {
        let mut lines = self.lines.borrow_mut();
        for borrower in borrowers {
            let (of, lender) = (borrower.home.of, borrower.lender);
            let line = lines.entry((of.sale, lender)).or_insert_with(|| {
                let asking = Asking { lending: Rc::clone(self), of, lender };
                tokio::task::spawn_local(asking.run());
                VecDeque::new()
            });
            line.push_back(borrower);
        }
    }

    /// Goes on with refused borrowers of one sale and epoch.
    fn move_on(self: &Rc<Self>, refused: Vec<Borrower>) {
        let mut by_home: BTreeMap<Shard, Vec<Borrower>> = BTreeMap::new();
        for borrower in refused {
            by_home.entry(borrower.home.shard).or_default().push(borrower);
        }
        for borrowers in by_home.into_values() {
            tokio::task::spawn_local(Rc::clone(self).move_loans(borrowers));
        }
    }

    /// Moves refused loans of one home shard. Borrowers with another lender ask there, and the others are answered.
    async fn move_loans(self: Rc<Self>, borrowers: Vec<Borrower>) {
        let Some(Home { of, shard: home, epoch, .. }) = borrowers.first().map(|borrower| borrower.home) else { return };
        let now_ms = borrowers.iter().map(|borrower| borrower.home.now_ms).max().unwrap_or_default();
        let now = Instant::now();
        // Read before the call: the 0 of the home shard must be the last one.
        let others = self.empty.borrow().others(of, home, now);
        let next: Vec<NextStep> = {
            let empty = self.empty.borrow();
            borrowers.iter().map(|borrower| borrower.next_step(&empty, now)).collect()
        };
        die_at!("loan.refused");
        let asked: Vec<_> = borrowers.iter().map(Borrower::asked).zip(next.iter().map(|step| step.lender)).collect();
        let moved = self.thread.gate.move_loans(&self.thread.connections, of, home, (epoch, now_ms), &asked).await;
        drop(asked);
        let (expires_at_ms, moved) = match moved {
            Ok(Some(moved)) => moved,
            Ok(None) => {
                count("unknown", borrowers.len());
                return answer_all(borrowers, || Ok(Admission::NotServing));
            }
            Err(error) => {
                tracing::warn!(sale = %of.sale, shard = home.0, %error, buyers = borrowers.len(), "move_loan failed");
                count("unknown", borrowers.len());
                return answer_all(borrowers, || Err(GateError::Unknown));
            }
        };
        let all_empty = others.is_some_and(|others| others.covers(epoch, Instant::now()));
        let (mut winners, mut borrowing, mut refused) = (Vec::new(), Vec::new(), 0);
        for ((borrower, (code, number)), next) in borrowers.into_iter().zip(moved).zip(next) {
            let answer = match (code, number, next.lender) {
                (MoveCode::Borrow, Some(number), Some(lender)) => {
                    borrowing.push(borrower.at(lender, number));
                    continue;
                }
                (MoveCode::Reserved, ..) => {
                    winners.push(borrower.with(Admission::Reserved { expires_at_ms }));
                    continue;
                }
                (MoveCode::SoldOut | MoveCode::TooFewLeft, ..) if all_empty || next.all_refuse => Admission::SoldOut,
                _ => Admission::UnderWay,
            };
            if matches!(code, MoveCode::Lost | MoveCode::Borrow) {
                count("unknown", 1);
            } else {
                refused += 1;
            }
            let _ = borrower.reply.send(Ok(answer));
        }
        count("home", winners.len());
        count("refused", refused);
        self.thread.pass_on(of, Hold { epoch, shard: home }, winners);
        self.borrow(borrowing);
    }

    /// Answers repeats with an open loan: with a record, if the lender holds the units (rule 15). They take no units.
    pub(crate) async fn look(self: Rc<Self>, repeats: Vec<Borrower>) {
        let mut by_lender: BTreeMap<Shard, Vec<Borrower>> = BTreeMap::new();
        for repeat in repeats {
            by_lender.entry(repeat.lender).or_default().push(repeat);
        }
        join_all(by_lender.into_iter().map(|(lender, repeats)| self.look_at(lender, repeats))).await;
    }

    async fn look_at(&self, lender: Shard, repeats: Vec<Borrower>) {
        let Some(Home { of, epoch, .. }) = repeats.first().map(|repeat| repeat.home) else { return };
        let asked: Vec<_> = repeats.iter().map(|repeat| (repeat.request.order, ONLY_ASK)).collect();
        let found = self.thread.gate.bar_loans(of, lender, epoch, &asked).await;
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(sale = %of.sale, shard = lender.0, %error, buyers = repeats.len(), "loans not looked at");
            None
        });
        let mut found = found.into_iter().flatten();
        let (durable, others): (Vec<_>, Vec<_>) =
            repeats.into_iter().partition(|_| found.next() == Some(BarCode::Held));
        answer_all(others, || Ok(Admission::UnderWay));
        let durable = durable.into_iter().map(|repeat| repeat.with(Admission::Repeat { confirmed: false }));
        self.thread.pass_on(of, Hold { epoch, shard: lender }, durable);
    }

    /// The lender of each buyer if the home shard has too few units. It is not known to be empty (-1: no lender).
    pub(crate) fn first_lenders(&self, of: SaleShards, requests: &[ReserveRequest]) -> Vec<i16> {
        if of.count.is_one() {
            return Vec::new();
        }
        let (empty, now) = (self.empty.borrow(), Instant::now());
        let lender =
            |request: &ReserveRequest| of.lender(request.user.as_str(), |shard| empty.is_empty(of, shard, now));
        requests.iter().map(|request| lender(request).map_or(-1, |shard| shard.0)).collect()
    }
}

fn answer_all(borrowers: Vec<Borrower>, answer: impl Fn() -> Result<Admission, GateError>) {
    for borrower in borrowers {
        let _ = borrower.reply.send(answer());
    }
}
