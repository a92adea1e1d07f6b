//! The properties: some must hold in every state, others in at least one.

use stateright::{Model, Property};

use super::orders::{ORDERS, Orders};
use super::state::{
    GroupRow, GroupStatus, OutboxRow, PurchaseStep, Reconciler, RefillStep, Release, Splitter, State, Status, Ticket,
};
use super::variants::World;

pub(crate) const NOT_OVERSOLD: &str = "never more promised than the stock";
pub(crate) const REJECTED: &str = "no order with a 202 is rejected";
pub(crate) const DURABLE: &str = "every 202 has a purchase record";
pub(crate) const LIMIT: &str = "no buyer has more than the limit";
pub(crate) const SOLD_TWICE: &str = "no ended order is sold again";
pub(crate) const HOLDER: &str = "a ticket's holder never hears sold out";
pub(crate) const SOLD_OUT: &str = "sold out is remembered only when nothing was left";
pub(crate) const REDIS_MATCHES: &str = "a complete Redis matches the ledger";
pub(crate) const AT_REST: &str = "at rest everything is settled";
pub(crate) const HAS_ORDER: &str = "every settled record has its order";
pub(crate) const COUNTED: &str = "each order is counted once";
pub(crate) const STAYS_ENDED: &str = "no ended order comes back";
pub(crate) const ONE_GROUP: &str = "no order stands in two groups";
pub(crate) const ENDS: &str = "what is left to do comes to an end";

pub(crate) const SOLD_AGAIN: &str = "a returned unit is sold again";
pub(crate) const OVERTAKEN: &str = "a refill overtakes a purchase in flight";
pub(crate) const REFILLS_MEET: &str = "two refills at once";
pub(crate) const KEPT_ASIDE: &str = "a returned unit waits while sold out is remembered";
pub(crate) const LATE_INSERT: &str = "an insert outlives its request";
pub(crate) const ALL_SOLD: &str = "everything is sold and at rest";
pub(crate) const REFILLED: &str = "a refilled sale sells";
pub(crate) const WHOLE: &str = "a group is settled as a whole";
pub(crate) const SPLIT: &str = "a group is split, and all its orders are made";
pub(crate) const TWO_RECORDS: &str = "an order has two records, both unsettled";
pub(crate) const RECORD_OF_ENDED: &str = "an order ends while a record of it is unsettled";
pub(crate) const LATE_GROUP: &str = "the insert of a group outlives an order of it";

pub(crate) fn of(world: &World) -> Vec<Property<World>> {
    let mut all = vec![
        Property::always(NOT_OVERSOLD, |world: &World, s: &State| {
            world.units_of(|o| s.ledger.is_live(o)) <= world.total
                && world.units_of(|o| s.ledger.orders[o] == Status::PendingPayment) + s.ledger.stock == world.total
        }),
        Property::always(REJECTED, |_, s: &State| {
            (0..ORDERS).all(|o| !(s.accepted[o] && s.ledger.orders[o] == Status::Rejected))
        }),
        Property::always(DURABLE, |_, s: &State| (0..ORDERS).all(|o| !s.accepted[o] || s.ledger.has_record(o))),
        Property::always(LIMIT, |world: &World, s: &State| {
            let same = |a, b| world.buyer(a) == world.buyer(b);
            (0..ORDERS).all(|one| world.units_of(|o| s.ledger.is_live(o) && same(o, one)) <= world.per_user)
        }),
        Property::always(SOLD_TWICE, |_, s: &State| !s.violations.sold_twice),
        Property::always(HOLDER, |_, s: &State| !s.violations.sold_out_to_holder),
        Property::always(SOLD_OUT, |_, s: &State| !s.violations.sold_out_with_stock),
        Property::always(REDIS_MATCHES, |world: &World, s: &State| {
            s.masters().all(|master| !world.is_complete(s, master) || redis_matches_ledger(world, s, master))
        }),
        Property::always(AT_REST, |world: &World, s: &State| !is_at_rest(world, s) || is_settled(world, s)),
        Property::always(HAS_ORDER, |_, s: &State| {
            let of_group = |group: &GroupRow, o| group.status == GroupStatus::Settled && group.members.has(o);
            let settled = |o: usize| {
                s.ledger.outbox[o] == OutboxRow::Processed || s.ledger.groups.iter().any(|group| of_group(group, o))
            };
            (0..ORDERS).all(|o| !settled(o) || s.ledger.is_made(o))
        }),
        Property::always(COUNTED, |world: &World, s: &State| {
            let pending = |o: usize| s.ledger.orders[o] == Status::PendingPayment;
            let counted = |number: usize| world.units_of(|o| pending(o) && world.buyer_number(o) == number);
            world.units_of(pending) + s.ledger.stock == world.total
                && (0..ORDERS).all(|number| s.ledger.counted[number] == counted(number))
        }),
        Property::always(STAYS_ENDED, |_, s: &State| !s.violations.came_back),
    ];
    // Calls for one buyer make no groups. For them AT_REST covers this.
    if world.batch_max > 1 {
        all.push(Property::always(ONE_GROUP, |_, s: &State| {
            (0..ORDERS).all(|o| s.ledger.groups.iter().filter(|group| group.members.has(o)).count() < 2)
        }));
        all.push(Property::always(ENDS, comes_to_an_end));
    }
    let seen = [
        Property::sometimes(SOLD_AGAIN, |world: &World, s: &State| {
            world.units_of(|o| s.ledger.orders[o] == Status::Cancelled || s.accepted[o]) > world.total
        }),
        Property::sometimes(OVERTAKEN, |_, s: &State| {
            let refused = |step: &PurchaseStep| match *step {
                PurchaseStep::Reserved { won, repeated, epoch } => {
                    epoch < s.ledger.epoch && won.union(repeated).iter().any(|o| !s.ledger.has_record(o))
                }
                PurchaseStep::Idle
                | PurchaseStep::OneByOne { .. }
                | PurchaseStep::Committed(_)
                | PurchaseStep::Accepted(_) => false,
            };
            s.requests.iter().any(refused)
        }),
        Property::sometimes(REFILLS_MEET, |_, s: &State| {
            s.refills.iter().all(|refill| matches!(refill, RefillStep::Read(..)))
        }),
        Property::sometimes(KEPT_ASIDE, |_, s: &State| {
            s.redis[0].now.returning > 0 && s.sold_out_caches.iter().any(Option::is_some)
        }),
        Property::sometimes(LATE_INSERT, |_, s: &State| {
            let is_ended =
                |group: Orders| group.len() == 1 && group.iter().all(|o| s.ledger.orders[o] == Status::Cancelled);
            s.late_inserts.iter().any(|(group, _)| is_ended(*group))
        }),
        Property::sometimes(ALL_SOLD, |world: &World, s: &State| {
            is_at_rest(world, s)
                && world.units_of(|o| s.accepted[o] && s.ledger.orders[o] == Status::PendingPayment) == world.total
        }),
        Property::sometimes(REFILLED, |world: &World, s: &State| {
            let holds = |master: usize, o| {
                let now = &s.redis[master].now;
                now.tickets[o] == Ticket::Held && now.unconfirmed[o]
            };
            let sells = |master| world.is_complete(s, master) && (0..ORDERS).any(|o| holds(master, o));
            s.ledger.epoch > 1 && s.masters().any(sells)
        }),
        Property::sometimes(WHOLE, |_, s: &State| {
            s.ledger.groups.iter().any(|group| group.status == GroupStatus::Settled)
        }),
        Property::sometimes(SPLIT, |_, s: &State| {
            let made = |o| s.ledger.orders[o] == Status::PendingPayment;
            s.ledger.groups.iter().any(|group| group.status == GroupStatus::Split && group.members.iter().all(made))
        }),
        Property::sometimes(TWO_RECORDS, |_, s: &State| (0..ORDERS).any(|o| s.ledger.unsettled_records(o) > 1)),
        Property::sometimes(RECORD_OF_ENDED, |_, s: &State| {
            (0..ORDERS).any(|o| s.ledger.has_ended(o) && s.ledger.unsettled_records(o) > 0)
        }),
        Property::sometimes(LATE_GROUP, |_, s: &State| {
            let has_ended = |group: Orders| group.len() > 1 && group.iter().any(|o| s.ledger.has_ended(o));
            s.late_inserts.iter().any(|(group, _)| has_ended(*group))
        }),
    ];
    all.extend(seen.into_iter().filter(|property| world.shows.contains(&property.name)));
    all
}

