//! The purchase protocol, modelled: every interleaving within bounds, and no promise broken.
//!
//! Left out: shards, waves, money, windows, limits of requests, unlimited stock, batches (one purchase at a time), and a
//! PostgreSQL that forgets. Scripts and transactions are atomic here because they are there. The refill's lock is left
//! out on purpose: the protocol has to hold without it. Of time there is only the order of things.
//!
//! `cargo test --test model -- --nocapture` prints the number of states of each configuration, and for each broken
//! variant the steps by which it fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

mod actions;
mod ledger;
mod properties;
mod redis;
mod refill;
mod sales;
mod state;
mod steps;
mod variants;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use actions::Action;
use properties::*;
use sales::*;
use state::Left;
use variants::{Shop, Variant};

fn explore(name: &str, shop: Shop) {
    let began = Instant::now();
    let checker = shop.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
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

/// Finds the shortest way to break a promise.
fn refute(name: &str, property: &'static str, shop: Shop) {
    let shop = Shop { shows: &[], ..shop };
    let mut shortest: Option<(Vec<Action>, usize)> = None;
    loop {
        let finish = HasDiscoveries::AllOf([property].into());
        let checker = shop.clone().checker().finish_when(finish);
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

fn show(actions: Vec<Action>) {
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
    explore("memory lost and two refills", TWO_GUARDS);
}

#[test]
fn memory_lost_twice() {
    explore("memory lost twice", LOST_TWICE);
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
    explore("sold out remembered", MEMORY);
}

#[test]
fn sold_out_remembered_across_a_refill() {
    explore("sold out remembered across a refill", MEMORY_REFILLED);
}

/// No variant is right: the same configuration, one rule broken.
macro_rules! refuted {
    ($($rule:ident: $property:expr, $shop:expr;)*) => {$(
        #[test]
        fn $rule() {
            let variant = Variant { $rule: true, ..Variant::NONE };
            refute(stringify!($rule), $property, Shop { variant, ..$shop });
        }
    )*};
}

refuted! {
    answer_before_commit: DURABLE, CRASHES;
    blind_revert: PROMISED, CRASHES;
    no_resend: AT_REST, DELIVERY;
    release_without_tombstone: SOLD_TWICE, RETURNS;
    release_done_under_any_epoch: BOOKS, RETURNS_LOST_TWICE;
    load_on_demand: PROMISED, LOST_TWICE;
    promoted_with_cache: PROMISED, LOST_TWICE;
    refill_without_epoch: PROMISED, TWO_GUARDS;
    no_reconciler: AT_REST, CRASHES;
    reconcile_in_two_reads: PROMISED, LOST_TWICE;
    sold_out_for_too_many: SOLD_OUT, MEMORY;
    return_at_once: HOLDER, MEMORY;
    open_before_memories_lapse: HOLDER, MEMORY_REFILLED;
}

/// What the protocol does not promise. A refill that is overtaken, and then meets a server that was flushed once more,
/// opens an epoch older than the ledger's. Nothing is sold there, but until the guard looks, its refusals are answers.
#[test]
fn known_an_older_epoch_opened_after_a_second_flush() {
    let shop = Shop { left: Left { asks: [2, 1, 0], ..FLUSHED.left }, shows: &[], ..FLUSHED };
    refute("an older epoch opened after a second flush", HOLDER, shop.clone());
    let checker = shop.checker().spawn_bfs().join();
    let broken: Vec<_> = checker.discoveries().into_keys().collect();
    assert_eq!(broken, [HOLDER]);
}
