//! Rules 14 and 15: a wave is distributed to the shards of a sale, each part once per epoch, while the sale is refilled, Redis forgets, and
//! workers die.

use stateright::{Model, Property};

const SHARDS: usize = 2;
/// The part of the wave for each shard.
const PART: u8 = 1;
const EPOCH_MAX: u8 = 4;

const NEVER_TOO_MANY: &str = "Redis never has more units on sale than PostgreSQL";
const AT_REST: &str = "at rest Redis has the units of PostgreSQL";

#[derive(Clone, Copy, Default)]
struct Waves {
    /// The outbox row is done when one shard has answered under the current epoch.
    done_by_one: bool,
    /// This shard applies a wave again.
    not_remembered: Option<usize>,
    /// At this shard, a refill does not write which waves its stock contains.
    refill_forgets: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// PostgreSQL: whether the wave is released, which adds the units and the outbox row; and whether that row is done.
    released: bool,
    done: bool,
    epoch: u8,
    shards: [Shard; SHARDS],
    worker: Worker,
    refill: Refill,
    deaths: u8,
    losses: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Shard {
    epoch: u8,
    open: bool,
    stock: u8,
    applied: bool,
}

/// How many shards have answered, and the lowest of their epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Worker {
    answered: usize,
    lowest: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Refill {
    Idle,
    Raised(u8),
    /// The epoch, whether the snapshot has the wave, and how many shards are filled.
    Filling(u8, bool, usize),
    /// The same, and how many shards are open.
    Opening(u8, bool, usize),
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    /// postgres::sales: the wave's units and its outbox row, in one transaction.
    ReleaseWave,
    /// release_wave.lua at the next shard.
    Apply,
    /// The row is done, if the lowest epoch of the answers is still current.
    Settle,
    WorkerDies,
    /// The next step of a refill. The first stops all shards and raises the epoch, the second reads a snapshot.
    Refill,
    RefillDies,
    Lose(usize),
}

impl Waves {
    fn worker_actions(&self, state: &State, out: &mut Vec<Action>) {
        let answered = state.worker.answered;
        let next_is_open = state.shards.get(answered).is_some_and(|shard| shard.open);
        if state.released && !state.done && next_is_open {
            out.push(Action::Apply);
        }
        if answered == SHARDS || self.done_by_one && answered > 0 {
            out.push(Action::Settle);
        }
        // A refused worker gives up, and begins again.
        if answered > 0 && answered < SHARDS && !next_is_open {
            out.push(Action::WorkerDies);
        }
    }

    fn refill(&self, state: &mut State) {
        state.refill = match state.refill {
            Refill::Idle => {
                state.shards.iter_mut().for_each(|shard| shard.open = false);
                state.epoch += 1;
                Refill::Raised(state.epoch)
            }
            Refill::Raised(epoch) => Refill::Filling(epoch, state.released, 0),
            Refill::Filling(epoch, wave, SHARDS) => Refill::Opening(epoch, wave, 0),
            Refill::Filling(epoch, wave, k) => {
                state.shards[k] = Shard { epoch, ..Shard::default() };
                Refill::Filling(epoch, wave, k + 1)
            }
            Refill::Opening(_, _, SHARDS) => Refill::Idle,
            Refill::Opening(epoch, wave, k) => {
                // A server that has forgotten the refill's data refuses.
                if state.shards[k].epoch == epoch {
                    let applied = wave && self.refill_forgets != Some(k);
                    state.shards[k] = Shard { epoch, open: true, stock: if wave { PART } else { 0 }, applied };
                }
                Refill::Opening(epoch, wave, k + 1)
            }
        };
    }
}

impl Model for Waves {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let shards = [Shard { epoch: 1, open: true, ..Shard::default() }; SHARDS];
        let (worker, refill) = (Worker::default(), Refill::Idle);
        vec![State { released: false, done: false, epoch: 1, shards, worker, refill, deaths: 1, losses: 1 }]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        self.worker_actions(state, out);
        if !state.released {
            out.push(Action::ReleaseWave);
        }
        if state.refill != Refill::Idle || state.epoch < EPOCH_MAX {
            out.push(Action::Refill);
        }
        if state.deaths > 0 && state.worker.answered > 0 {
            out.push(Action::WorkerDies);
        }
        // The last refill survives, and there is time for one after each loss.
        if state.deaths > 0 && state.refill != Refill::Idle && state.epoch < EPOCH_MAX {
            out.push(Action::RefillDies);
        }
        if state.losses > 0 && state.epoch < EPOCH_MAX {
            out.extend((0..SHARDS).map(Action::Lose));
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::ReleaseWave => state.released = true,
            Action::Apply => {
                let (k, worker) = (before.worker.answered, before.worker);
                let shard = &mut state.shards[k];
                if !shard.applied || self.not_remembered == Some(k) {
                    shard.stock += PART;
                    shard.applied = true;
                }
                let lowest = if k == 0 { shard.epoch } else { worker.lowest.min(shard.epoch) };
                state.worker = Worker { answered: k + 1, lowest };
            }
            Action::Settle => {
                let Worker { lowest, .. } = std::mem::take(&mut state.worker);
                state.done |= lowest == state.epoch;
            }
            Action::WorkerDies => {
                state.deaths -= u8::from(state.deaths > 0);
                state.worker = Worker::default();
            }
            Action::Refill => self.refill(&mut state),
            Action::RefillDies => (state.refill, state.deaths) = (Refill::Idle, state.deaths - 1),
            Action::Lose(k) => (state.shards[k], state.losses) = (Shard::default(), state.losses - 1),
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_TOO_MANY, |_, state: &State| {
                state.shards.iter().all(|shard| shard.stock <= if state.released { PART } else { 0 })
            }),
            Property::always(AT_REST, |model: &Self, state: &State| {
                let is_whole = state.shards.iter().all(|shard| shard.open && shard.epoch == state.epoch);
                let has_wave = state.shards.iter().all(|shard| shard.stock == PART);
                let mut own = Vec::new();
                model.worker_actions(state, &mut own);
                let is_settled = if state.done { has_wave } else { !own.is_empty() };
                !state.released || !is_whole || state.refill != Refill::Idle || is_settled
            }),
            Property::sometimes("the wave is on sale after a refill", |_, state: &State| {
                state.done && state.epoch > 1 && state.shards.iter().all(|shard| shard.open && shard.stock == PART)
            }),
        ]
    }
}

explored! {
    waves_of_several_shards: Waves::default();
}

refuted! {
    wave_done_by_one: AT_REST, Waves { done_by_one: true, ..Waves::default() };
    wave_not_remembered: NEVER_TOO_MANY, Waves { not_remembered: Some(0), ..Waves::default() };
    wave_applied_again: NEVER_TOO_MANY, Waves { not_remembered: Some(1), ..Waves::default() };
    refill_forgets_waves: NEVER_TOO_MANY, Waves { refill_forgets: Some(0), ..Waves::default() };
    refill_forgets_waves_of_others: NEVER_TOO_MANY, Waves { refill_forgets: Some(1), ..Waves::default() };
}
