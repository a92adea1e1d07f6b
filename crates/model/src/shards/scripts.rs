//! The scripts of a sale with shards. Each works on the keys of one shard, and is one step of the model.

use super::Variant;
use super::World;
use super::state::{BUYERS, Epoch, Hold, Loan, Number, ORDERS, Order, Phase, Shard, Snapshot, Status, Ticket, buyer};

/// The answer of the home shard to one buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Held,
    /// The purchase is durable: PostgreSQL has its status.
    Durable,
    /// A hold of its own, not yet confirmed.
    Repeat,
    /// The open loan of a repeat.
    OpenLoan(Loan),
    Ended,
    AtLimit,
    /// Another purchase of the buyer has an open loan.
    UnderWay,
    /// A loan was written.
    Borrow(Loan),
    /// No unit here, and no lender was named.
    Empty,
    /// The loan has changed meanwhile, or the shard does not serve at this epoch.
    Lost,
}

/// A lender's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Held,
    /// A definite no; and whether the shard is known to be empty from now on.
    No {
        is_empty: bool,
    },
}

impl Shard {
    /// The units that count against the limit of a buyer.
    fn owned(&self, world: &World, of: usize) -> usize {
        let counts = |ticket: Ticket| match ticket {
            Ticket::Held | Ticket::Closed { .. } => true,
            Ticket::Open { .. } => world.is(Variant::LoanCountsAsPurchase),
            Ticket::Lent { .. } => world.is(Variant::AnyShardServes),
            Ticket::None | Ticket::Barred { .. } | Ticket::Ended => false,
        };
        (0..ORDERS).filter(|order| buyer(*order) == of && counts(self.tickets[*order])).count()
    }

    pub(crate) fn has_open_loan(&self, of: usize) -> bool {
        (0..ORDERS).any(|order| buyer(order) == of && matches!(self.tickets[order], Ticket::Open { .. }))
    }

    fn take(&mut self, order: Order, ticket: Ticket) {
        self.stock -= 1;
        self.tickets[order] = ticket;
        self.unconfirmed[order] = true;
    }

    fn write_loan(&mut self, order: Order, lender: usize) -> Admission {
        self.number += 1;
        let number = self.number;
        self.tickets[order] = Ticket::Open { lender, number };
        self.unconfirmed[order] = true;
        Admission::Borrow(Loan { order, lender, number, epoch: self.epoch })
    }

    /// reserve.lua at the home shard, which serves.
    pub(crate) fn reserve(&mut self, world: &World, order: Order, lender: Option<usize>) -> Admission {
        match self.tickets[order] {
            Ticket::Held | Ticket::Lent { .. } if self.unconfirmed[order] => return Admission::Repeat,
            Ticket::Held | Ticket::Lent { .. } | Ticket::Closed { .. } => return Admission::Durable,
            Ticket::Open { lender, number } => {
                return Admission::OpenLoan(Loan { order, lender, number, epoch: self.epoch });
            }
            Ticket::Ended => return Admission::Ended,
            Ticket::None | Ticket::Barred { .. } => {}
        }
        if self.owned(world, buyer(order)) > 0 {
            return Admission::AtLimit;
        }
        if self.has_open_loan(buyer(order)) && !world.is(Variant::LoanNotCounted) {
            return Admission::UnderWay;
        }
        if self.stock > 0 {
            self.take(order, Ticket::Held);
            self.holders[buyer(order)] = true;
            return Admission::Held;
        }
        match lender.filter(|_| !world.is(Variant::SoldOutAtHome)) {
            Some(lender) if world.is(Variant::HoldBeforeLoan) => {
                Admission::Borrow(Loan { order, lender, number: 0, epoch: self.epoch })
            }
            Some(lender) => self.write_loan(order, lender),
            None => Admission::Empty,
        }
    }

    /// Whether this is still the caller's loan.
    fn has_loan(&self, loan: &Loan, any_number: bool) -> bool {
        let open = match self.tickets[loan.order] {
            Ticket::Open { number, .. } => any_number || number == loan.number,
            _ => false,
        };
        open && self.phase == Phase::Open && self.epoch == loan.epoch
    }

    /// move_loan.lua at the home shard.
    pub(crate) fn move_loan(&mut self, world: &World, loan: &Loan, lender: Option<usize>) -> Admission {
        let order = loan.order;
        if !self.has_loan(loan, world.is(Variant::MovesAnyNumber)) {
            return Admission::Lost;
        }
        if self.stock > 0 {
            self.take(order, Ticket::Held);
            self.holders[buyer(order)] = true;
            return Admission::Held;
        }
        if let Some(lender) = lender {
            return self.write_loan(order, lender);
        }
        (self.tickets[order], self.unconfirmed[order]) = (Ticket::None, false);
        Admission::Empty
    }

