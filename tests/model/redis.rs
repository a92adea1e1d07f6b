//! The scripts of lua/, each as atomic as it is there.

use super::state::{Epoch, Memory, ORDERS, Order, Phase, Snapshot, Ticket};
use super::variants::Shop;

/// What reserve.lua says to one buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Reserved,
    /// A live ticket; whether its row is known to be committed.
    Repeat {
        confirmed: bool,
    },
    RepeatEnded,
    AtLimit,
    SoldOut,
    TooFew,
}

impl Memory {
    /// reserve.lua, for one buyer of an open sale (rule 2).
    pub fn reserve(&mut self, shop: &Shop, order: Order) -> Admission {
        let units = shop.units(order);
        match self.tickets[order] {
            Ticket::Held => return Admission::Repeat { confirmed: !self.unconfirmed[order] },
            Ticket::Ended => return Admission::RepeatEnded,
            Ticket::None => {}
        }
        let owned =
            shop.units_of(|other| self.tickets[other] == Ticket::Held && shop.buyer(other) == shop.buyer(order));
        if owned + units > shop.per_user {
            return Admission::AtLimit;
        }
        if self.stock == 0 {
            return Admission::SoldOut;
        }
        if self.stock < units {
            return Admission::TooFew;
        }
        self.stock -= units;
        self.tickets[order] = Ticket::Held;
        self.unconfirmed[order] = true;
        self.holders[order] = true;
        Admission::Reserved
    }

    /// The end of reserve.lua: whether the caller may remember "sold out" (rule 13).
    pub fn may_remember(&mut self, shop: &Shop, admission: Admission) -> bool {
        let none_left = self.stock == 0 && self.returning == 0;
        let may = shop.remembers && (none_left || shop.variant.sold_out_for_too_many && admission == Admission::TooFew);
        self.promised |= may;
        may
    }

    /// confirm.lua (rule 5).
    pub fn confirm(&mut self, order: Order) {
        self.unconfirmed[order] = false;
    }

    /// release.lua (rule 9): the epoch under which it was done; `None` when the sale is not served.
    pub fn release(&mut self, shop: &Shop, order: Order, returns: bool) -> Option<Epoch> {
        if self.phase != Phase::Open {
            return None;
        }
        if self.tickets[order] == Ticket::Held {
            self.tickets[order] = if shop.variant.release_without_tombstone { Ticket::None } else { Ticket::Ended };
            self.unconfirmed[order] = false;
            if returns && self.promised && !shop.variant.return_at_once {
                self.returning += shop.units(order);
            } else if returns {
                self.stock += shop.units(order);
            }
        }
        Some(self.epoch)
    }

    /// What release.lua and reserve.lua do once `returning_at_ms` has come.
    pub fn let_return(&mut self) {
        self.promised = false;
        self.stock += std::mem::take(&mut self.returning);
    }

    /// A blind revert, which no script of ours does: the hold is taken back as if it had never been.
    pub fn revert(&mut self, shop: &Shop, order: Order) {
        if self.tickets[order] == Ticket::Held {
            self.tickets[order] = Ticket::None;
            self.unconfirmed[order] = false;
            self.stock += shop.units(order);
        }
    }

    /// begin_refill.lua with "close": stops selling at this epoch, forgets nothing.
    pub fn close(&mut self, epoch: Epoch) {
        if self.phase != Phase::Missing && self.epoch == epoch {
            self.phase = Phase::Filling;
        }
    }

    /// begin_refill.lua: `false` when this epoch or a newer one is here.
    pub fn begin(&mut self, shop: &Shop, epoch: Epoch) -> bool {
        let refused = self.phase != Phase::Missing && self.epoch >= epoch && !shop.variant.refill_without_epoch;
        if !refused {
            *self = Self { epoch, phase: Phase::Filling, ..Self::default() };
        }
        !refused
    }

    /// put_tickets.lua: `false` when another fill has taken over. The same ticket twice counts once.
    pub fn put(&mut self, epoch: Epoch, from: &Snapshot) -> bool {
        let agreed = self.epoch == epoch && self.phase == Phase::Filling;
        for order in (0..ORDERS).filter(|_| agreed) {
            if self.tickets[order] == Ticket::None {
                self.tickets[order] = from.tickets[order];
                self.holders[order] = from.tickets[order] != Ticket::None;
            }
        }
        agreed
    }

    /// open_sale.lua: `false` when another fill has taken over.
    pub fn open(&mut self, epoch: Epoch, from: &Snapshot) -> bool {
        let agreed = self.epoch == epoch && self.phase == Phase::Filling;
        if agreed {
            (self.phase, self.stock) = (Phase::Open, from.left);
        }
        agreed
    }
}