/// I1 at every moment, as buying::sale_work::audit compares. Each unit is for sale or held. Each live order has its hold. Each hold has an order,
/// a group, an unconfirmed entry, or a pending release.
fn redis_matches_ledger(world: &World, s: &State, master: usize) -> bool {
    let (now, ledger) = (&s.redis[master].now, &s.ledger);
    let held = |o: usize| now.tickets[o] == Ticket::Held;
    let accounted = |o: usize| {
        let release_to_come = matches!(ledger.releases[o], Release::Pending { .. });
        if held(o) { ledger.is_live(o) || release_to_come || now.unconfirmed[o] } else { !ledger.is_live(o) }
    };
    now.stock + now.returning + world.units_of(held) == world.total && (0..ORDERS).all(accounted)
}

/// The system has no action left.
fn is_at_rest(world: &World, s: &State) -> bool {
    let mut own = Vec::new();
    world.system_actions(s, &mut own);
    // If a sale is incomplete and no epoch is left for a refill, the model has reached its bound; the system is not at rest.
    own.is_empty() && (s.masters().any(|master| world.is_complete(s, master)) || s.ledger.epoch < world.max_epoch)
}

fn is_settled(world: &World, s: &State) -> bool {
    let Some(master) = s.masters().find(|master| world.is_complete(s, *master)) else { return false };
    let (now, ledger) = (&s.redis[master].now, &s.ledger);
    let order_settled = |o: usize| {
        ledger.unsettled_records(o) == 0
            && !matches!(ledger.releases[o], Release::Pending { .. })
            && !now.unconfirmed[o]
            && (now.tickets[o] == Ticket::Held) == (ledger.orders[o] == Status::PendingPayment)
    };
    s.reconciler == Reconciler::Idle && now.stock + now.returning == ledger.stock && (0..ORDERS).all(order_settled)
}

/// More steps than rows, messages and releases can need.
const STEPS_MAX: usize = 100;

/// Whether the system comes to rest by itself. This is checked in states where only rows, messages and releases are left. From there it
/// suffices to follow the first possible step: an endless resend then shows.
fn comes_to_an_end(world: &World, s: &State) -> bool {
    let under_way = s.requests.iter().any(|step| *step != PurchaseStep::Idle)
        || s.refills.iter().any(|step| *step != RefillStep::Idle)
        || s.reconciler != Reconciler::Idle
        || s.splitter != Splitter::Idle
        || !world.is_complete(s, 0);
    if under_way {
        return true;
    }
    let mut s = s.clone();
    for _ in 0..STEPS_MAX {
        let mut own = Vec::new();
        world.system_actions(&s, &mut own);
        let Some(next) = own.into_iter().find_map(|action| world.next_state(&s, action)) else { return true };
        s = next;
    }
    false
}
