//! A model of the purchase protocol (docs/protocol.md): a search of every interleaving within bounds, for broken promises.
//!
//! The model leaves out money, windows, limits of requests, unlimited stock, and a PostgreSQL that loses data. Shards, waves, pauses,
//! clocks, and several sales on one server have their own models. A call to Redis serves one buyer. Only in `groups` it serves several,
//! whose purchases are committed as a group. `lua_histories` compares the model's scripts with the real ones. A script or a transaction is
//! one step, because Redis and PostgreSQL make it atomic. The refill lock is left out on purpose: the protocol must hold without it.
//! Time exists only as the order of steps.
//!
//! `cargo test -p seckill-model -- --nocapture` prints the number of states of each configuration, and the steps by which each
//! broken variant fails.

#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

mod actions;
mod clocks;
mod configurations;
mod group_steps;
mod groups;
mod ledger;
mod lua_histories;
mod orders;
mod pauses;
mod properties;
mod purchase_steps;
mod redis;
mod refill;
mod several_sales;
mod shard_waves;
mod shards;
mod small;
mod state;
mod steps;
mod variants;
mod waves;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use actions::Action;
use configurations::*;
use properties::*;
use state::Budget;
use variants::{Variant, World};

fn explore(name: &str, world: World) {
    let began = Instant::now();
    let checker = world.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (states, took) = (checker.unique_state_count(), began.elapsed());
    for (property, path) in checker.discoveries() {
        if checker.model().property(property).expectation.discovery_is_failure() {
            show(path.clone().into_actions());
            panic!("{name}: not \"{property}\" in {:#?}", path.last_state());
        }
    }
    checker.assert_properties();
    println!("{name}: unique states: {states}, no violation, {took:.1?}");
}

/// Finds the shortest path on which this variant breaks the property.
fn refute(name: &str, property: &'static str, world: World) {
    let world = World { shows: &[], ..world };
    let mut shortest: Option<(Vec<Action>, usize)> = None;
    loop {
        let finish = HasDiscoveries::AllOf([property].into());
        let checker = world.clone().checker().finish_when(finish);
        let checker = match &shortest {
            Some((actions, _)) => checker.target_max_depth(actions.len() + 1).spawn_bfs().join(),
            None => checker.spawn_bfs().join(),
        };
        let states = checker.unique_state_count();
        match (checker.discovery(property), &shortest) {
            (Some(path), _) => shortest = Some((path.into_actions(), states)),
            (None, Some(_)) => break,
            (None, None) => panic!("{name}: not refuted in {states} states"),
        }
    }
    if let Some((actions, states)) = shortest {
        println!("{name}: refuted after {states} states: not \"{property}\"");
        show(actions);
    }
}

fn show<A: std::fmt::Debug>(actions: Vec<A>) {
    for (step, action) in actions.into_iter().enumerate() {
        println!("  {:2}. {action:?}", step + 1);
    }
}

#[test]
fn crashes() {
    explore("crashes", CRASHES);
}

#[test]
fn delivery() {
    explore("delivery", DELIVERY);
}

#[test]
fn memory_lost_and_two_refills() {
    explore("memory lost and two refills", TWO_REFILLS);
}

#[test]
fn memory_lost_twice() {
    explore("memory lost twice", LOST_TWICE);
}

#[test]
fn demoted_and_promoted_again() {
    explore("demoted and promoted again", TAKEN_OVER);
}

#[test]
fn demoted_and_promoted_again_in_a_refill() {
    explore("demoted and promoted again in a refill", TAKEN_OVER_IN_A_REFILL);
}

#[test]
fn two_masters_and_a_returned_unit() {
    explore("two masters and a returned unit", World { shows: &[OVERTAKEN], ..TWO_MASTERS_RETURNS });
}

#[test]
fn new_ids_without_loss() {
    explore("new ids without loss", NEW_IDS);
}

#[test]
fn keys_flushed() {
    explore("keys flushed", FLUSHED);
}

#[test]
fn returns_and_repeats() {
    explore("returns and repeats", RETURNS);
}

#[test]
fn returns_and_memory_lost() {
    explore("returns and memory lost", RETURNS_LOST);
}

#[test]
fn returns_and_memory_lost_twice() {
    explore("returns and memory lost twice", RETURNS_LOST_TWICE);
}

#[test]
fn sold_out_remembered() {
    explore("sold out remembered", SOLD_OUT_CACHED);
}

#[test]
fn sold_out_remembered_across_a_refill() {
    explore("sold out remembered across a refill", SOLD_OUT_CACHED_REFILL);
}

/// Each test breaks one rule in a sound configuration, and must find a violation.
macro_rules! refuted {
    ($($rule:ident: $property:expr, $world:expr;)*) => {$(
        #[test]
        fn $rule() {
            let variant = Variant { $rule: true, ..Variant::NONE };
            refute(stringify!($rule), $property, World { variant, ..$world });
        }
    )*};
}

refuted! {
    answer_before_commit: DURABLE, CRASHES;
    blind_revert: NOT_OVERSOLD, CRASHES;
    no_resend: AT_REST, DELIVERY;
    release_without_tombstone: SOLD_TWICE, RETURNS;
    release_done_under_any_epoch: REDIS_MATCHES, TWO_MASTERS_RETURNS;
    id_unchecked: NOT_OVERSOLD, LOST_TWICE;
    memory_unchecked: NOT_OVERSOLD, TAKEN_OVER;
    refill_without_epoch: NOT_OVERSOLD, TWO_REFILLS;
    no_reconciler: AT_REST, CRASHES;
    opens_what_was_lost: REDIS_MATCHES, TAKEN_OVER_IN_A_REFILL;
    reconcile_in_two_reads: NOT_OVERSOLD, TWO_MASTERS;
    sold_out_for_too_many: SOLD_OUT, SOLD_OUT_CACHED;
    return_at_once: HOLDER, SOLD_OUT_CACHED;
    open_before_memories_lapse: HOLDER, SOLD_OUT_CACHED_REFILL;
}

/// A refill is overtaken by another one, and then meets a server that was flushed again. It opens nothing, because it cannot record its
/// run.
#[test]
fn no_older_epoch_opens_after_a_second_flush() {
    let world = World { budget: Budget { requests: [2, 1, 0], ..FLUSHED.budget }, shows: &[], ..FLUSHED };
    let checker = world.checker().spawn_bfs().join();
    assert_eq!(checker.discoveries().into_keys().collect::<Vec<_>>(), [""; 0]);
}

/// Shows the cost of two masters: they never sell a unit twice or lose a winner. But a buyer of one master may get "sold out" from the
/// other, until the refill supervisor there looks again.
#[test]
fn known_two_masters_until_the_supervisor_looks() {
    refute("two masters", HOLDER, TWO_MASTERS);
    let checker = TWO_MASTERS.checker().spawn_bfs().join();
    println!("two masters: unique states: {}", checker.unique_state_count());
    let broken: Vec<_> = checker
        .discoveries()
        .into_keys()
        .filter(|property| checker.model().property(property).expectation.discovery_is_failure())
        .collect();
    assert_eq!(broken, [HOLDER]);
    for shown in TWO_MASTERS.shows {
        assert!(checker.discovery(shown).is_some(), "{shown}");
    }
}
