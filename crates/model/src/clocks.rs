//! Rule 13 when clocks are set: a returned unit is not sold while an instance may remember "sold out", and not much later. Time is in
//! ticks. PostgreSQL's clock is the real time; Redis's clock is wrong by its setting.

use stateright::{Model, Property};

/// How long an instance remembers "sold out".
const MEMORY: i8 = 2;
/// sale_begin.lua, `CLOCK_OFF`.
const CLOCK_OFF: i8 = 2;
const END: i8 = 9;
const OFFSETS: [i8; 7] = [-6, -2, -1, 0, 1, 2, 6];

const NOT_TOO_EARLY: &str = "no unit is sold while an instance remembers that there are none";
const NOT_TOO_LATE: &str = "a unit is sold soon after";

#[derive(Clone, Copy, Default)]
struct Clocks {
    /// Redis's clock alone decides when a unit returns.
    redis_alone: bool,
    /// The memory is granted by the sale's clock, and not by the later one of both clocks.
    granted_by_one: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    now: i8,
    /// The error of Redis's clock.
    off: i8,
    /// The sale's fields clock_ms and sold_out_until_ms.
    clock: i8,
    sold_out_until: i8,
    /// returning_at_ms, while a unit is held back.
    returning_at: Option<i8>,
    /// Until when an instance remembers "sold out", by its own clock, which is never set.
    remembered_until: i8,
    granted: bool,
    returned: bool,
    too_early: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Tick,
    SetRedisClock(i8),
    /// reserve.lua finds no unit, and allows an instance to remember that.
    Grant,
    /// release.lua holds a unit back.
    Release,
    /// reserve.lua puts the unit on sale.
    Return,
}

impl Clocks {
    /// sale_begin.lua, `sale_clock`: the sale's clock, and its earliest possible value.
    fn sale_clock(&self, state: &State) -> (i8, i8) {
        let redis = state.now + state.off;
        let now = if (redis - state.now).abs() > CLOCK_OFF && !self.redis_alone { state.now } else { redis };
        let earliest = if self.redis_alone { now.max(state.clock) } else { now.min(state.now) };
        (now.max(state.clock), earliest)
    }

    fn may_return(&self, state: &State) -> bool {
        state.returning_at.is_some_and(|at| self.sale_clock(state).1 >= at)
    }
}

impl Model for Clocks {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        if state.now < END {
            out.push(Action::Tick);
        }
        out.extend(OFFSETS.into_iter().filter(|off| *off != state.off).map(Action::SetRedisClock));
        if !state.granted {
            out.push(Action::Grant);
        } else if state.returning_at.is_none() && !state.returned {
            out.push(Action::Release);
        }
        if self.may_return(state) {
            out.push(Action::Return);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let (clock, _) = self.sale_clock(before);
        match action {
            Action::Tick => state.now += 1,
            Action::SetRedisClock(off) => state.off = off,
            Action::Grant => {
                let from = if self.granted_by_one || self.redis_alone { clock } else { clock.max(before.now) };
                state.clock = clock;
                state.sold_out_until = from + MEMORY;
                state.remembered_until = before.now + MEMORY;
                state.granted = true;
            }
            Action::Release => state.returning_at = Some(before.sold_out_until),
            Action::Return => {
                (state.returning_at, state.returned, state.clock) = (None, true, clock);
                state.too_early = before.now < before.remembered_until;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NOT_TOO_EARLY, |_, state: &State| !state.too_early),
            // For any setting of Redis's clock: both it and the sale's clock may be wrong by CLOCK_OFF.
            Property::always(NOT_TOO_LATE, |model: &Self, state: &State| {
                let due = state.remembered_until + 2 * CLOCK_OFF;
                state.returning_at.is_none() || state.now < due || model.may_return(state)
            }),
            Property::sometimes("a unit is sold again", |_, state: &State| state.returned),
        ]
    }
}

explored! {
    redis_clock_is_set_while_units_come_back: Clocks::default();
}

refuted! {
    return_by_redis_clock_alone: NOT_TOO_EARLY, Clocks { redis_alone: true, ..Clocks::default() };
    memory_granted_by_one_clock: NOT_TOO_EARLY, Clocks { granted_by_one: true, ..Clocks::default() };
}
