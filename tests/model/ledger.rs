//! The transactions of src/ledger. Each is one step of the model, because PostgreSQL makes it atomic.

use super::state::{Epoch, Ledger, ORDERS, Order, PurchaseRow, Release, Run, Snapshot, Status, Ticket};
use super::variants::World;

impl Ledger {
    /// Whether units are held for this order, or promised to it.
    pub fn is_live(&self, order: Order) -> bool {
        self.is_promised(order) || self.orders[order] == Status::PendingPayment
    }

    /// Whether the purchase row has still to become an order.
    pub fn is_promised(&self, order: Order) -> bool {
        matches!(self.purchase_rows[order], PurchaseRow::Pending | PurchaseRow::Sent)
    }

    pub fn has_ended(&self, order: Order) -> bool {
        matches!(self.orders[order], Status::Cancelled | Status::Rejected)
    }

    /// Rule 3, ledger::orders::commit: inserts the row if the sale still has this epoch. Says whether the row stands.
    pub fn insert(&mut self, order: Order, epoch: Epoch) -> bool {
        if self.epoch == epoch && self.purchase_rows[order] == PurchaseRow::None {
            self.purchase_rows[order] = PurchaseRow::Pending;
        }
        self.purchase_rows[order] != PurchaseRow::None
    }

    /// Rule 7, ledger::orders::fulfil.
    pub fn fulfil(&mut self, world: &World, order: Order) {
        if !self.is_promised(order) {
            return; // processed before: its dedup row exists
        }
        self.purchase_rows[order] = PurchaseRow::Processed;
        let units = world.units(order);
        let same_buyer = |other| world.buyer(other) == world.buyer(order);
        let counter = world.units_of(|other| self.orders[other] == Status::PendingPayment && same_buyer(other));
        if counter + units > world.per_user {
            self.orders[order] = Status::Rejected;
            self.releases[order] = Release::Pending { returns: true };
        } else if self.stock < units {
            self.orders[order] = Status::Rejected;
            self.releases[order] = Release::Pending { returns: false };
            self.run = 0; // orders a refill
        } else {
            self.stock -= units;
            self.orders[order] = Status::PendingPayment;
        }
    }

    /// Rule 8, ledger::orders::cancel.
    pub fn cancel(&mut self, world: &World, order: Order) {
        if self.orders[order] == Status::PendingPayment {
            self.orders[order] = Status::Cancelled;
            self.stock += world.units(order);
            self.releases[order] = Release::Pending { returns: true };
        }
    }

    /// Rule 9, ledger::outbox::settle_released.
    pub fn settle_release(&mut self, world: &World, order: Order, epoch: Epoch) {
        if self.epoch == epoch || world.variant.release_done_under_any_epoch {
            self.releases[order] = Release::Done;
        }
    }

    /// Rule 11, ledger::sales::epochs: raises the epoch.
    pub fn raise(&mut self, world: &World) -> Epoch {
        self.epoch += u8::from(!world.variant.refill_without_epoch);
        self.run = 0;
        self.epoch
    }

    /// Rule 11, ledger::sales::epochs: reads one REPEATABLE READ snapshot.
    pub fn snapshot(&self, world: &World) -> Snapshot {
        let promised_units = world.units_of(|order| self.is_promised(order));
        let mut from = Snapshot { units_left: self.stock.saturating_sub(promised_units), ..Snapshot::default() };
        for order in 0..ORDERS {
            if self.is_live(order) {
                from.tickets[order] = Ticket::Held;
            } else if self.has_ended(order) {
                from.tickets[order] = Ticket::Ended;
            }
        }
        from
    }

    /// Rule 11, ledger::sales::epochs: records the run that the epoch was filled on.
    pub fn record(&mut self, epoch: Epoch, run: Run) {
        if self.epoch == epoch {
            self.run = run;
        }
    }
}
