//! The effect of each action of the model of shards.

use super::actions::Action;
use super::scripts::{Admission, Answer};
use super::state::{
    BUYERS, Epoch, Hold, Loan, ORDERS, Order, Phase, Reconciler, Refill, Refused, Release, Releaser, SHARDS, Shard,
    Snapshot, State, Status, Step, Ticket, buyer,
};
use super::{Variant, World};

impl World {
    pub(crate) fn apply(&self, s: &mut State, action: Action) {
        match action {
            Action::Reserve(t, order, home, lender) => self.reserve(s, t, order, home, lender),
            Action::AnswerSoldOut(_, order) => {
                s.budget.requests[order] -= 1;
                self.say_sold_out(s, order, false);
            }
            Action::Ask(t) => self.ask(s, t),
            Action::LoseAnswer(t) => {
                let Step::Borrowing(loan, refused) = s.threads[t].step else { return };
                s.budget.silences -= 1;
                s.late = Some(loan);
                s.threads[t].step =
                    if self.is(Variant::GoesOnAfterSilence) { refused_by(loan, refused) } else { Step::Idle };
            }
            Action::AskLate => {
                if let Some(loan) = s.late.take() {
                    s.shards[loan.lender].lend(self, &loan);
                }
            }
            Action::DropLate => s.late = None,
            Action::Move(t, lender) => {
                let Step::Refused(loan, refused) = s.threads[t].step else { return };
                let home = self.home(loan.order);
                let admission = s.shards[home].move_loan(self, &loan, lender);
                self.go_on(s, t, loan.order, home, admission, refused);
            }
            Action::GoOn(t) => s.threads[t].step = self.go_on_with(s, s.threads[t].step),

            Action::Find(shard, order) => {
                let epoch = s.shards[shard].epoch;
                s.reconciler = match self.loan_of(s, shard, order) {
                    Some(loan) => Reconciler::FoundLoan(loan),
                    None => Reconciler::FoundHold(Hold { order, shard, epoch }),
                };
            }
            Action::Reconcile => s.reconciler = self.reconcile(s, s.reconciler),
            Action::Cancel(order) => {
                s.budget.cancels -= 1;
                if let Status::Live(shard) = s.ledger.orders[order] {
                    (s.ledger.orders[order], s.ledger.releases[order]) = (Status::Ended(shard), Release::Pending);
                }
            }
            Action::Release(order) => self.release(s, order),
            Action::ReleaseAtOldMaster(order) => {
                if let Status::Ended(shard) = s.ledger.orders[order]
                    && let Some(epoch) = s.old_masters[shard]
                {
                    let is_own = shard == self.home(order);
                    s.releaser =
                        if is_own { Releaser::Answered(order, epoch, epoch) } else { Releaser::AtHome(order, epoch) };
                }
            }
            Action::ReleaseLoan => {
                let Releaser::AtHome(order, first) = s.releaser else { return };
                let second = s.shards[self.home(order)].release_loan(self, order);
                let answered = |second: Epoch| Releaser::Answered(order, first.min(second), first.max(second));
                s.releaser = second.map_or(Releaser::Idle, answered);
            }
            Action::SettleRelease => {
                let Releaser::Answered(order, lowest, highest) = s.releaser else { return };
                let counts = if self.is(Variant::ReleasedAtAnyEpoch) { highest } else { lowest };
                if counts == s.ledger.epoch {
                    s.ledger.releases[order] = Release::Done;
                }
                s.releaser = Releaser::Idle;
            }

            Action::Refill => s.refill = self.refill(s),

            Action::Forget(t, shard) => {
                let thread = &mut s.threads[t];
                thread.empty[shard] = None;
                if self.is(Variant::HomeRemembersFirst) {
                    thread.sold_out[shard] = None;
                } else {
                    thread.sold_out = [None; SHARDS];
                }
            }
            Action::ReturnUnits(shard) => {
                let shard = &mut s.shards[shard];
                shard.granted = false;
                shard.stock += std::mem::take(&mut shard.aside);
            }

            Action::KillThread(t) => {
                s.budget.deaths -= 1;
                s.threads[t] = super::state::Thread::default();
            }
            Action::KillReconciler => {
                s.budget.deaths -= 1;
                s.reconciler = Reconciler::Idle;
            }
            Action::KillReleaser => {
                s.budget.deaths -= 1;
                s.releaser = Releaser::Idle;
            }
            Action::KillRefill => {
                s.budget.deaths -= 1;
                s.refill = Refill::Idle;
            }
            Action::Lose(shard) => {
                s.budget.losses -= 1;
                if s.budget.splits > 0 {
                    s.budget.splits -= 1;
                    s.old_masters[shard] = Some(s.shards[shard].epoch);
                }
                // The former stock is remembered only for the property.
                s.shards[shard] = Shard { stock: s.shards[shard].stock, ..Shard::default() };
            }
        }
    }

