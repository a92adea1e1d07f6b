//! Borrows units for buyers whose home shard has too few: asks lenders, one after the other, until one holds the units, or all have said
//! no (protocol, rule 15).
//!
//! Each lender has a line of borrowers on this thread, and is asked by one call at a time, for all who have come meanwhile. A lender that
//! is silent holds up nobody who asks another, and the calls of home shards wait for nobody who borrows.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::calls::{Asked, Barred, Lent, Moved};
use super::empty_shards::EmptyShards;
use crate::die_at;
use crate::domain::admission::{Admission, Hold, PurchaseGroup, ReserveRequest};
use crate::domain::ids::{Epoch, Shard};
use crate::domain::shards::SaleShards;
use crate::gate::GateError;
use crate::gate::reserve::batcher::{Counted, Place, Reply, Shared};

/// For so long a shard stays empty for a borrower, where "sold out" is not remembered (`purchase.sold_out_memory_ms`).
pub(in crate::gate) const EMPTY_MS: u64 = 500;

/// Those who wait for a lender. One for whom nobody waits has no line.
pub(in crate::gate) type LenderLines = HashMap<Place, VecDeque<Borrower>>;

/// A home shard at which loans were found or written, and the epoch.
#[derive(Clone, Copy)]
pub(in crate::gate) struct Home {
    pub of: SaleShards,
    pub shard: Shard,
    pub epoch: Epoch,
    /// The database's time when the buyers came.
    pub now_ms: i64,
}

/// A request that has an open loan. It counts among the requests that wait until it is answered.
pub(in crate::gate) struct Borrower {
    pub request: ReserveRequest,
    pub reply: Reply,
    pub home: Home,
    pub lender: Shard,
    /// Of the loan that this request has written.
    pub number: i64,
    /// The lenders that have said no, a bit each.
    refused_by: u64,
    questions: u8,
    /// Whether one of them may have units: it does not serve, or has another epoch.
    unsure: bool,
    began: Instant,
    _counted: Counted,
}

/// Whom a borrower asks next, and if nobody, whether no other shard has as many units as it asks for.
struct NextStep {
    lender: Option<Shard>,
    all_refuse: bool,
}

/// A buyer of several units hears "sold out" if all shards have refused within this time, one after the other.
const TOO_FEW_WITHIN: Duration = Duration::from_millis(500);

const fn bit(shard: Shard) -> u64 {
    1_u64 << shard.0
}

impl Borrower {
    pub fn new(
        (request, reply): (ReserveRequest, Reply),
        home: Home,
        lender: Shard,
        number: i64,
        counted: Counted,
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
            _counted: counted,
        }
    }

    fn asked(&self) -> Asked<'_> {
        Asked { request: &self.request, number: self.number }
    }

    fn with(self, admission: Admission) -> (ReserveRequest, Reply, Admission) {
        (self.request, self.reply, admission)
    }

    fn refused(mut self, is_clear: bool) -> Self {
        self.refused_by |= bit(self.lender);
        self.questions = self.questions.saturating_add(1);
        self.unsure |= !is_clear;
        self
    }

    /// A shard that has not refused, and is not known to be empty. When there is none, one whose emptiness is not known any more is asked
    /// once more, but not the last one again.
    fn next_step(&self, empty: &EmptyShards, now: Instant) -> NextStep {
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

fn count(result: &'static str, borrowers: usize) {
    metrics::counter!("seckill_loans_total", "result" => result).increment(borrowers as u64);
}

/// A task that asks a lender for as long as borrowers wait. Should it end before, by a bug, they are refused, and their loans are left to the
/// reconciler: otherwise they would wait for ever.
struct Asking {
    shared: Rc<Shared>,
    of: SaleShards,
    lender: Shard,
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Ok(mut lines) = self.shared.lenders.try_borrow_mut() {
            lines.remove(&(self.of.sale, self.lender));
        }
    }
}

