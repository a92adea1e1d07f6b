//! Rule 14 alone: a wave goes on sale once per epoch, while the sale is refilled, Redis forgets, and workers die.

use stateright::{Model, Property};

use super::small::{breaks, holds};

const BASE: u8 = 1;
const WAVE: u8 = 2;
const EPOCH_MAX: u8 = 4;

const NEVER_TOO_MANY: &str = "Redis never has more units on sale than PostgreSQL";
const AT_REST: &str = "at rest Redis has the units of PostgreSQL";

#[derive(Clone, Copy, Default)]
struct Waves {
    /// A wave that was applied before is applied again.
    not_remembered: bool,
    /// A refill does not write which waves its stock contains.
    refill_forgets: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// PostgreSQL: whether the wave is released, which adds the units and the outbox row; and whether that row is done.
    released: bool,
    done: bool,
    epoch: u8,
    redis: Redis,
    /// A worker has an answer of this epoch, not settled yet.
    answered: Option<u8>,
    refill: Refill,
    deaths: u8,
    flushes: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Redis {
    epoch: u8,
    open: bool,
    stock: u8,
    applied: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Refill {
    Idle,
    Raised(u8),
    /// The epoch, and whether the snapshot has the wave.
    Read(u8, bool),
    Begun(u8, bool),
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    /// ledger::sales: the wave's units and its outbox row, in one transaction.
    ReleaseWave,
    /// release_wave.lua
    Apply,
    /// The row is done, if the epoch of the answer is still current.
    Settle,
    WorkerDies,
    /// The steps of a refill.
    Raise,
    Read,
    Begin,
    Open,
    RefillDies,
    Flush,
}

impl Model for Waves {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let redis = Redis { epoch: 1, open: true, stock: BASE, applied: false };
        let refill = Refill::Idle;
        vec![State { released: false, done: false, epoch: 1, redis, answered: None, refill, deaths: 1, flushes: 1 }]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        if !state.released {
            out.push(Action::ReleaseWave);
        }
        let pending = state.released && !state.done;
        if pending && state.answered.is_none() && state.redis.open {
            out.push(Action::Apply);
        }
        if state.answered.is_some() {
            out.push(Action::Settle);
        }
        match state.refill {
            Refill::Idle if state.epoch < EPOCH_MAX => out.push(Action::Raise),
            Refill::Idle => {}
            Refill::Raised(_) => out.push(Action::Read),
            Refill::Read(..) => out.push(Action::Begin),
            Refill::Begun(..) => out.push(Action::Open),
        }
        if state.deaths > 0 && state.answered.is_some() {
            out.push(Action::WorkerDies);
        }
        // The last refill survives: the sale is refilled in the end.
        if state.deaths > 0 && state.refill != Refill::Idle && state.epoch < EPOCH_MAX {
            out.push(Action::RefillDies);
        }
        // There is also time for a refill after each flush.
        if state.flushes > 0 && state.epoch < EPOCH_MAX {
            out.push(Action::Flush);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::ReleaseWave => state.released = true,
            Action::Apply => {
                if !state.redis.applied || self.not_remembered {
                    state.redis.stock += WAVE;
                    state.redis.applied = true;
                }
                state.answered = Some(state.redis.epoch);
            }
            Action::Settle => {
                let under = state.answered.take();
                state.done |= under == Some(state.epoch);
            }
            Action::WorkerDies => (state.answered, state.deaths) = (None, state.deaths - 1),
            Action::Raise => {
                state.redis.open = false;
                state.epoch += 1;
                state.refill = Refill::Raised(state.epoch);
            }
            Action::Read => {
                let Refill::Raised(epoch) = before.refill else { return None };
                state.refill = Refill::Read(epoch, before.released);
            }
            Action::Begin => {
                let Refill::Read(epoch, wave) = before.refill else { return None };
                state.redis = Redis { epoch, ..Redis::default() };
                state.refill = Refill::Begun(epoch, wave);
            }
            Action::Open => {
                let Refill::Begun(epoch, wave) = before.refill else { return None };
                state.refill = Refill::Idle;
                if before.redis.epoch == epoch {
                    let stock = BASE + if wave { WAVE } else { 0 };
                    state.redis = Redis { epoch, open: true, stock, applied: wave && !self.refill_forgets };
                }
            }
            Action::RefillDies => (state.refill, state.deaths) = (Refill::Idle, state.deaths - 1),
            Action::Flush => (state.redis, state.flushes) = (Redis::default(), state.flushes - 1),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_TOO_MANY, |_, state: &State| {
                state.redis.stock <= BASE + if state.released { WAVE } else { 0 }
            }),
            Property::always(AT_REST, |_, state: &State| {
                let at_rest = state.done && state.refill == Refill::Idle && state.redis.open;
                !at_rest || state.redis.epoch != state.epoch || state.redis.stock == BASE + WAVE
            }),
            Property::sometimes("the wave is on sale after a refill", |_, state: &State| {
                state.done && state.redis.open && state.redis.epoch > 1 && state.redis.stock == BASE + WAVE
            }),
        ]
    }
}

#[test]
fn waves_and_refills() {
    holds("waves", Waves::default());
}

#[test]
fn wave_not_remembered() {
    breaks("wave not remembered", NEVER_TOO_MANY, Waves { not_remembered: true, ..Waves::default() });
}

#[test]
fn refill_forgets_waves() {
    breaks("refill forgets waves", NEVER_TOO_MANY, Waves { refill_forgets: true, ..Waves::default() });
}
