//! Purchase groups (rules 3 to 7, 11 and 12): the winners of a call share a row, and are settled together. Repeats, the reconciler, and
//! groups that are refused or split write groups of one, with the order's id. So an order may have two records, and counts only once.
//!
//! The model leaves out things that add no step: several groups in one message or transaction (if they cannot be settled together, they are
//! settled one by one), parking, and groups that expire together. Two transactions on one order are two steps: the key of `orders`
//! makes the later one fail and start again.

use super::properties::*;
use super::state::Budget;
use super::variants::{Variant::*, World};

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

explored! {
    groups_and_crashes: CRASHES;
    groups_of_unknown_outcome: UNKNOWN_OUTCOME;
    groups_and_delivery: DELIVERY;
    groups_of_three: THREE;
    groups_and_returns: RETURNS;
    groups_and_a_refill: REFILL;
    groups_overtaken_by_a_refill: OVERTAKEN_BY_REFILL;
    groups_won_again_after_a_refill: WON_AGAIN;
}

refuted! {
    group_answered_before_commit: DURABLE, CRASHES.with(AnswerBeforeCommit);
    group_reverted_blindly: NOT_OVERSOLD, RETURNS.with(BlindRevert);
    group_without_reconciler: AT_REST, CRASHES.with(NoReconciler);
    group_not_resent: AT_REST, DELIVERY.with(NoResend);
    repeat_trusts_the_group: DURABLE, CRASHES.with(RepeatTrustsTheGroup);
    group_without_epoch: NOT_OVERSOLD, OVERTAKEN_BY_REFILL.with(GroupWithoutEpoch);
    order_in_two_groups: ONE_GROUP, WON_AGAIN.with(GroupWithoutEpoch);
    confirm_before_commit: AT_REST, CRASHES.with(ConfirmBeforeCommit);
    confirm_after_part: AT_REST, CRASHES.with(ConfirmAfterPart);
    second_record_makes_again: COUNTED, REFILL.with(SecondRecordMakesAgain);
    second_record_brings_back: STAYS_ENDED, RETURNS.with(SecondRecordMakesAgain);
    second_record_left_open: ENDS, DELIVERY.with(SecondRecordLeftOpen);
    group_counts_the_made: COUNTED, REFILL.with(GroupCountsTheMade);
    group_never_split: ENDS, DELIVERY.with(GroupNeverSplit);
    settle_part: HAS_ORDER, DELIVERY.with(SettlePart);
    split_without_closing: AT_REST, DELIVERY.with(SplitWithoutClosing);
    split_in_two_transactions: DURABLE, DELIVERY.with(SplitInTwoTransactions);
    split_unclaimed: DURABLE, DELIVERY.with(SplitUnclaimed);
    refill_forgets_groups: NOT_OVERSOLD, OVERTAKEN_BY_REFILL.with(RefillForgetsGroups);
    refill_counts_twice: REDIS_MATCHES, REFILL.with(RefillCountsTwice);
    refill_counts_the_made: REDIS_MATCHES, REFILL.with(RefillCountsTheMade);
    refill_revives_the_ended: REDIS_MATCHES, REFILL.with(RefillRevivesTheEnded);
}
