//! Explores a model completely, or finds how a broken variant of it violates a property.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// Each test explores all states of a model, and fails at a violation.
macro_rules! explored {
    ($($name:ident: $model:expr;)*) => {$(
        #[test]
        fn $name() {
            crate::small::holds(stringify!($name), $model);
        }
    )*};
}

/// Each test explores a broken variant of a sound model, and fails if that does not violate the property.
macro_rules! refuted {
    ($($name:ident: $property:expr, $model:expr;)*) => {$(
        #[test]
        fn $name() {
            crate::small::breaks(stringify!($name), $property, $model);
        }
    )*};
}

pub(crate) fn holds<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Clone + Hash + PartialEq + Send + Sync,
    M::Action: Debug + Clone + PartialEq + Send + Sync,
{
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    checker.assert_properties();
    println!("{name}: unique states: {}, no violation", checker.unique_state_count());
}

pub(crate) fn breaks<M>(name: &str, property: &'static str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Clone + Hash + PartialEq + Send + Sync,
    M::Action: Debug + Clone + PartialEq + Send + Sync,
{
    let checker = model.checker().finish_when(HasDiscoveries::AllOf([property].into())).spawn_bfs().join();
    assert_ne!(checker.model().property(property).expectation, Expectation::Sometimes);
    let Some(path) = checker.discovery(property) else {
        panic!("{name}: not refuted in {} states", checker.unique_state_count());
    };
    println!("{name}: refuted: not \"{property}\"");
    for (step, action) in path.into_actions().into_iter().enumerate() {
        println!("  {:2}. {action:?}", step + 1);
    }
}

/// The model has no action left that changes this state.
pub(crate) fn is_at_rest<M: Model>(model: &M, state: &M::State) -> bool
where
    M::State: PartialEq,
{
    let mut actions = Vec::new();
    model.actions(state, &mut actions);
    actions.into_iter().all(|action| model.next_state(state, action).is_none())
}
