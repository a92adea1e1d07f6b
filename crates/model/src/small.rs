//! Shared by the small models: each explores one rule alone, and finds each broken variant of it.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// Explores all states of a model, and panics at the first violation.
pub fn holds<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Clone + Hash + PartialEq + Send + Sync,
    M::Action: Debug + Clone + PartialEq + Send + Sync,
{
    let checker = model.checker().spawn_bfs().join();
    checker.assert_properties();
    println!("{name}: unique states: {}, no violation", checker.unique_state_count());
}

/// Finds a way in which a broken variant violates the property.
pub fn breaks<M>(name: &str, property: &'static str, model: M)
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
    super::show(path.into_actions());
}
