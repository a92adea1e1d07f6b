//! Rules 14 and 15: a wave is distributed to the shards of a sale, each part once per epoch, while the sale is refilled and workers die.

use stateright::{Model, Property};

use super::small::{breaks, holds};

const SHARDS: usize = 2;
/// The part of the wave for each shard.
const PART: u8 = 1;
const EPOCH_MAX: u8 = 3;

const NEVER_TOO_MANY: &str = "the shards never have more units on sale than PostgreSQL";
const AT_REST: &str = "at rest the shards have the units of PostgreSQL";

#[derive(Clone, Copy, Default)]
struct Waves {
    /// The row is done when one shard has answered under the current epoch.
    done_by_one: bool,
    /// Only the first shard remembers the wave: the others apply it again.
    applied_again: bool,
    /// A refill writes the wave, which its stock contains, only at the first shard.
    refill_forgets_others: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// PostgreSQL: whether the wave is released, and whether its row is done.
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
    /// The epoch, whether the snapshot has the wave, and how many shards are filled and open.
    Read(u8, bool, usize),
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    ReleaseWave,
    /// release_wave.lua at the next shard.
    Apply,
    Settle,
    WorkerDies,
    /// All shards are stopped, the epoch rises, and a snapshot is read.
    Refill,
    /// The next shard is filled and opened.
    Open,
    RefillDies,
    Lose(usize),
}

impl Waves {
    fn is_whole(state: &State) -> bool {
        state.shards.iter().all(|shard| shard.open && shard.epoch == state.epoch)
    }

    fn own_actions(&self, state: &State, out: &mut Vec<Action>) {
        let Worker { answered, .. } = state.worker;
        let is_pending = state.released && !state.done;
        if is_pending && answered < SHARDS && state.shards[answered].open {
            out.push(Action::Apply);
        }
        if answered == SHARDS || self.done_by_one && answered > 0 {
            out.push(Action::Settle);
        }
        match state.refill {
            Refill::Idle if !Self::is_whole(state) && state.epoch < EPOCH_MAX => out.push(Action::Refill),
            Refill::Idle => {}
            Refill::Read(..) => out.push(Action::Open),
        }
        // A refused worker gives up, and begins again.
        if answered > 0 && answered < SHARDS && !state.shards[answered].open {
            out.push(Action::WorkerDies);
        }
    }
}

impl Model for Waves {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let shard = Shard { epoch: 1, open: true, ..Shard::default() };
        let (shards, worker, refill) = ([shard; SHARDS], Worker::default(), Refill::Idle);
        vec![State { released: false, done: false, epoch: 1, shards, worker, refill, deaths: 1, losses: 1 }]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        self.own_actions(state, out);
        if !state.released {
            out.push(Action::ReleaseWave);
        }
        if state.deaths > 0 && state.worker.answered > 0 {
            out.push(Action::WorkerDies);
        }
        // The last refill survives, and there is one after each loss.
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
                let (k, worker) = (state.worker.answered, &mut state.worker);
                let shard = &mut state.shards[k];
                if !shard.applied || self.applied_again && k > 0 {
                    shard.stock += PART;
                    shard.applied = true;
                }
                let lowest = if k == 0 { shard.epoch } else { worker.lowest.min(shard.epoch) };
                *worker = Worker { answered: k + 1, lowest };
            }
            Action::Settle => {
                let Worker { lowest, .. } = std::mem::take(&mut state.worker);
                state.done |= lowest == state.epoch;
            }
            Action::WorkerDies => {
                state.deaths -= u8::from(state.deaths > 0);
                state.worker = Worker::default();
            }
            Action::Refill => {
                state.shards.iter_mut().for_each(|shard| shard.open = false);
                state.epoch += 1;
                state.refill = Refill::Read(state.epoch, state.released, 0);
            }
            Action::Open => {
                let Refill::Read(epoch, wave, k) = before.refill else { return None };
                let applied = wave && !(self.refill_forgets_others && k > 0);
                state.shards[k] = Shard { epoch, open: true, stock: if wave { PART } else { 0 }, applied };
                state.refill = if k + 1 < SHARDS { Refill::Read(epoch, wave, k + 1) } else { Refill::Idle };
            }
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
                let mut own = Vec::new();
                model.own_actions(state, &mut own);
                let is_at_rest = own.is_empty() && state.released && Self::is_whole(state);
                !is_at_rest || state.done && state.shards.iter().all(|shard| shard.stock == PART)
            }),
            Property::sometimes("the wave is on sale after a refill", |_, state: &State| {
                state.done && state.epoch > 1 && state.shards.iter().all(|shard| shard.open && shard.stock == PART)
            }),
        ]
    }
}

#[test]
fn waves_of_several_shards() {
    holds("waves of several shards", Waves::default());
}

#[test]
fn wave_done_by_one() {
    breaks("wave done by one", AT_REST, Waves { done_by_one: true, ..Waves::default() });
}

#[test]
fn wave_applied_again() {
    breaks("wave applied again", NEVER_TOO_MANY, Waves { applied_again: true, ..Waves::default() });
}

#[test]
fn refill_forgets_waves_of_others() {
    let waves = Waves { refill_forgets_others: true, ..Waves::default() };
    breaks("refill forgets waves of others", NEVER_TOO_MANY, waves);
}