    /// Takes the next step of a request with a loan or a hold, and returns the step after it.
    fn go_on_with(&self, s: &mut State, step: Step) -> Step {
        match step {
            Step::LentFirst(hold) => {
                let home = &mut s.shards[self.home(hold.order)];
                let free = home.tickets[hold.order] == Ticket::None && home.epoch == hold.epoch;
                if free {
                    home.tickets[hold.order] = Ticket::Open { lender: hold.shard, number: 0 };
                }
                if free { Step::Held(hold) } else { Step::Idle }
            }
            Step::Looking(loan) => s.shards[loan.lender].look(&loan).map_or(Step::Idle, Step::Held),
            // Rule 3: the record is inserted and the 202 is sent; or it is refused because of the epoch.
            Step::Held(hold) => {
                let durable = self.insert(s, hold);
                s.accepted[hold.order] |= durable;
                if durable { Step::Answered(hold) } else { Step::Idle }
            }
            // Rule 5.
            Step::Answered(hold) => {
                if self.confirm(s, hold) {
                    Step::Idle
                } else {
                    Step::Confirmed(hold.order)
                }
            }
            Step::Confirmed(order) => {
                s.shards[self.home(order)].close_loan(order);
                Step::Idle
            }
            Step::Idle | Step::Borrowing(..) | Step::Refused(..) => step,
        }
    }

    /// Rule 12: takes the next step of the reconciler, and returns the step after it.
    fn reconcile(&self, s: &mut State, step: Reconciler) -> Reconciler {
        match step {
            Reconciler::FoundHold(hold) if self.insert(s, hold) => Reconciler::Durable(hold),
            Reconciler::FoundLoan(loan) if s.has_record(loan.order) => Reconciler::ToClose(loan.order),
            Reconciler::FoundLoan(loan) => match s.shards[loan.lender].bar(self, &loan) {
                Some(true) => Reconciler::FoundHold(Hold { order: loan.order, shard: loan.lender, epoch: loan.epoch }),
                Some(false) => Reconciler::Barred(loan),
                None => Reconciler::Idle,
            },
            Reconciler::Durable(hold) if !self.confirm(s, hold) => Reconciler::ToClose(hold.order),
            Reconciler::Barred(loan) => {
                s.shards[self.home(loan.order)].take_back(self, &loan);
                Reconciler::Idle
            }
            Reconciler::ToClose(order) => {
                s.shards[self.home(order)].close_loan(order);
                Reconciler::Idle
            }
            Reconciler::Idle | Reconciler::FoundHold(_) | Reconciler::Durable(_) => Reconciler::Idle,
        }
    }

    /// Confirms a hold at its shard. Returns whether that is the buyer's home: then there is no loan to close.
    fn confirm(&self, s: &mut State, hold: Hold) -> bool {
        s.shards[hold.shard].unconfirmed[hold.order] = false;
        hold.shard == self.home(hold.order)
    }

    fn insert(&self, s: &mut State, hold: Hold) -> bool {
        let named = if self.is(Variant::RecordNamesHome) { self.home(hold.order) } else { hold.shard };
        s.ledger.insert(Hold { shard: named, ..hold })
    }

    fn reserve(&self, s: &mut State, t: usize, order: Order, home: usize, lender: Option<usize>) {
        s.budget.requests[order] -= 1;
        let admission = s.shards[home].reserve(self, order, lender);
        self.go_on(s, t, order, home, admission, [false; SHARDS]);
        self.remember(s, t, home);
    }

