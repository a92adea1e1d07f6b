//! Rule 19: a sale's stock is changed, and its window is moved, while purchases are in flight, workers fulfil, refills run, and Redis forgets.
//! Each purchase is for one unit.

use stateright::{Model, Property};

const INSTANCES: usize = 2;
const EPOCH_MAX: u8 = 5;
const TOTAL: u8 = 2;

const NOT_OVERSOLD: &str = "never more promised than the stock";
const REJECTED: &str = "no purchase with a record is rejected";
const INSIDE: &str = "nobody buys outside the present window";
const AT_REST: &str = "at rest Redis has the terms and the units of PostgreSQL";

#[derive(Clone, Copy, Default)]
struct Changes {
    /// The change orders a refill, but leaves the epoch as it is.
    same_epoch: bool,
    /// The new total is compared with the orders alone.
    accepted_forgotten: bool,
    /// The units of accepted purchases are counted before the epoch is locked.
    counted_before_the_lock: bool,
    /// The refill reads the terms before it raises the epoch.
    terms_read_first: bool,
    /// The change does not order a refill, and leaves the epoch as it is.
    not_carried: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// PostgreSQL: all units, those that no order has, purchases without an order, orders.
    total: u8,
    stock: u8,
    accepted: u8,
    orders: u8,
    epoch: u8,
    is_filled: bool,
    /// The window is moved away: nobody may buy.
    is_moved: bool,
    redis: Redis,
    /// The epoch of the hold that each instance is about to commit.
    holds: [Option<u8>; INSTANCES],
    change: Change,
    refill: Refill,
    requests: u8,
    changes: u8,
    losses: u8,
    deaths: u8,
    has_rejected: bool,
    has_sold_outside: bool,
    has_overtaken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Redis {
    epoch: u8,
    is_open: bool,
    stock: u8,
    is_moved: bool,
}

/// Only in the variant that counts first: the new total, and the accepted units that were counted.
type Change = Option<(u8, u8)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Refill {
    Idle,
    /// Only in the variant that reads the terms first.
    Known(bool),
    /// The epoch, and the terms if they are known.
    Raised(u8, Option<bool>),
    /// The units left in the snapshot.
    Read(u8, u8, Option<bool>),
    Recorded(u8, u8, bool),
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    /// reserve.lua
    Reserve(usize),
    /// postgres::orders::commit: the record, if the epoch is the hold's.
    Commit(usize),
    /// postgres::orders::groups
    Fulfil,
    /// postgres::sales::change: one transaction.
    SetTotal(u8),
    Move,
    /// Only in the variant that counts first.
    Count(u8),
    SetAsCounted,
    /// The next step of a refill.
    Refill,
    RefillDies,
    Lose,
}

impl Changes {
    fn set_total(&self, state: &mut State, total: u8, accepted: u8) {
        let counted = if self.accepted_forgotten { 0 } else { accepted };
        if let Some(stock) = (state.stock + total).checked_sub(state.total).filter(|stock| *stock >= counted) {
            (state.total, state.stock) = (total, stock);
            self.raise(state);
        }
    }

    fn raise(&self, state: &mut State) {
        state.changes -= 1;
        if self.not_carried {
            return;
        }
        state.is_filled = false;
        if !self.same_epoch {
            state.has_overtaken |= state.holds.contains(&Some(state.epoch));
            state.epoch += 1;
        }
    }

    fn is_whole(state: &State) -> bool {
        state.is_filled && state.redis.is_open && state.redis.epoch == state.epoch
    }

    fn refill(&self, state: &mut State) {
        state.refill = match state.refill {
            Refill::Idle if self.terms_read_first => Refill::Known(state.is_moved),
            Refill::Idle | Refill::Known(_) => {
                let known = if let Refill::Known(is_moved) = state.refill { Some(is_moved) } else { None };
                state.redis.is_open = false;
                (state.epoch, state.is_filled) = (state.epoch + 1, false);
                Refill::Raised(state.epoch, known)
            }
            // One snapshot: the stock, and the accepted purchases.
            Refill::Raised(epoch, known) => Refill::Read(epoch, state.stock.saturating_sub(state.accepted), known),
            // The terms are read, and then the run is recorded if the epoch is still the refill's.
            Refill::Read(epoch, left, None) => Refill::Read(epoch, left, Some(state.is_moved)),
            Refill::Read(epoch, left, Some(is_moved)) if epoch == state.epoch => {
                state.is_filled = true;
                Refill::Recorded(epoch, left, is_moved)
            }
            Refill::Read(..) => Refill::Idle,
            // A server that has a newer epoch refuses.
            Refill::Recorded(epoch, stock, is_moved) => {
                if state.redis.epoch <= epoch {
                    state.redis = Redis { epoch, is_open: true, stock, is_moved };
                }
                Refill::Idle
            }
        };
    }

