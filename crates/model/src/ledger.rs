//! The transactions of crates/postgres/src. Each is one step of the model, because PostgreSQL makes it atomic.

use super::orders::{ORDERS, Order, Orders};
use super::state::{Epoch, GroupRow, GroupStatus, Ledger, OutboxRow, Release, Run, Snapshot, Status, Ticket};
use super::variants::{Variant, World};

impl Ledger {
    /// Whether units are held or promised for this order.
    pub(crate) fn is_live(&self, order: Order) -> bool {
        self.is_promised(order) || self.orders[order] == Status::PendingPayment
    }

    /// Whether a record of this order has not yet become the order.
    pub(crate) fn is_promised(&self, order: Order) -> bool {
        !self.is_made(order) && self.unsettled_records(order) > 0
    }

    /// Whether the order exists, with any status.
    pub(crate) fn is_made(&self, order: Order) -> bool {
        self.orders[order] != Status::None
    }

    /// The number of unsettled records: the group of one, and the place in a larger group. It can be two even if the order is made.
    pub(crate) fn unsettled_records(&self, order: Order) -> u8 {
        let has = |group: &GroupRow| group.status == GroupStatus::Open && group.members.has(order);
        self.unsettled_rows(order) + self.groups.iter().map(|group| u8::from(has(group))).sum::<u8>()
    }

    /// The same, for groups of one.
    fn unsettled_rows(&self, order: Order) -> u8 {
        u8::from(matches!(self.outbox[order], OutboxRow::Pending | OutboxRow::Sent))
    }

    /// Whether the order has a purchase record, settled or not. Places in a split group are no longer records.
    pub(crate) fn has_record(&self, order: Order) -> bool {
        let counts = |group: &GroupRow| matches!(group.status, GroupStatus::Open | GroupStatus::Settled);
        self.outbox[order] != OutboxRow::None
            || self.groups.iter().any(|group| counts(group) && group.members.has(order))
    }

    pub(crate) fn has_ended(&self, order: Order) -> bool {
        matches!(self.orders[order], Status::Cancelled | Status::Rejected)
    }

    /// Rule 3, postgres::orders::insert: inserts a group with its outbox row, if the sale still has this epoch. Returns its orders if they
    /// exist.
    pub(crate) fn insert(&mut self, world: &World, members: Orders, epoch: Epoch) -> Orders {
        let mut orders = members.iter();
        let inserted = match (orders.next(), orders.next()) {
            (Some(only), None) => self.insert_one(only, epoch),
            _ => self.insert_group(world, members, epoch),
        };
        if inserted { members } else { Orders::default() }
    }

    /// Rule 3, postgres::orders::commit: inserts a group of one if the sale still has this epoch. Returns whether it exists.
    pub(crate) fn insert_one(&mut self, order: Order, epoch: Epoch) -> bool {
        if self.epoch == epoch && self.outbox[order] == OutboxRow::None {
            self.outbox[order] = OutboxRow::Pending;
        }
        self.outbox[order] != OutboxRow::None
    }

    fn insert_group(&mut self, world: &World, members: Orders, epoch: Epoch) -> bool {
        let agreed = self.epoch == epoch || world.is(Variant::GroupWithoutEpoch);
        let is_free = |group: &GroupRow| agreed && group.status == GroupStatus::None;
        let Some(place) = self.groups.iter().position(is_free) else { return false };
        self.groups[place] = GroupRow { members, status: GroupStatus::Open };
        self.outbox[ORDERS + place] = OutboxRow::Pending;
        true
    }

    /// Rule 7, postgres::orders::one.
    pub(crate) fn fulfil(&mut self, world: &World, order: Order) {
        if self.unsettled_rows(order) == 0 {
            return; // processed before: its dedup row exists
        }
        if self.is_made(order) && !world.is(Variant::SecondRecordMakesAgain) {
            // The order was made from its larger group: the group of one ends without effect.
            if !world.is(Variant::SecondRecordLeftOpen) {
                self.outbox[order] = OutboxRow::Processed;
            }
            return;
        }
        self.outbox[order] = OutboxRow::Processed;
        let units = world.units(order);
        if self.counted[world.buyer_number(order)] + units > world.per_user {
            self.orders[order] = Status::Rejected;
            self.releases[order] = Release::Pending { returns: true };
        } else if self.stock < units {
            self.orders[order] = Status::Rejected;
            self.releases[order] = Release::Pending { returns: false };
            self.run = 0; // orders a refill
        } else {
            self.take(world, order);
            self.orders[order] = Status::PendingPayment;
        }
    }

    /// Takes an order's units from the stock, and counts them for the buyer.
    fn take(&mut self, world: &World, order: Order) {
        self.stock -= world.units(order);
        self.counted[world.buyer_number(order)] += world.units(order);
    }

