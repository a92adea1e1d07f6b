//! The properties of the model of shards: some must hold in every state, others in at least one.

use stateright::Property;

use super::World;
use super::state::{ORDERS, Order, Phase, Refill, Release, SHARDS, State, Status, Ticket, buyer};

pub(crate) const NOT_OVERSOLD: &str = "never more sold than the stock";
pub(crate) const ONE_HOLD: &str = "no order has two holds";
pub(crate) const NAMED: &str = "a lent hold is named by the loan at home";
pub(crate) const LIMIT: &str = "no buyer has more than the limit";
pub(crate) const DURABLE: &str = "every 202 has a record";
pub(crate) const HOLDER: &str = "a holder never hears sold out";
pub(crate) const SOLD_OUT: &str = "sold out is said only when nothing is left anywhere";
pub(crate) const AT_LIMIT: &str = "already purchased is said only to buyers who have something";
pub(crate) const SOLD_TWICE: &str = "no order is sold again";
pub(crate) const MATCHES: &str = "a whole sale matches the ledger";
pub(crate) const AT_REST: &str = "at rest everything is settled";

pub(crate) const BORROWED: &str = "a borrowed unit has a 202";
pub(crate) const SECOND_LENDER: &str = "the second lender holds the unit";
pub(crate) const HOME_AGAIN: &str = "a buyer who had a loan gets a unit of home";
pub(crate) const TAKEN_BACK: &str = "a barred order is bought after all";
pub(crate) const FOUND: &str = "a repeat or the reconciler finds a hold of a dead request";
pub(crate) const SAID: &str = "sold out is said";
pub(crate) const REMEMBERED: &str = "sold out is remembered";
pub(crate) const SOLD_AGAIN: &str = "a returned unit is sold again";
pub(crate) const REFILLED: &str = "a loan lives on through a refill";

pub(crate) fn of(world: &World) -> Vec<Property<World>> {
    let mut all = vec![
        Property::always(NOT_OVERSOLD, |world: &World, s: &State| s.ledger.live() <= world.total()),
        Property::always(ONE_HOLD, |world: &World, s: &State| {
            (0..ORDERS).all(|order| {
                let holds = (0..world.shards).filter(|k| s.serves(*k) && s.shards[*k].tickets[order].is_hold());
                let epochs: Vec<_> = holds.map(|k| s.shards[k].epoch).collect();
                epochs.iter().all(|epoch| epochs.iter().filter(|other| *other == epoch).count() == 1)
            })
        }),
        Property::always(NAMED, |world: &World, s: &State| !s.is_whole(world.shards) || is_named(world, s)),
        Property::always(LIMIT, |_, s: &State| {
            let live = |of: usize| (0..ORDERS).filter(|o| buyer(*o) == of && s.ledger.is_live(*o)).count();
            (0..ORDERS).all(|order| live(buyer(order)) <= 1)
        }),
        Property::always(DURABLE, |_, s: &State| (0..ORDERS).all(|o| !s.accepted[o] || s.has_record(o))),
        Property::always(HOLDER, |_, s: &State| !s.violations.sold_out_to_holder),
        Property::always(SOLD_OUT, |_, s: &State| !s.violations.sold_out_with_units),
        Property::always(AT_LIMIT, |_, s: &State| !s.violations.at_limit_with_nothing),
        Property::always(SOLD_TWICE, |_, s: &State| !s.violations.sold_twice),
        Property::always(MATCHES, |world: &World, s: &State| !s.is_whole(world.shards) || matches_ledger(world, s)),
        Property::always(AT_REST, |world: &World, s: &State| !is_at_rest(world, s) || is_settled(world, s)),
    ];
    let seen = [
        Property::sometimes(BORROWED, |world: &World, s: &State| {
            let lent = |o: Order| matches!(s.ledger.orders[o], Status::Live(shard) if shard != world.home(o));
            (0..ORDERS).any(|o| s.accepted[o] && lent(o))
        }),
        Property::sometimes(SECOND_LENDER, |_, s: &State| {
            s.shards.iter().any(|shard| {
                shard.tickets.iter().any(|ticket| matches!(ticket, Ticket::Lent { number } if *number > 1))
            })
        }),
        Property::sometimes(HOME_AGAIN, |world: &World, s: &State| {
            (0..ORDERS).any(|o| {
                let home = &s.shards[world.home(o)];
                home.number > 0 && home.tickets[o] == Ticket::Held && s.accepted[o]
            })
        }),
        Property::sometimes(TAKEN_BACK, |_, s: &State| {
            let barred = |o: usize| s.shards.iter().any(|k| matches!(k.tickets[o], Ticket::Barred { .. }));
            (0..ORDERS).any(|o| barred(o) && s.accepted[o])
        }),
        Property::sometimes(FOUND, |world: &World, s: &State| {
            world.budget.deaths > s.budget.deaths && (0..ORDERS).any(|o| s.has_record(o) && s.is_settled_loan(world, o))
        }),
        Property::sometimes(SAID, |_, s: &State| s.shown_sold_out),
        Property::sometimes(REMEMBERED, |_, s: &State| {
            s.threads.iter().any(|t| t.sold_out.iter().any(Option::is_some))
        }),
        Property::sometimes(SOLD_AGAIN, |world: &World, s: &State| {
            (0..ORDERS).map(|o| u8::from(s.accepted[o])).sum::<u8>() > world.total()
        }),
        Property::sometimes(REFILLED, |world: &World, s: &State| {
            let closed = |o: usize| matches!(s.shards[world.home(o)].tickets[o], Ticket::Closed { .. });
            s.ledger.epoch > 1 && s.is_whole(world.shards) && (0..ORDERS).any(closed)
        }),
    ];
    all.extend(seen.into_iter().filter(|property| world.shows.contains(&property.name)));
    all
}