impl Asking {
    async fn run(self) {
        while let Some(borrowers) = self.next_call() {
            let refused = self.ask(borrowers).await;
            self.shared.move_on(refused);
        }
    }

    /// Those that the next call asks for: they have one epoch. `None` if nobody waits.
    fn next_call(&self) -> Option<Vec<Borrower>> {
        let mut lines = self.shared.lenders.borrow_mut();
        let line = lines.get_mut(&(self.of.sale, self.lender))?;
        let epoch = line.front()?.home.epoch;
        let together = line.iter().take_while(|borrower| borrower.home.epoch == epoch).count();
        Some(line.drain(..together.min(self.shared.gate.terms.batch_max)).collect())
    }

    /// Asks for these borrowers. Returns those that were refused.
    async fn ask(&self, borrowers: Vec<Borrower>) -> Vec<Borrower> {
        let Self { shared, of, lender } = self;
        let refused = |borrowers: Vec<Borrower>, is_clear: bool| {
            borrowers.into_iter().map(|borrower| borrower.refused(is_clear)).collect()
        };
        let Some(Home { epoch, .. }) = borrowers.first().map(|borrower| borrower.home) else { return borrowers };
        let now_ms = borrowers.iter().map(|borrower| borrower.home.now_ms).max().unwrap_or_default();
        let asked_at = Instant::now();
        // While they waited, another call has heard 0.
        if shared.empty.borrow().is_empty(*of, *lender, asked_at) {
            return refused(borrowers, true);
        }
        die_at!("loan.written");
        let asked: Vec<Asked<'_>> = borrowers.iter().map(Borrower::asked).collect();
        let about = (epoch, now_ms, shared.gate.known_empty_ms());
        let answer = shared.gate.lend(&shared.connections, *of, *lender, about, &asked).await;
        drop(asked);
        match answer {
            Ok(Lent::Answered { epoch, expires_at_ms, empty_ms, held }) => {
                let until = (empty_ms > 0).then(|| asked_at + Duration::from_millis(empty_ms));
                shared.empty.borrow_mut().record(*of, *lender, epoch, until);
                let mut held = held.into_iter();
                let (winners, others): (Vec<_>, Vec<_>) =
                    borrowers.into_iter().partition(|_| held.next().unwrap_or_default());
                die_at!("loan.held");
                count("lent", winners.len());
                let winners = winners.into_iter().map(|borrower| borrower.with(Admission::Reserved { expires_at_ms }));
                shared.pass_on(PurchaseGroup::new(*of, Hold { epoch, shard: *lender }), winners);
                refused(others, true)
            }
            Ok(Lent::NotLending) => refused(borrowers, false),
            Err(error) => {
                // Silence: the units may be held. Only a repeat or the reconciler may act on the loan now.
                tracing::warn!(sale = %of.sale, shard = lender.0, %error, buyers = borrowers.len(), "lend failed");
                count("unknown", borrowers.len());
                answer_all(borrowers, || Err(GateError::Unknown));
                Vec::new()
            }
        }
    }
}

impl Shared {
    /// Asks lenders for requests that have written a loan.
    pub(in crate::gate) fn borrow(self: &Rc<Self>, borrowers: impl IntoIterator<Item = Borrower>) {
        let mut lines = self.lenders.borrow_mut();
        for borrower in borrowers {
            let (of, lender) = (borrower.home.of, borrower.lender);
            let line = lines.entry((of.sale, lender)).or_insert_with(|| {
                let asking = Asking { shared: Rc::clone(self), of, lender };
                tokio::task::spawn_local(asking.run());
                VecDeque::new()
            });
            line.push_back(borrower);
        }
    }

    /// Goes on with borrowers of one sale and epoch whom a lender has refused.
    fn move_on(self: &Rc<Self>, refused: Vec<Borrower>) {
        let mut by_home: BTreeMap<Shard, Vec<Borrower>> = BTreeMap::new();
        for borrower in refused {
            by_home.entry(borrower.home.shard).or_default().push(borrower);
        }
        for borrowers in by_home.into_values() {
            tokio::task::spawn_local(Rc::clone(self).move_loans(borrowers));
        }
    }