    fn system_actions(&self, state: &State, out: &mut Vec<Action>) {
        out.extend((0..INSTANCES).filter(|i| state.holds[*i].is_some()).map(Action::Commit));
        if state.accepted > 0 {
            out.push(Action::Fulfil);
        }
        if state.change.is_some() {
            out.push(Action::SetAsCounted);
        }
        if state.refill != Refill::Idle || !Self::is_whole(state) && state.epoch < EPOCH_MAX {
            out.push(Action::Refill);
        }
    }
}

impl Model for Changes {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            total: TOTAL,
            stock: TOTAL,
            accepted: 0,
            orders: 0,
            epoch: 1,
            is_filled: true,
            is_moved: false,
            redis: Redis { epoch: 1, is_open: true, stock: TOTAL, is_moved: false },
            holds: [None; INSTANCES],
            change: None,
            refill: Refill::Idle,
            requests: 4,
            changes: 2,
            losses: 1,
            deaths: 1,
            has_rejected: false,
            has_sold_outside: false,
            has_overtaken: false,
        }]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        self.system_actions(state, out);
        let sells = state.redis.is_open && !state.redis.is_moved && state.redis.stock > 0 && state.requests > 0;
        out.extend((0..INSTANCES).filter(|i| sells && state.holds[*i].is_none()).map(Action::Reserve));
        // There is room for the refill of each change.
        if state.changes > 0 && state.epoch + 1 < EPOCH_MAX {
            out.push(Action::Move);
            let others = (1..=TOTAL + 1).filter(|total| *total != state.total);
            match (self.counted_before_the_lock, state.change) {
                (false, _) => out.extend(others.map(Action::SetTotal)),
                (true, None) => out.extend(others.map(Action::Count)),
                (true, Some(_)) => {}
            }
        }
        if state.deaths > 0 && state.refill != Refill::Idle && state.epoch < EPOCH_MAX {
            out.push(Action::RefillDies);
        }
        if state.losses > 0 && state.epoch < EPOCH_MAX {
            out.push(Action::Lose);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Reserve(i) => {
                state.requests -= 1;
                state.redis.stock -= 1;
                state.holds[i] = Some(before.redis.epoch);
            }
            Action::Commit(i) => {
                if state.holds[i].take() == Some(before.epoch) {
                    state.accepted += 1;
                    state.has_sold_outside |= before.is_moved;
                }
            }
            Action::Fulfil => {
                state.accepted -= 1;
                match before.stock {
                    0 => state.has_rejected = true,
                    _ => (state.stock, state.orders) = (before.stock - 1, before.orders + 1),
                }
            }
            Action::SetTotal(total) => self.set_total(&mut state, total, before.accepted),
            Action::Move => {
                state.is_moved = !before.is_moved;
                self.raise(&mut state);
            }
            Action::Count(total) => state.change = Some((total, before.accepted)),
            Action::SetAsCounted => {
                let (total, accepted) = state.change.take()?;
                if state.changes > 0 && state.epoch < EPOCH_MAX {
                    self.set_total(&mut state, total, accepted);
                }
            }
            Action::Refill => self.refill(&mut state),
            Action::RefillDies => (state.refill, state.deaths) = (Refill::Idle, state.deaths - 1),
            Action::Lose => {
                state.losses -= 1;
                state.redis = Redis { epoch: 0, is_open: false, stock: 0, is_moved: false };
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NOT_OVERSOLD, |_, state: &State| {
                state.accepted + state.orders <= state.total && state.stock + state.orders == state.total
            }),
            Property::always(REJECTED, |_, state: &State| !state.has_rejected),
            Property::always(INSIDE, |_, state: &State| !state.has_sold_outside),
            Property::always(AT_REST, |model: &Self, state: &State| {
                let mut own = Vec::new();
                model.system_actions(state, &mut own);
                let Redis { stock, is_moved, .. } = state.redis;
                let is_same = (stock, is_moved) == (state.stock, state.is_moved);
                !own.is_empty() || !Self::is_whole(state) || is_same
            }),
            Property::sometimes("a change overtakes a purchase in flight", |_, state: &State| state.has_overtaken),
            Property::sometimes("all of a raised stock is sold", |_, state: &State| state.orders > TOTAL),
            Property::sometimes("all of a lowered stock is sold", |_, state: &State| {
                state.total < TOTAL && state.orders == state.total
            }),
            Property::sometimes("a moved sale has come back and sells", |_, state: &State| {
                state.changes == 0 && state.total == TOTAL && !state.is_moved && state.epoch > 2 && state.orders > 0
            }),
        ]
    }
}

explored! {
    changes_refills_and_losses: Changes::default();
}

refuted! {
    changed_without_an_epoch: INSIDE, Changes { same_epoch: true, ..Changes::default() };
    lowered_without_an_epoch: NOT_OVERSOLD, Changes { same_epoch: true, ..Changes::default() };
    accepted_units_forgotten: NOT_OVERSOLD, Changes { accepted_forgotten: true, ..Changes::default() };
    accepted_units_rejected: REJECTED, Changes { accepted_forgotten: true, ..Changes::default() };
    counted_before_the_lock: NOT_OVERSOLD, Changes { counted_before_the_lock: true, ..Changes::default() };
    terms_read_before_the_epoch: INSIDE, Changes { terms_read_first: true, ..Changes::default() };
    change_not_carried: AT_REST, Changes { not_carried: true, ..Changes::default() };
}
