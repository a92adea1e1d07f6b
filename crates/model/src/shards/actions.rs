//! The actions of the model of shards, and their conditions.

use super::state::{
    Loan, ORDERS, Order, Reconciler, Refill, Release, Releaser, SHARDS, State, Status, Step, THREADS, Ticket,
};
use super::{Variant, World};

/// The first number of an action of a request is its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    // ---- a request
    /// reserve.lua at this shard, with the lender to ask if the shard is empty.
    Reserve(usize, Order, usize, Option<usize>),
    /// Rule 13: "sold out" from memory.
    AnswerSoldOut(usize, Order),
    /// lend.lua.
    Ask(usize),
    /// The sender has given up. The question may arrive later.
    LoseAnswer(usize),
    /// A late question arrives.
    AskLate,
    /// A late question never arrives.
    DropLate,
    /// move_loan.lua, with the next lender.
    Move(usize, Option<usize>),
    /// The next step of a request that has a loan or a hold: `World::go_on_with`.
    GoOn(usize),

    // ---- the workers
    /// Rule 12: the reconciler reads an entry of a shard's unconfirmed list.
    Find(usize, Order),
    /// The next step of the reconciler: `World::reconcile`.
    Reconcile,
    /// Rules 7 and 8: an order ends.
    Cancel(Order),
    /// Rule 9: release.lua at the shard of the record.
    Release(Order),
    /// The same, at an old master of that shard.
    ReleaseAtOldMaster(Order),
    /// release.lua at the home shard of a borrower.
    ReleaseLoan,
    /// The release row is done, if the epoch is still current.
    SettleRelease,

    /// Rule 11: the next step of a refill.
    Refill,

    // ---- time
    /// A thread's knowledge that a shard is empty expires.
    Forget(usize, usize),
    /// Returned units are for sale again: no thread considers the shard empty any more.
    ReturnUnits(usize),

    // ---- faults
    KillThread(usize),
    KillReconciler,
    KillReleaser,
    KillRefill,
    /// A server forgets a shard.
    Lose(usize),
}

impl World {
    /// Adds the actions of the system itself. They happen sooner or later.
    pub(crate) fn system_actions(&self, s: &State, out: &mut Vec<Action>) {
        for (t, thread) in s.threads.iter().enumerate() {
            match thread.step {
                Step::Idle => {}
                Step::Borrowing(..) => out.push(Action::Ask(t)),
                Step::Refused(loan, refused) => {
                    let home = self.home(loan.order);
                    let next = self.lenders(s, t, home).filter(|lender| !refused[*lender]).map(Some);
                    let before = out.len();
                    out.extend(next.map(|lender| Action::Move(t, lender)));
                    if out.len() == before {
                        out.push(Action::Move(t, None));
                    }
                }
                Step::LentFirst(_) | Step::Looking(_) | Step::Held(_) | Step::Answered(_) | Step::Confirmed(_) => {
                    out.push(Action::GoOn(t));
                }
            }
            let known = (0..SHARDS).filter(|shard| thread.empty[*shard].is_some());
            out.extend(known.map(|shard| Action::Forget(t, shard)));
        }
        if s.late.is_some() {
            out.extend([Action::AskLate, Action::DropLate]);
        }
        if s.reconciler == Reconciler::Idle {
            self.finds(s, out);
        } else {
            out.push(Action::Reconcile);
        }
        match s.releaser {
            Releaser::Idle => {
                for order in (0..ORDERS).filter(|order| s.ledger.releases[*order] == Release::Pending) {
                    let Status::Ended(shard) = s.ledger.orders[order] else { continue };
                    if s.serves(shard) && s.serves(self.home(order)) {
                        out.push(Action::Release(order));
                    }
                    if s.old_masters[shard].is_some() && s.serves(self.home(order)) {
                        out.push(Action::ReleaseAtOldMaster(order));
                    }
                }
            }
            Releaser::AtHome(..) => out.push(Action::ReleaseLoan),
            Releaser::Answered(..) => out.push(Action::SettleRelease),
        }
        match s.refill {
            Refill::Idle if s.is_whole(self.shards) || s.ledger.epoch == self.max_epoch => {}
            Refill::Opening(_, 0) if !self.may_open(s) => {}
            Refill::Idle | Refill::Stopping(_) | Refill::Filling(..) | Refill::Opening(..) => out.push(Action::Refill),
        }
        let known = |shard: usize| s.threads.iter().any(|thread| thread.empty[shard].is_some());
        let lapsed = (0..self.shards).filter(|shard| s.shards[*shard].granted && !known(*shard));
        out.extend(lapsed.map(Action::ReturnUnits));
    }