    /// Whether all orders of a group can be made together: none exists yet, the stock suffices, and no buyer exceeds the limit.
    pub(crate) fn can_settle(&self, world: &World, group: usize) -> bool {
        let members = self.groups[group].members;
        let within = |order: Order| {
            let of_buyer = |other| members.has(other) && world.buyer(other) == world.buyer(order);
            self.counted[world.buyer_number(order)] + world.units_of(of_buyer) <= world.per_user
        };
        let is_new = |order: Order| !self.is_made(order) || world.is(Variant::GroupCountsTheMade);
        let enough = self.stock >= world.units_of(|order| members.has(order));
        enough && members.iter().all(|order| within(order) && is_new(order))
    }

    /// Rule 7, postgres::orders::groups: makes all orders of a group. `false` if that is impossible; nothing has changed then.
    pub(crate) fn settle_group(&mut self, world: &World, group: usize) -> bool {
        if self.outbox[ORDERS + group] == OutboxRow::Processed {
            return true; // settled or split before
        }
        let all = self.can_settle(world, group);
        if all {
            for order in self.groups[group].members.iter() {
                self.take(world, order);
                if !self.is_made(order) {
                    self.orders[order] = Status::PendingPayment;
                }
            }
            self.close_group(group, GroupStatus::Settled);
        }
        all
    }

    pub(crate) fn close_group(&mut self, group: usize, status: GroupStatus) {
        self.groups[group].status = status;
        self.outbox[ORDERS + group] = OutboxRow::Processed;
    }

    /// Rule 7, postgres::orders::groups: closes a group, and gives a group of one to each of its orders that is not made.
    pub(crate) fn split_group(&mut self, world: &World, group: usize) {
        if self.outbox[ORDERS + group] == OutboxRow::Processed && !world.is(Variant::SplitUnclaimed) {
            return; // settled or split meanwhile
        }
        let left_open = world.is(Variant::SplitWithoutClosing);
        self.close_group(group, if left_open { GroupStatus::Open } else { GroupStatus::Split });
        self.insert_rows_of(group);
    }

    pub(crate) fn insert_rows_of(&mut self, group: usize) {
        for order in self.groups[group].members.iter() {
            if !self.is_made(order) && self.outbox[order] == OutboxRow::None {
                self.outbox[order] = OutboxRow::Pending;
            }
        }
    }

    /// Not a transaction of ours: closes a group, and makes all its orders except the first, which has failed.
    pub(crate) fn settle_part(&mut self, world: &World, group: usize) {
        for order in self.groups[group].members.iter().skip(1) {
            if !self.is_made(order) && self.stock >= world.units(order) {
                self.take(world, order);
                self.orders[order] = Status::PendingPayment;
            }
        }
        self.close_group(group, GroupStatus::Settled);
    }

    /// Rule 8, postgres::orders::cancel.
    pub(crate) fn cancel(&mut self, world: &World, order: Order) {
        if self.orders[order] == Status::PendingPayment {
            self.orders[order] = Status::Cancelled;
            self.stock += world.units(order);
            self.counted[world.buyer_number(order)] -= world.units(order);
            self.releases[order] = Release::Pending { returns: true };
        }
    }

    /// Rule 9, postgres::outbox::settle_released.
    pub(crate) fn settle_release(&mut self, world: &World, order: Order, epoch: Epoch) {
        if self.epoch == epoch || world.is(Variant::ReleaseDoneUnderAnyEpoch) {
            self.releases[order] = Release::Done;
        }
    }

    /// Rule 11, postgres::sales::epochs: raises the epoch.
    pub(crate) fn raise(&mut self, world: &World) -> Epoch {
        self.epoch += u8::from(!world.is(Variant::RefillWithoutEpoch));
        self.run = 0;
        self.epoch
    }

    /// Rule 11, postgres::sales::epochs: reads one REPEATABLE READ snapshot.
    pub(crate) fn snapshot(&self, world: &World) -> Snapshot {
        let records = |order: Order| match world.is(Variant::RefillForgetsGroups) {
            true => self.unsettled_rows(order),
            false => self.unsettled_records(order),
        };
        // Each order counts once. A made order does not count: its units have left the stock.
        let times = |order: Order| match records(order) {
            _ if self.is_made(order) && !world.is(Variant::RefillCountsTheMade) => 0,
            records if world.is(Variant::RefillCountsTwice) => records,
            records => records.min(1),
        };
        let promised_units: u8 = (0..ORDERS).map(|order| times(order) * world.units(order)).sum();
        let mut from = Snapshot { units_left: self.stock.saturating_sub(promised_units), ..Snapshot::default() };
        for order in 0..ORDERS {
            let promised = records(order) > 0 && (!self.is_made(order) || world.is(Variant::RefillRevivesTheEnded));
            if promised || self.orders[order] == Status::PendingPayment {
                from.tickets[order] = Ticket::Held;
            } else if self.has_ended(order) {
                from.tickets[order] = Ticket::Ended;
            }
        }
        from
    }

    /// Rule 11, postgres::sales::epochs: records the run on which the epoch was filled, unless another refill has raised the epoch.
    pub(crate) fn record(&mut self, epoch: Epoch, run: Run) -> bool {
        let is_current = self.epoch == epoch;
        if is_current {
            self.run = run;
        }
        is_current
    }
}