impl State {
    fn is_settled_loan(&self, world: &World, order: Order) -> bool {
        matches!(self.shards[world.home(order)].tickets[order], Ticket::Closed { .. })
    }
}

/// The basic invariant: a process that finds a lent hold may commit it.
fn is_named(world: &World, s: &State) -> bool {
    (0..world.shards).all(|k| {
        (0..ORDERS).all(|order| {
            let Ticket::Lent { number: lent } = s.shards[k].tickets[order] else { return true };
            match s.shards[world.home(order)].tickets[order] {
                Ticket::Open { lender, number } => (lender, number) == (k, lent),
                Ticket::Closed { lender } => lender == k,
                // The release has reached the home shard, but not yet this one. So there is a record, and no other is written.
                Ticket::Ended => s.ledger.releases[order] == Release::Pending,
                _ => false,
            }
        })
    })
}

/// I1 at every moment, as the auditor compares.
fn matches_ledger(world: &World, s: &State) -> bool {
    let (shards, ledger) = (&s.shards[..world.shards], &s.ledger);
    let units: u8 = shards.iter().map(|k| k.stock + k.aside).sum();
    let holds: u8 = shards.iter().flat_map(|k| k.tickets).map(|ticket| u8::from(ticket.is_hold())).sum();
    let is_accounted = |order: Order| {
        let home = shards[world.home(order)].tickets[order];
        match ledger.orders[order] {
            Status::Live(shard) if shard == world.home(order) => home == Ticket::Held,
            Status::Live(shard) => {
                let named = match home {
                    Ticket::Open { lender, .. } | Ticket::Closed { lender } => lender == shard,
                    _ => false,
                };
                named && shards[shard].tickets[order].is_hold()
            }
            Status::Ended(_) => {
                ledger.releases[order] == Release::Pending || !shards.iter().any(|k| k.tickets[order].is_hold())
            }
            Status::None => shards.iter().all(|k| !k.tickets[order].is_hold() || k.unconfirmed[order]),
        }
    };
    units + holds == world.total() && (0..ORDERS).all(is_accounted)
}

fn is_at_rest(world: &World, s: &State) -> bool {
    let mut own = Vec::new();
    world.system_actions(s, &mut own);
    own.is_empty()
}

fn is_settled(world: &World, s: &State) -> bool {
    let shards = &s.shards[..world.shards];
    let order_settled = |o: Order| {
        let home = shards[world.home(o)].tickets[o];
        let is_live = matches!(home, Ticket::Held | Ticket::Closed { .. });
        shards.iter().all(|k| !k.unconfirmed[o] && !matches!(k.tickets[o], Ticket::Open { .. }))
            && s.ledger.releases[o] != Release::Pending
            && is_live == s.ledger.is_live(o)
    };
    let left: u8 = shards.iter().map(|k| k.stock + k.aside).sum();
    s.is_whole(world.shards)
        && s.refill == Refill::Idle
        && s.shards[world.shards..SHARDS].iter().all(|k| k.phase == Phase::Missing)
        && left + s.ledger.live() == world.total()
        && (0..ORDERS).all(order_settled)
}
