//! Purchase groups (rules 3 to 7, 11 and 12): the winners of a call share a row, and are settled together. Repeats, the reconciler, and
//! groups that are refused or split write groups of one, with the order's id. So an order may have two records, and counts only once. In
//! the model, `ones` are the groups of one.
//!
//! The model leaves out things that add no step: several groups in one message or transaction (if they cannot be settled together, they are
//! settled one by one), parking, and groups that expire together. Two transactions on one order are two steps: the key of `orders`
//! makes the later one fail and start again.

use super::properties::*;
use super::state::Budget;
use super::variants::{Variant, World};
use super::{explore, refute};

const CALLS_OF_TWO: World = World { batch_max: 2, ..World::NO_FAULTS };

/// Instances die between any two steps, while another instance serves the repeats. PostgreSQL refuses the row of a group.
const CRASHES: World = World {
    budget: Budget { requests: [2, 1, 0], deaths: 1, refused_groups: 1, ..World::NO_FAULTS.budget },
    shows: &[ALL_SOLD, WHOLE, SPLIT, TWO_RECORDS],
    ..CALLS_OF_TWO
};

/// The same, with a commit of unknown outcome, or a late insert of a group.
const UNKNOWN_OUTCOME: World =
    World { budget: Budget { requests: [2, 1, 0], deaths: 1, lost_commits: 1, ..World::NO_FAULTS.budget }, ..CRASHES };

/// Messages arrive twice or never, workers die, a group cannot be settled as a whole, orders are cancelled.
const DELIVERY: World = World {
    budget: Budget {
        requests: [1, 1, 0],
        deaths: 1,
        lost_acks: 1,
        purges: 1,
        poisons: 1,
        cancels: 1,
        ..World::NO_FAULTS.budget
    },
    selling: 1,
    shows: &[WHOLE, SPLIT, TWO_RECORDS, RECORD_OF_ENDED],
    ..CALLS_OF_TWO
};

/// Before the group is settled, any of three orders gets its own row, or ends.
const THREE: World = World {
    total: 3,
    orders: [(0, 1), (0, 1), (1, 1)],
    budget: Budget { requests: [1, 1, 1], cancels: 1, ..World::NO_FAULTS.budget },
    batch_max: 3,
    selling: 1,
    shows: &[ALL_SOLD, WHOLE, SPLIT, TWO_RECORDS, RECORD_OF_ENDED],
    ..World::NO_FAULTS
};

/// Orders are cancelled and their units sold again, before their group's insert arrives or their other record is settled.
const RETURNS: World = World {
    orders: [(0, 1), (1, 1), (2, 1)],
    budget: Budget { requests: [2, 1, 1], cancels: 1, lost_commits: 1, ..World::NO_FAULTS.budget },
    selling: 1,
    shows: &[SOLD_AGAIN, RECORD_OF_ENDED, LATE_GROUP],
    ..CALLS_OF_TWO
};

/// The sale is refilled while groups are pending, and while orders have two records.
const REFILL: World = World {
    total: 3,
    budget: Budget { requests: [1, 1, 0], flushes: 1, cancels: 1, ..World::NO_FAULTS.budget },
    selling: 1,
    shows: &[WHOLE, SPLIT, TWO_RECORDS, RECORD_OF_ENDED],
    ..CALLS_OF_TWO
};

/// The same during the commit of a group, while another buyer asks.
const OVERTAKEN_BY_REFILL: World = World {
    budget: Budget { requests: [1, 1, 1], flushes: 1, lost_commits: 1, ..World::NO_FAULTS.budget },
    shows: &[OVERTAKEN, REFILLED, TWO_RECORDS],
    ..REFILL
};

/// The same, with buyers who ask again after the refill.
const WON_AGAIN: World =
    World { budget: Budget { requests: [2, 2, 0], ..OVERTAKEN_BY_REFILL.budget }, ..OVERTAKEN_BY_REFILL };

#[test]
fn groups_and_crashes() {
    explore("groups and crashes", CRASHES);
}

#[test]
fn groups_of_unknown_outcome() {
    explore("groups of unknown outcome", UNKNOWN_OUTCOME);
}

#[test]
fn groups_and_delivery() {
    explore("groups and delivery", DELIVERY);
}

#[test]
fn groups_of_three() {
    explore("groups of three", THREE);
}

#[test]
fn groups_and_returns() {
    explore("groups and returns", RETURNS);
}

#[test]
fn groups_and_a_refill() {
    explore("groups and a refill", REFILL);
}

#[test]
fn groups_overtaken_by_a_refill() {
    explore("groups overtaken by a refill", OVERTAKEN_BY_REFILL);
}

#[test]
fn groups_won_again_after_a_refill() {
    explore("groups won again after a refill", WON_AGAIN);
}

/// Each test breaks one rule in a sound configuration, and must find a violation.
macro_rules! refuted {
    ($($test:ident: $rule:ident, $property:expr, $world:expr;)*) => {$(
        #[test]
        fn $test() {
            let variant = Variant { $rule: true, ..Variant::NONE };
            refute(stringify!($test), $property, World { variant, ..$world });
        }
    )*};
}

refuted! {
    group_answered_before_commit: answer_before_commit, DURABLE, CRASHES;
    group_reverted_blindly: blind_revert, NOT_OVERSOLD, RETURNS;
    group_without_reconciler: no_reconciler, AT_REST, CRASHES;
    group_not_resent: no_resend, AT_REST, DELIVERY;
    repeat_trusts_the_group: repeat_trusts_the_group, DURABLE, CRASHES;
    group_without_epoch: group_without_epoch, NOT_OVERSOLD, OVERTAKEN_BY_REFILL;
    order_in_two_groups: group_without_epoch, ONE_GROUP, WON_AGAIN;
    confirm_before_commit: confirm_before_commit, AT_REST, CRASHES;
    confirm_after_part: confirm_after_part, AT_REST, CRASHES;
    second_record_makes_again: second_record_makes_again, COUNTED, REFILL;
    second_record_brings_back: second_record_makes_again, STAYS_ENDED, RETURNS;
    second_record_left_open: second_record_left_open, ENDS, DELIVERY;
    group_counts_the_made: group_counts_the_made, COUNTED, REFILL;
    group_never_split: group_never_split, ENDS, DELIVERY;
    settle_part: settle_part, HAS_ORDER, DELIVERY;
    split_without_closing: split_without_closing, AT_REST, DELIVERY;
    split_in_two_transactions: split_in_two_transactions, DURABLE, DELIVERY;
    split_unclaimed: split_unclaimed, DURABLE, DELIVERY;
    refill_forgets_groups: refill_forgets_groups, NOT_OVERSOLD, OVERTAKEN_BY_REFILL;
    refill_counts_twice: refill_counts_twice, REDIS_MATCHES, REFILL;
    refill_counts_the_made: refill_counts_the_made, REDIS_MATCHES, REFILL;
    refill_revives_the_ended: refill_revives_the_ended, REDIS_MATCHES, REFILL;
}
