//! The transactions of src/ledger/, each as atomic as it is there.

use super::state::{Epoch, Ledger, ORDERS, Order, Purchase, Release, Run, Snapshot, Status, Ticket};
use super::variants::Shop;

impl Ledger {
    /// Whether this order holds units, or has been promised them.
    pub fn is_live(&self, order: Order) -> bool {
        self.is_promised(order) || self.orders[order] == Status::PendingPayment
    }

    /// Whether its purchase row is still to become an order.
    pub fn is_promised(&self, order: Order) -> bool {
        matches!(self.purchases[order], Purchase::Pending | Purchase::Sent)
    }

    pub fn has_ended(&self, order: Order) -> bool {
        matches!(self.orders[order], Status::Cancelled | Status::Rejected)
    }

    /// Rule 3, ledger::commit::insert_purchases: inserts the row if the epoch is still this one; whether it stands.
    pub fn insert(&mut self, order: Order, epoch: Epoch) -> bool {
        if self.epoch == epoch && self.purchases[order] == Purchase::None {
            self.purchases[order] = Purchase::Pending;
        }
        self.purchases[order] != Purchase::None
    }

    /// Rule 7, ledger::fulfil::fulfil.
    pub fn fulfil(&mut self, shop: &Shop, order: Order) {
        if !self.is_promised(order) {
            return; // processed before: the dedup row stands
        }
        self.purchases[order] = Purchase::Processed;
        let units = shop.units(order);
        let same_buyer = |other| shop.buyer(other) == shop.buyer(order);
        let counter = shop.units_of(|other| self.orders[other] == Status::PendingPayment && same_buyer(other));
        if counter + units > shop.per_user {
            self.orders[order] = Status::Rejected;
            self.releases[order] = Release::Pending { returns: true };
        } else if self.stock < units {
            self.orders[order] = Status::Rejected;
            self.releases[order] = Release::Pending { returns: false };
            self.run = 0; // to be refilled
        } else {
            self.stock -= units;
            self.orders[order] = Status::PendingPayment;
        }
    }

    /// Rule 8, ledger::end::cancel.
    pub fn cancel(&mut self, shop: &Shop, order: Order) {
        if self.orders[order] == Status::PendingPayment {
            self.orders[order] = Status::Cancelled;
            self.stock += shop.units(order);
            self.releases[order] = Release::Pending { returns: true };
        }
    }

    /// Rule 9, ledger::outbox::settle_released.
    pub fn settle_release(&mut self, shop: &Shop, order: Order, epoch: Epoch) {
        if self.epoch == epoch || shop.variant.release_done_under_any_epoch {
            self.releases[order] = Release::Done;
        }
    }

    /// Rule 11, ledger::epochs::raise_epoch.
    pub fn raise(&mut self, shop: &Shop) -> Epoch {
        self.epoch += u8::from(!shop.variant.refill_without_epoch);
        self.run = 0;
        self.epoch
    }

    /// Rule 11, ledger::epochs::fill_from: one REPEATABLE READ snapshot.
    pub fn snapshot(&self, shop: &Shop) -> Snapshot {
        let promised = shop.units_of(|order| self.is_promised(order));
        let mut from = Snapshot { left: self.stock.saturating_sub(promised), ..Snapshot::default() };
        for order in 0..ORDERS {
            if self.is_live(order) {
                from.tickets[order] = Ticket::Held;
            } else if self.has_ended(order) {
                from.tickets[order] = Ticket::Ended;
            }
        }
        from
    }

    /// Rule 11, ledger::epochs::record_fill.
    pub fn record(&mut self, epoch: Epoch, run: Run) {
        if self.epoch == epoch {
            self.run = run;
        }
    }
}