    /// Adds the entries of unconfirmed lists that the reconciler may read.
    fn finds(&self, s: &State, out: &mut Vec<Action>) {
        for shard in (0..self.shards).filter(|shard| s.serves(*shard)) {
            let listed = (0..ORDERS).filter(|order| s.shards[shard].unconfirmed[*order]);
            let is_loan = |order: &Order| matches!(s.shards[shard].tickets[*order], Ticket::Open { .. });
            let left_alone = |order: &Order| {
                is_loan(order)
                    && (self.is(Variant::NoLoanReconciler) || self.is(Variant::LoansLeftOpen) && s.has_record(*order))
            };
            out.extend(listed.filter(|o| !left_alone(o)).map(|order| Action::Find(shard, order)));
        }
    }

    /// Adds requests of buyers, and faults, within the budget.
    pub(crate) fn outside_actions(&self, s: &State, out: &mut Vec<Action>) {
        for t in 0..THREADS {
            for order in (0..ORDERS).filter(|order| s.budget.requests[*order] > 0) {
                if self.remembers_sold_out(s, t, order) {
                    out.push(Action::AnswerSoldOut(t, order));
                } else if s.threads[t].step == Step::Idle {
                    self.requests(s, t, order, out);
                }
            }
            if s.budget.silences > 0 && s.late.is_none() && matches!(s.threads[t].step, Step::Borrowing(..)) {
                out.push(Action::LoseAnswer(t));
            }
            if s.budget.deaths > 0 && s.threads[t].step != Step::Idle {
                out.push(Action::KillThread(t));
            }
        }
        if s.budget.deaths > 0 {
            if s.reconciler != Reconciler::Idle {
                out.push(Action::KillReconciler);
            }
            if s.releaser != Releaser::Idle {
                out.push(Action::KillReleaser);
            }
            // The last refill survives: the sale is whole in the end.
            if s.refill != Refill::Idle && s.ledger.epoch < self.max_epoch {
                out.push(Action::KillRefill);
            }
        }
        if s.budget.losses > 0 && s.ledger.epoch < self.max_epoch {
            out.extend((0..self.shards).filter(|shard| s.serves(*shard)).map(Action::Lose));
        }
        if s.budget.cancels > 0 {
            out.extend((0..ORDERS).filter(|order| s.ledger.is_live(*order)).map(Action::Cancel));
        }
    }

    fn requests(&self, s: &State, t: usize, order: Order, out: &mut Vec<Action>) {
        let any = self.is(Variant::AnyShardServes);
        for home in (0..self.shards).filter(|shard| (any || *shard == self.home(order)) && s.serves(*shard)) {
            let before = out.len();
            out.extend(self.lenders(s, t, home).map(|lender| Action::Reserve(t, order, home, Some(lender))));
            if out.len() == before {
                out.push(Action::Reserve(t, order, home, None));
            }
        }
    }

    /// The shards that a thread does not know to be empty, except the home shard. The model tries every order.
    fn lenders(&self, s: &State, t: usize, home: usize) -> impl Iterator<Item = usize> + use<> {
        let known = s.threads[t].empty;
        (0..self.shards).filter(move |shard| *shard != home && known[*shard].is_none())
    }

    fn remembers_sold_out(&self, s: &State, t: usize, order: Order) -> bool {
        let (thread, home) = (&s.threads[t], self.home(order));
        let listed = thread.sold_out[home].is_none_or(|listed| listed[super::state::buyer(order)]);
        !listed && (0..self.shards).all(|shard| thread.empty[shard].is_some())
    }

    /// Rule 13: no thread remembers "sold out" of the epoch before.
    fn may_open(&self, s: &State) -> bool {
        let remembers = |of: &Option<_>| of.is_some();
        self.is(Variant::OpensWhileRemembered) || !s.threads.iter().any(|thread| thread.sold_out.iter().any(remembers))
    }

    /// The open loan of an order. Its epoch is always that of its home shard.
    pub(crate) fn loan_of(&self, s: &State, shard: usize, order: Order) -> Option<Loan> {
        let Ticket::Open { lender, number } = s.shards[shard].tickets[order] else { return None };
        Some(Loan { order, lender, number, epoch: s.shards[shard].epoch })
    }
}