    /// The next step of a request after an answer of its home shard.
    fn go_on(&self, s: &mut State, t: usize, order: Order, home: usize, admission: Admission, refused: Refused) {
        let epoch = s.shards[home].epoch;
        self.learn_epoch(s, t, epoch);
        let mut step = Step::Idle;
        match admission {
            Admission::Held => {
                s.violations.sold_twice |= s.has_record(order);
                step = Step::Held(Hold { order, shard: home, epoch });
            }
            Admission::Repeat => step = Step::Held(Hold { order, shard: home, epoch }),
            Admission::Durable => s.accepted[order] |= s.has_record(order),
            Admission::OpenLoan(loan) if self.is(Variant::RepeatTakes) => step = Step::Borrowing(loan, refused),
            Admission::OpenLoan(loan) if self.is(Variant::RepeatBelievesTheLoan) => {
                step = Step::Held(Hold { order, shard: loan.lender, epoch });
            }
            Admission::OpenLoan(loan) => step = Step::Looking(loan),
            Admission::Borrow(loan) => step = Step::Borrowing(loan, refused),
            Admission::AtLimit => {
                let of_buyer = |other: &Order| buyer(*other) == buyer(order);
                let nothing = (0..ORDERS).filter(of_buyer).all(|other| !s.has_record(other) && !s.is_held(other));
                s.violations.at_limit_with_nothing |= nothing;
            }
            Admission::Empty if self.is_sold_out(s, t, home, &refused) => self.say_sold_out(s, order, true),
            Admission::Ended | Admission::UnderWay | Admission::Empty | Admission::Lost => {}
        }
        s.threads[t].step = step;
    }

    fn is_sold_out(&self, s: &State, t: usize, home: usize, refused: &Refused) -> bool {
        let epoch = s.shards[home].epoch;
        let is_empty = |shard: usize| {
            if self.is(Variant::ZerosOfDifferentMoments) {
                return refused[shard];
            }
            s.threads[t].empty[shard].is_some_and(|of| of == epoch || self.is(Variant::ZerosOfTwoEpochs))
        };
        self.is(Variant::SoldOutAtHome) || (0..self.shards).all(|shard| shard == home || is_empty(shard))
    }

    /// A buyer gets "sold out", from Redis or from memory.
    fn say_sold_out(&self, s: &mut State, order: Order, asked: bool) {
        let sells = |shard: &Shard| (asked || shard.phase == Phase::Open) && shard.stock > 0;
        let of_buyer = |other: &Order| buyer(*other) == buyer(order);
        let has_units = |other: Order| s.ledger.is_live(other) || s.is_held(other);
        let is_holder = s.has_record(order) || (0..ORDERS).filter(of_buyer).any(has_units);
        s.violations.sold_out_with_units |= s.shards.iter().any(sells);
        s.violations.sold_out_to_holder |= is_holder;
        s.shown_sold_out = true;
    }

    /// The end of reserve.lua: whether the thread may remember "sold out" for buyers of this home shard.
    fn remember(&self, s: &mut State, t: usize, home: usize) {
        let all_known = self.is(Variant::HomeRemembersFirst) || self.is_sold_out(s, t, home, &[false; SHARDS]);
        let shard = &mut s.shards[home];
        if self.knows_empty && all_known && shard.stock == 0 && shard.aside == 0 {
            shard.granted = true;
            let listed: [bool; BUYERS] = shard.listed(self);
            (s.threads[t].empty[home], s.threads[t].sold_out[home]) = (Some(shard.epoch), Some(listed));
        }
    }

    /// A thread's knowledge under an older epoch ends with that epoch.
    fn learn_epoch(&self, s: &mut State, t: usize, epoch: Epoch) {
        let thread = &mut s.threads[t];
        if !self.is(Variant::ZerosOfTwoEpochs) && thread.empty.iter().flatten().any(|of| *of < epoch) {
            (thread.empty, thread.sold_out) = ([None; SHARDS], [None; SHARDS]);
        }
    }

