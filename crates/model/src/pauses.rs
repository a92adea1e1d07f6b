//! A pause alone (rule 11): it is set in PostgreSQL first, then in Redis. Meanwhile supervisors set an older status that they have read,
//! and a refill opens the sale with the status that it has read.

use stateright::{Model, Property};

use super::small::is_at_rest;

const CHANGES_MAX: u8 = 3;
const EPOCH_MAX: u8 = 3;
const SUPERVISORS: usize = 2;

const HOLDS: &str = "a pause that is confirmed stays until the sale is resumed";
const AT_REST: &str = "at rest Redis has PostgreSQL's status";

#[derive(Clone, Copy, Default)]
struct Pauses {
    /// set_sale_state.lua does not compare versions.
    version_unchecked: bool,
    /// The refill reads the status before it stops the sale.
    status_read_first: bool,
    /// No supervisor compares the status.
    unsupervised: bool,
}

/// The catalogue's version when the status was read. Even versions are open, odd ones paused.
type Version = u8;

fn is_paused(version: Version) -> bool {
    version % 2 == 1
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    version: Version,
    epoch: u8,
    /// Redis: the epoch, and the version of its status; `None` during a refill.
    redis: (u8, Option<Version>),
    /// A manager's change that is committed but not confirmed by Redis; with the epoch that was read after the commit.
    manager: Option<(u8, Version)>,
    /// The newest version that Redis has confirmed to a manager.
    confirmed: Version,
    supervisors: [Option<(u8, Version)>; SUPERVISORS],
    refill: Refill,
    deaths: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Refill {
    Idle,
    /// Only in the variant that reads the status first.
    Known(Version),
    /// The epoch, and the version of the status that was read.
    Raised(u8, Option<Version>),
    Begun(u8, Option<Version>),
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    /// postgres::sales: pauses or resumes.
    Change,
    /// buying::sale_work::manage reads the epoch again.
    ReadEpoch,
    /// set_sale_state.lua, for the manager. Repeated until Redis has the status.
    Set,
    ManagerDies,
    /// buying::sale_work::refill::supervisor
    Supervise(usize),
    SetAsRead(usize),
    /// The next step of a refill.
    Refill,
}

impl Pauses {
    /// set_sale_state.lua
    fn set(&self, redis: &mut (u8, Option<Version>), epoch: u8, version: Version) -> bool {
        let (held, Some(present)) = *redis else { return false };
        let taken = held == epoch && (version >= present || self.version_unchecked);
        if taken {
            redis.1 = Some(version);
        }
        taken
    }

    /// buying::sale_work::refill: stops the sale and raises the epoch, begins, reads the status, opens.
    fn refill(&self, state: &mut State) {
        state.refill = match state.refill {
            Refill::Idle if self.status_read_first => Refill::Known(state.version),
            Refill::Idle | Refill::Known(_) => {
                let known = if let Refill::Known(version) = state.refill { Some(version) } else { None };
                state.redis.1 = None;
                state.epoch += 1;
                Refill::Raised(state.epoch, known)
            }
            Refill::Raised(epoch, known) => {
                state.redis = (epoch, None);
                Refill::Begun(epoch, known)
            }
            Refill::Begun(epoch, None) => Refill::Begun(epoch, Some(state.version)),
            Refill::Begun(epoch, status) => {
                state.redis = (epoch, status);
                Refill::Idle
            }
        };
    }
}

impl Model for Pauses {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (refill, supervisors) = (Refill::Idle, [None; SUPERVISORS]);
        let redis = (1, Some(0));
        vec![State { version: 0, epoch: 1, redis, manager: None, confirmed: 0, supervisors, refill, deaths: 1 }]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        match state.manager {
            None if state.version < CHANGES_MAX => out.push(Action::Change),
            None => {}
            Some((epoch, _)) => {
                out.push(Action::Set);
                if epoch != state.epoch {
                    out.push(Action::ReadEpoch);
                }
                if state.deaths > 0 {
                    out.push(Action::ManagerDies);
                }
            }
        }
        for (number, read) in state.supervisors.iter().enumerate() {
            match read {
                None if !self.unsupervised && state.redis != (state.epoch, Some(state.version)) => {
                    out.push(Action::Supervise(number));
                }
                None => {}
                Some(_) => out.push(Action::SetAsRead(number)),
            }
        }
        if state.refill != Refill::Idle || state.epoch < EPOCH_MAX {
            out.push(Action::Refill);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Change => {
                state.version += 1;
                state.manager = Some((state.epoch, state.version));
            }
            Action::ReadEpoch => state.manager = before.manager.map(|(_, version)| (before.epoch, version)),
            Action::Set => {
                let (epoch, version) = before.manager?;
                if self.set(&mut state.redis, epoch, version) && epoch == before.epoch {
                    state.confirmed = version;
                    state.manager = None;
                }
            }
            Action::ManagerDies => (state.manager, state.deaths) = (None, state.deaths - 1),
            Action::Supervise(number) => state.supervisors[number] = Some((before.epoch, before.version)),
            Action::SetAsRead(number) => {
                let (epoch, version) = state.supervisors[number].take()?;
                self.set(&mut state.redis, epoch, version);
            }
            Action::Refill => self.refill(&mut state),
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(HOLDS, |_, state: &State| {
                // Confirmed, and the sale was not resumed since.
                let paused = is_paused(state.confirmed) && state.confirmed == state.version;
                !paused || state.redis.1.is_none_or(is_paused)
            }),
            Property::always(AT_REST, |model: &Self, state: &State| {
                !is_at_rest(model, state) || state.redis == (state.epoch, Some(state.version))
            }),
            Property::sometimes("a refill opens a paused sale", |_, state: &State| {
                state.redis.0 > 1 && state.redis.1.is_some_and(is_paused)
            }),
        ]
    }
}

explored! {
    pauses_and_refills: Pauses::default();
}

refuted! {
    version_unchecked: HOLDS, Pauses { version_unchecked: true, ..Pauses::default() };
    status_read_before_the_sale_stops: HOLDS, Pauses { status_read_first: true, ..Pauses::default() };
    status_unsupervised: AT_REST, Pauses { unsupervised: true, ..Pauses::default() };
}
