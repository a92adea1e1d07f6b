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

#[macro_use]
mod small;

mod actions;
mod changes;
mod clocks;
mod configurations;
mod groups;
mod histories;
mod ledger;
mod lua_histories;
mod orders;
mod pauses;
mod properties;
mod purchase_steps;
mod redis;
mod refill;
mod several_sales;
mod shards;
mod state;
mod steps;
mod variants;
mod waves;

use std::collections::BTreeSet;

use stateright::{Checker, Model};

use configurations::*;
use properties::*;
use state::Budget;
use variants::{Variant::*, World};

explored! {
    crashes: CRASHES;
    delivery: DELIVERY;
    memory_lost_and_two_refills: TWO_REFILLS;
    memory_lost_twice: LOST_TWICE;
    demoted_and_promoted_again: TAKEN_OVER;
    demoted_and_promoted_again_in_a_refill: TAKEN_OVER_IN_A_REFILL;
    two_masters_and_a_returned_unit: TWO_MASTERS_RETURNS;
    new_ids_without_loss: NEW_IDS;
    keys_flushed: FLUSHED;
    returns_and_repeats: RETURNS;
    returns_and_memory_lost: RETURNS_LOST;
    returns_and_memory_lost_twice: RETURNS_LOST_TWICE;
    sold_out_remembered: SOLD_OUT_CACHED;
    sold_out_remembered_across_a_refill: SOLD_OUT_CACHED_REFILL;
}

refuted! {
    answer_before_commit: DURABLE, CRASHES.with(AnswerBeforeCommit);
    blind_revert: NOT_OVERSOLD, CRASHES.with(BlindRevert);
    no_resend: AT_REST, DELIVERY.with(NoResend);
    release_without_tombstone: SOLD_TWICE, RETURNS.with(ReleaseWithoutTombstone);
    release_done_under_any_epoch: REDIS_MATCHES, TWO_MASTERS_RETURNS.with(ReleaseDoneUnderAnyEpoch);
    id_unchecked: NOT_OVERSOLD, LOST_TWICE.with(IdUnchecked);
    memory_unchecked: NOT_OVERSOLD, TAKEN_OVER.with(MemoryUnchecked);
    refill_without_epoch: NOT_OVERSOLD, TWO_REFILLS.with(RefillWithoutEpoch);
    no_reconciler: AT_REST, CRASHES.with(NoReconciler);
    opens_what_was_lost: REDIS_MATCHES, TAKEN_OVER_IN_A_REFILL.with(OpensWhatWasLost);
    reconcile_in_two_reads: NOT_OVERSOLD, TWO_MASTERS.with(ReconcileInTwoReads);
    sold_out_for_too_many: SOLD_OUT, SOLD_OUT_CACHED.with(SoldOutForTooMany);
    return_at_once: HOLDER, SOLD_OUT_CACHED.with(ReturnAtOnce);
    open_before_memories_lapse: HOLDER, SOLD_OUT_CACHED_REFILL.with(OpenBeforeMemoriesLapse);
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
    let checker = TWO_MASTERS.checker().spawn_bfs().join();
    let discovered: BTreeSet<&str> = checker.discoveries().into_keys().collect();
    assert_eq!(discovered, [HOLDER, OVERTAKEN, REFILLED].into());
}
