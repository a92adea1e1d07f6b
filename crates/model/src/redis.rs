//! The scripts of lua. Each is one step of the model, because Redis makes it atomic.

use super::orders::{ORDERS, Order};
use super::state::{Epoch, Phase, SaleKeys, Server, Snapshot, Stamp, Ticket};
use super::variants::{Variant, World};

/// The reply of reserve.lua to one buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Reserved,
    /// A live ticket. Confirmed: its group is known to be committed.
    Repeat {
        confirmed: bool,
    },
    RepeatEnded,
    AtLimit,
    Lapsed,
    SoldOutCache,
    TooFew,
}

impl SaleKeys {
    /// reserve.lua, for one buyer of an open sale (rule 2).
    pub(crate) fn reserve(&mut self, world: &World, order: Order) -> Admission {
        let units = world.units(order);
        match self.tickets[order] {
            Ticket::Held => return Admission::Repeat { confirmed: !self.unconfirmed[order] },
            Ticket::Ended => return Admission::RepeatEnded,
            Ticket::None => {}
        }
        let owned =
            world.units_of(|other| self.tickets[other] == Ticket::Held && world.buyer(other) == world.buyer(order));
        if owned + units > world.per_user {
            return Admission::AtLimit;
        }
        let lapses =
            (0..ORDERS).filter(|other| self.lapsed[*other] && world.buyer(*other) == world.buyer(order)).count();
        if lapses >= world.lapses_max {
            return Admission::Lapsed;
        }
        if self.stock == 0 {
            return Admission::SoldOutCache;
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
    pub(crate) fn may_remember(&mut self, world: &World, admission: Admission) -> bool {
        let none_left = self.stock == 0 && self.returning == 0;
        let may = world.caches_sold_out
            && (none_left || world.is(Variant::SoldOutForTooMany) && admission == Admission::TooFew);
        self.sold_out_granted |= may;
        may
    }

    /// confirm.lua (rule 5).
    pub(crate) fn confirm(&mut self, order: Order) {
        self.unconfirmed[order] = false;
    }

    /// release.lua of an open sale (rule 9). Returns the epoch of the release.
    pub(crate) fn release(&mut self, world: &World, order: Order, returns: bool) -> Epoch {
        if self.tickets[order] == Ticket::Held {
            self.tickets[order] = if world.is(Variant::ReleaseWithoutTombstone) { Ticket::None } else { Ticket::Ended };
            self.unconfirmed[order] = false;
            if returns && self.sold_out_granted && !world.is(Variant::ReturnAtOnce) {
                self.returning += world.units(order);
            } else if returns {
                self.stock += world.units(order);
            }
        }
        self.epoch
    }

    /// The effect of release.lua and reserve.lua after `returning_at_ms`: units that were held back are for sale again.
    pub(crate) fn return_units(&mut self) {
        self.sold_out_granted = false;
        self.stock += std::mem::take(&mut self.returning);
    }

    /// A blind revert, which none of our scripts does: removes the hold as if it had never existed.
    pub(crate) fn revert(&mut self, world: &World, order: Order) {
        if self.tickets[order] == Ticket::Held {
            self.tickets[order] = Ticket::None;
            self.unconfirmed[order] = false;
            self.stock += world.units(order);
        }
    }

    /// begin_refill.lua with "close": stops sales at this epoch and keeps everything.
    pub(crate) fn close(&mut self, epoch: Epoch) {
        if self.phase != Phase::Missing && self.epoch == epoch {
            self.phase = Phase::Filling;
        }
    }

    /// begin_refill.lua: `false` if the server has this epoch already, or a newer one.
    pub(crate) fn begin(&mut self, world: &World, epoch: Epoch, stamp: Stamp) -> bool {
        let refused = self.phase != Phase::Missing && self.epoch >= epoch && !world.is(Variant::RefillWithoutEpoch);
        if !refused {
            *self = Self { epoch, phase: Phase::Filling, stamp, ..Self::default() };
        }
        !refused
    }

    /// put_tickets.lua: `false` if another refill has taken over. A repeated ticket counts once.
    pub(crate) fn put(&mut self, epoch: Epoch, from: &Snapshot) -> bool {
        let agreed = self.epoch == epoch && self.phase == Phase::Filling && !self.is_key_lost;
        for order in (0..ORDERS).filter(|_| agreed) {
            if self.tickets[order] == Ticket::None {
                self.tickets[order] = from.tickets[order];
                self.holders[order] = from.tickets[order] != Ticket::None;
            }
        }
        agreed
    }
}

impl Server {
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { replid: self.replid, run: self.run, read: self.read }
    }

    /// sale_begin.lua: whether this server has everything written since the sale's refill began here (rule 10).
    fn has_same_memory(&self, world: &World) -> bool {
        let (begun, now) = (self.now.stamp, self.stamp());
        let same = world.is(Variant::IdUnchecked)
            || begun.replid == now.replid
            || !self.second && (world.is(Variant::MemoryUnchecked) || (begun.run, begun.read) == (now.run, now.read));
        same && !self.now.is_key_lost
    }

    /// Whether the scripts of an open sale do anything.
    pub(crate) fn serves(&self, world: &World) -> bool {
        self.now.phase == Phase::Open && self.has_same_memory(world)
    }

    /// open_sale.lua: `false` if another refill has taken over, or the server has lost the tickets.
    pub(crate) fn open(&mut self, world: &World, epoch: Epoch, from: &Snapshot) -> bool {
        let whole = world.is(Variant::OpensWhatWasLost) || self.has_same_memory(world);
        let agreed = self.now.epoch == epoch && self.now.phase == Phase::Filling && whole;
        if agreed {
            let stamp = self.stamp();
            (self.now.phase, self.now.stock, self.now.stamp) = (Phase::Open, from.units_left, stamp);
            self.now.returning = 0;
        }
        agreed
    }

    /// The same, and the update that the script makes when only the id has changed.
    pub(crate) fn begin_script(&mut self, world: &World) -> bool {
        let serves = self.serves(world);
        if serves {
            self.now.stamp.replid = self.replid;
        }
        serves
    }
}