    /// lend.lua at the lender.
    pub(crate) fn lend(&mut self, world: &World, loan: &Loan) -> Answer {
        let same_epoch = self.epoch == loan.epoch || world.is(Variant::LendsAtAnyEpoch);
        if self.phase != Phase::Open || !same_epoch {
            return Answer::No { is_empty: self.phase != Phase::Open && world.is(Variant::AwayCountsAsEmpty) };
        }
        match self.tickets[loan.order] {
            Ticket::Lent { number } if number == loan.number => return Answer::Held,
            Ticket::Barred { number } if number < loan.number => {}
            Ticket::None => {}
            _ => return Answer::No { is_empty: false },
        }
        if self.stock > 0 {
            self.take(loan.order, Ticket::Lent { number: loan.number });
            return Answer::Held;
        }
        self.granted |= world.knows_empty;
        Answer::No { is_empty: world.knows_empty }
    }

    /// bar_loan.lua at the lender: whether it holds units; `None` if it does not serve at this epoch, or the order has ended.
    pub(crate) fn bar(&mut self, world: &World, loan: &Loan) -> Option<bool> {
        if self.phase != Phase::Open || self.epoch != loan.epoch {
            return None;
        }
        match self.tickets[loan.order] {
            Ticket::Lent { .. } => return Some(true),
            Ticket::Barred { number } if number >= loan.number => {}
            Ticket::None | Ticket::Barred { .. } if !world.is(Variant::TakenBackUnbarred) => {
                self.tickets[loan.order] = Ticket::Barred { number: loan.number };
            }
            Ticket::None | Ticket::Barred { .. } => {}
            _ => return None,
        }
        Some(false)
    }

    /// take_back_loan.lua at the home shard.
    pub(crate) fn take_back(&mut self, world: &World, loan: &Loan) {
        if self.has_loan(loan, world.is(Variant::TakesBackAnyNumber)) {
            (self.tickets[loan.order], self.unconfirmed[loan.order]) = (Ticket::None, false);
        }
    }

    /// close_loan.lua at the home shard: its purchase is durable.
    pub(crate) fn close_loan(&mut self, order: Order) {
        if let Ticket::Open { lender, .. } = self.tickets[order] {
            (self.tickets[order], self.unconfirmed[order]) = (Ticket::Closed { lender }, false);
            self.holders[buyer(order)] = true;
        }
    }

    /// Checks whether a unit is held under an order id; takes none.
    pub(crate) fn look(&self, loan: &Loan) -> Option<Hold> {
        let Loan { order, lender, epoch, .. } = *loan;
        let is_lent = matches!(self.tickets[order], Ticket::Lent { .. });
        (self.phase == Phase::Open && self.epoch == epoch && is_lent).then_some(Hold { order, shard: lender, epoch })
    }

    /// release.lua at the shard that holds the units. `None` if it does not serve.
    pub(crate) fn release_hold(&mut self, world: &World, order: Order) -> Option<Epoch> {
        let serves = self.phase == Phase::Open;
        if serves && self.tickets[order].is_hold() {
            (self.tickets[order], self.unconfirmed[order]) = (Ticket::Ended, false);
            if self.granted && !world.is(Variant::KnownEmptyAndSells) {
                self.aside += 1;
            } else {
                self.stock += 1;
            }
        }
        serves.then_some(self.epoch)
    }

    /// release.lua at the home shard of a borrower.
    pub(crate) fn release_loan(&mut self, world: &World, order: Order) -> Option<Epoch> {
        let serves = self.phase == Phase::Open;
        if serves && matches!(self.tickets[order], Ticket::Open { .. } | Ticket::Closed { .. }) {
            (self.tickets[order], self.unconfirmed[order]) = (Ticket::Ended, false);
            self.holders[buyer(order)] |= !world.is(Variant::ReleaseForgetsTheHolder);
        }
        serves.then_some(self.epoch)
    }

    /// The buyers that must not get "sold out" from memory: holders, and buyers with an open loan.
    pub(crate) fn listed(&self, world: &World) -> [bool; BUYERS] {
        let borrows = |of| self.has_open_loan(of) && !world.is(Variant::MemoryWithoutLoans);
        std::array::from_fn(|of| self.holders[of] || borrows(of))
    }

    /// begin_refill.lua with "close".
    pub(crate) fn stop(&mut self, epoch: Epoch) {
        if self.phase == Phase::Open && self.epoch == epoch {
            self.phase = Phase::Filling;
        }
    }

    /// begin_refill.lua and put_tickets.lua: a refill writes its snapshot at shard `k`.
    pub(crate) fn fill(&mut self, world: &World, from: &Snapshot, k: usize) {
        *self = Self { epoch: from.epoch, phase: Phase::Filling, stock: from.shares[k], ..Self::default() };
        for order in 0..ORDERS {
            let home = world.home(order);
            let ticket = match from.orders[order] {
                Status::Live(shard) if shard == k && home == k => Ticket::Held,
                Status::Live(shard) if shard == k && !world.is(Variant::RefillForgetsLentHolds) => {
                    Ticket::Lent { number: Number::MIN }
                }
                Status::Live(lender) if home == k && !world.is(Variant::RefillForgetsHomes) => {
                    Ticket::Closed { lender }
                }
                Status::Ended(shard) if shard == k || home == k => Ticket::Ended,
                Status::None | Status::Live(_) | Status::Ended(_) => Ticket::None,
            };
            self.tickets[order] = ticket;
            self.holders[buyer(order)] |= home == k && ticket != Ticket::None;
        }
    }
}