    /// Moves loans of one home shard that were refused: those that have another lender now ask there, and the others are answered.
    async fn move_loans(self: Rc<Self>, borrowers: Vec<Borrower>) {
        let Some(Home { of, shard: home, epoch, .. }) = borrowers.first().map(|borrower| borrower.home) else { return };
        let now_ms = borrowers.iter().map(|borrower| borrower.home.now_ms).max().unwrap_or_default();
        let now = Instant::now();
        // What is known before the home shard is asked: its 0 is to be the last one.
        let others = self.empty.borrow().others(of, home, now);
        let next: Vec<NextStep> = {
            let empty = self.empty.borrow();
            borrowers.iter().map(|borrower| borrower.next_step(&empty, now)).collect()
        };
        die_at!("loan.refused");
        let asked: Vec<_> = borrowers.iter().map(Borrower::asked).zip(next.iter().map(|step| step.lender)).collect();
        let moved = self.gate.move_loans(&self.connections, of, home, (epoch, now_ms), &asked).await;
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
        for ((borrower, moved), next) in borrowers.into_iter().zip(moved).zip(next) {
            match (moved, next.lender) {
                (Moved::Borrow { number }, Some(lender)) => borrowing.push(Borrower { number, lender, ..borrower }),
                (Moved::Reserved, _) => winners.push(borrower.with(Admission::Reserved { expires_at_ms })),
                (Moved::Empty, _) => {
                    refused += 1;
                    let is_sold_out = all_empty || next.all_refuse;
                    let _ = borrower.reply.send(Ok(if is_sold_out { Admission::SoldOut } else { Admission::UnderWay }));
                }
                (Moved::NotOpen, _) => {
                    refused += 1;
                    let _ = borrower.reply.send(Ok(Admission::UnderWay));
                }
                (Moved::Lost | Moved::Borrow { .. }, _) => {
                    count("unknown", 1);
                    let _ = borrower.reply.send(Ok(Admission::UnderWay));
                }
            }
        }
        count("home", winners.len());
        count("refused", refused);
        self.pass_on(PurchaseGroup::new(of, Hold { epoch, shard: home }), winners);
        self.borrow(borrowing);
    }

    /// Answers repeats that have found an open loan at their home: with a record, if the lender holds the units (rule 15). They take none.
    pub(in crate::gate) async fn look(self: Rc<Self>, repeats: Vec<Borrower>) {
        let mut by_lender: BTreeMap<Shard, Vec<Borrower>> = BTreeMap::new();
        for repeat in repeats {
            by_lender.entry(repeat.lender).or_default().push(repeat);
        }
        join_all(by_lender.into_iter().map(|(lender, repeats)| self.look_at(lender, repeats))).await;
    }

    async fn look_at(&self, lender: Shard, repeats: Vec<Borrower>) {
        let Some(Home { of, epoch, .. }) = repeats.first().map(|repeat| repeat.home) else { return };
        let orders = repeats.iter().map(|repeat| repeat.request.order);
        let found = self.gate.look_at_loans(of, lender, epoch, orders).await;
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(sale = %of.sale, shard = lender.0, %error, buyers = repeats.len(), "loans not looked at");
            None
        });
        let mut found = found.into_iter().flatten();
        let (durable, others): (Vec<_>, Vec<_>) = repeats.into_iter().partition(|_| found.next() == Some(Barred::Held));
        answer_all(others, || Ok(Admission::UnderWay));
        let durable = durable.into_iter().map(|repeat| repeat.with(Admission::Repeat { confirmed: false }));
        self.pass_on(PurchaseGroup::new(of, Hold { epoch, shard: lender }), durable);
    }

    /// Whom each of these buyers asks if the home shard has too few units: nobody who is known to be empty (-1: nobody).
    pub(in crate::gate) fn first_lenders(&self, of: SaleShards, requests: &[ReserveRequest]) -> Vec<i16> {
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
