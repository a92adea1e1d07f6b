//! What must never be, and what must be seen.

use stateright::Property;

use super::state::{Guard, ORDERS, Phase, Purchase, Reconciler, Release, State, Status, Ticket, Till};
use super::variants::Shop;

pub const PROMISED: &str = "never more promised than there is";
pub const REJECTED: &str = "no order that was answered 202 is rejected";
pub const DURABLE: &str = "every 202 has a purchase row";
pub const LIMIT: &str = "no buyer has more than the limit";
pub const SOLD_TWICE: &str = "no ended order is sold again";
pub const HOLDER: &str = "a ticket's holder is never told sold out";
pub const SOLD_OUT: &str = "sold out is remembered only when nothing was left";
pub const BOOKS: &str = "while Redis is whole the books add up";
pub const AT_REST: &str = "at rest all is settled";

pub const SOLD_AGAIN: &str = "a returned unit is sold again";
pub const OVERTAKEN: &str = "a refill overtakes a purchase in flight";
pub const TWO_REFILLS: &str = "two refills at once";
pub const KEPT_ASIDE: &str = "a returned unit waits while sold out is remembered";
pub const LATE: &str = "an insert outlives its request";
pub const ALL_SOLD: &str = "all is sold and at rest";
pub const REFILLED: &str = "a refilled sale sells";

pub fn of(shop: &Shop) -> Vec<Property<Shop>> {
    let mut all = vec![
        Property::always(PROMISED, |shop: &Shop, s: &State| {
            shop.units_of(|o| s.ledger.is_live(o)) <= shop.total
                && shop.units_of(|o| s.ledger.orders[o] == Status::PendingPayment) + s.ledger.stock == shop.total
        }),
        Property::always(REJECTED, |_, s: &State| {
            (0..ORDERS).all(|o| !(s.answered[o] && s.ledger.orders[o] == Status::Rejected))
        }),
        Property::always(DURABLE, |_, s: &State| {
            (0..ORDERS).all(|o| !s.answered[o] || s.ledger.purchases[o] != Purchase::None)
        }),
        Property::always(LIMIT, |shop: &Shop, s: &State| {
            let same = |a, b| shop.buyer(a) == shop.buyer(b);
            (0..ORDERS).all(|one| shop.units_of(|o| s.ledger.is_live(o) && same(o, one)) <= shop.per_user)
        }),
        Property::always(SOLD_TWICE, |_, s: &State| !s.wrong.sold_twice),
        Property::always(HOLDER, |_, s: &State| !s.wrong.holder_told_sold_out),
        Property::always(SOLD_OUT, |_, s: &State| !s.wrong.told_sold_out_with_stock),
        Property::always(BOOKS, |shop: &Shop, s: &State| !shop.is_whole(s) || books_add_up(shop, s)),
        Property::always(AT_REST, |shop: &Shop, s: &State| !is_at_rest(shop, s) || is_settled(shop, s)),
    ];
    let seen = [
        Property::sometimes(SOLD_AGAIN, |shop: &Shop, s: &State| {
            shop.units_of(|o| s.ledger.orders[o] == Status::Cancelled || s.answered[o]) > shop.total
        }),
        Property::sometimes(OVERTAKEN, |_, s: &State| {
            let refused = |till: &Till| matches!(*till, Till::Reserved(o, epoch) if epoch < s.ledger.epoch && s.ledger.purchases[o] == Purchase::None);
            s.tills.iter().any(refused)
        }),
        Property::sometimes(TWO_REFILLS, |_, s: &State| s.guards.iter().all(|guard| matches!(guard, Guard::Read(..)))),
        Property::sometimes(KEPT_ASIDE, |_, s: &State| {
            s.redis.now.returning > 0 && s.memories.iter().any(Option::is_some)
        }),
        Property::sometimes(LATE, |_, s: &State| {
            (0..ORDERS).any(|o| s.late[o] > 0 && s.ledger.orders[o] == Status::Cancelled)
        }),
        Property::sometimes(ALL_SOLD, |shop: &Shop, s: &State| {
            is_at_rest(shop, s)
                && shop.units_of(|o| s.answered[o] && s.ledger.orders[o] == Status::PendingPayment) == shop.total
        }),
        Property::sometimes(REFILLED, |shop: &Shop, s: &State| {
            let holds = |o| s.redis.now.tickets[o] == Ticket::Held && s.redis.now.unconfirmed[o];
            shop.is_whole(s) && s.ledger.epoch > 1 && (0..ORDERS).any(holds)
        }),
    ];
    all.extend(seen.into_iter().filter(|property| shop.shows.contains(&property.name)));
    all
}

/// I1 at every moment (sale::audit::compare): each unit is for sale or held, each live order has its hold, and each
/// hold its order, its purchase row, its place among the unconfirmed, or a release that is still to come.
fn books_add_up(shop: &Shop, s: &State) -> bool {
    let (now, ledger) = (&s.redis.now, &s.ledger);
    let held = |o: usize| now.tickets[o] == Ticket::Held;
    let accounted = |o: usize| {
        let release_to_come = matches!(ledger.releases[o], Release::Pending { .. });
        if held(o) { ledger.is_live(o) || release_to_come || now.unconfirmed[o] } else { !ledger.is_live(o) }
    };
    now.stock + now.returning + shop.units_of(held) == shop.total && (0..ORDERS).all(accounted)
}

/// Nothing is under way, and nothing is left that the system would do by itself.
fn is_at_rest(shop: &Shop, s: &State) -> bool {
    let mut own = Vec::new();
    shop.own_actions(s, &mut own);
    // A sale that is not whole with no epoch left to refill it is the model's bound, not rest.
    own.is_empty() && (shop.is_whole(s) || s.ledger.epoch < shop.last_epoch)
}

fn is_settled(shop: &Shop, s: &State) -> bool {
    let (now, ledger) = (&s.redis.now, &s.ledger);
    let order_settled = |o: usize| {
        !ledger.is_promised(o)
            && !matches!(ledger.releases[o], Release::Pending { .. })
            && !now.unconfirmed[o]
            && (now.tickets[o] == Ticket::Held) == (ledger.orders[o] == Status::PendingPayment)
    };
    s.redis.loaded
        && now.phase == Phase::Open
        && shop.is_whole(s)
        && s.reconciler == Reconciler::Idle
        && now.stock + now.returning == ledger.stock
        && (0..ORDERS).all(order_settled)
}