    fn ask(&self, s: &mut State, t: usize) {
        let Step::Borrowing(loan, refused) = s.threads[t].step else { return };
        let Loan { order, lender, epoch, .. } = loan;
        let answer = s.shards[lender].lend(self, &loan);
        if s.serves(lender) {
            let newest = s.shards[lender].epoch;
            self.learn_epoch(s, t, newest);
        }
        s.threads[t].step = match answer {
            Answer::Held if self.is(Variant::HoldBeforeLoan) => Step::LentFirst(Hold { order, shard: lender, epoch }),
            Answer::Held => Step::Held(Hold { order, shard: lender, epoch }),
            Answer::No { is_empty } => {
                if is_empty {
                    s.threads[t].empty[lender] = Some(epoch);
                }
                if self.is(Variant::HoldBeforeLoan) { Step::Idle } else { refused_by(loan, refused) }
            }
        };
    }

    fn release(&self, s: &mut State, order: Order) {
        let Status::Ended(shard) = s.ledger.orders[order] else { return };
        let home = self.home(order);
        if shard != home && self.is(Variant::ReleasedAtHomeAlone) {
            let epoch = s.shards[home].release_loan(self, order);
            s.releaser = epoch.map_or(Releaser::Idle, |epoch| Releaser::Answered(order, epoch, epoch));
            return;
        }
        let Some(epoch) = s.shards[shard].release_hold(self, order) else { return };
        let is_done = shard == home || self.is(Variant::ReleasedAtLenderAlone);
        s.releaser = if is_done { Releaser::Answered(order, epoch, epoch) } else { Releaser::AtHome(order, epoch) };
    }

    /// Takes the next step of a refill, and returns the refill's new step.
    fn refill(&self, s: &mut State) -> Refill {
        match s.refill {
            Refill::Idle if self.is(Variant::RefillsOneShard) => {
                let only = (0..self.shards).find(|shard| !s.serves(*shard));
                let mut from = self.snapshot(s, s.ledger.epoch);
                if let Some(only) = only {
                    let others: u8 = (0..self.shards).filter(|k| *k != only).map(|k| s.shards[k].stock).sum();
                    let left: u8 = from.shares.iter().sum();
                    from.shares[only] = left.saturating_sub(others);
                }
                from.only = only;
                Refill::Filling(from, 0)
            }
            Refill::Idle | Refill::Stopping(0) => {
                s.shards[0].stop(s.ledger.epoch);
                Refill::Stopping(1)
            }
            Refill::Stopping(k) if k < self.shards => {
                s.shards[k].stop(s.ledger.epoch);
                Refill::Stopping(k + 1)
            }
            Refill::Stopping(_) => {
                s.ledger.epoch += 1;
                Refill::Filling(self.snapshot(s, s.ledger.epoch), 0)
            }
            Refill::Filling(from, k) => {
                if from.only.is_none_or(|only| only == k) {
                    s.shards[k].fill(self, &from, k);
                }
                if k + 1 < self.shards { Refill::Filling(from, k + 1) } else { Refill::Opening(from, 0) }
            }
            Refill::Opening(from, k) => {
                let shard = &mut s.shards[k];
                if from.only.is_none_or(|only| only == k) {
                    // A server that has forgotten the refill's data refuses; the next refill starts from the beginning.
                    if (shard.phase, shard.epoch) != (Phase::Filling, from.epoch) {
                        return Refill::Idle;
                    }
                    shard.phase = Phase::Open;
                }
                if k + 1 < self.shards { Refill::Opening(from, k + 1) } else { Refill::Idle }
            }
        }
    }

    fn snapshot(&self, s: &State, epoch: Epoch) -> Snapshot {
        let left = self.total() - s.ledger.live();
        let shares = std::array::from_fn(|k| match u8::try_from(self.shards) {
            Ok(_) if self.is(Variant::WholeStockToEach) && k < self.shards => left,
            Ok(n) if k < self.shards => left / n + u8::from(k < usize::from(left % n)),
            _ => 0,
        });
        Snapshot { epoch, shares, orders: s.ledger.orders, only: None }
    }
}

fn refused_by(loan: Loan, mut refused: Refused) -> Step {
    refused[loan.lender] = true;
    Step::Refused(loan, refused)
}
