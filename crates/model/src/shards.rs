//! Rule 15: a sale with several shards. Buyers whose home shard is empty borrow from other shards. Meanwhile requests and workers die,
//! questions arrive late, shards forget and are refilled, units return, and "sold out" is remembered.
//!
//! One call serves one buyer, every buyer asks for one unit, and a record is an order at once. The model of one shard covers groups,
//! fulfilment, late inserts, concurrent refills and old memories: these are the same here.

mod actions;
mod histories;
mod properties;
mod scripts;
mod state;
mod steps;

use stateright::{Model, Property};

use Variant::*;
use actions::Action;
use properties::*;
use state::{BUYERS, Budget, Ledger, Order, Phase, SHARDS, Shard, State, buyer};

/// The model: a sale, its bounds, and a variant of the protocol.
#[derive(Clone, Debug)]
struct World {
    shards: usize,
    /// Units of each shard at the start.
    stock: [u8; SHARDS],
    /// The home shard of each buyer.
    homes: [usize; BUYERS],
    budget: Budget,
    max_epoch: u8,
    /// Whether shards say how long they are empty. Otherwise the answer is 503 instead of "sold out".
    knows_empty: bool,
    broken: Option<Variant>,
    shows: &'static [&'static str],
}

/// Each variant omits one part of the rule. Its comment names the hole, then the part that closes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// A buyer sends two keys to two shards, and each finds the limit unused. Rule: one home, by a hash of the buyer.
    AnyShardServes,
    /// The lender is asked first, the process dies, and the repeat finds units elsewhere. Rule: the loan is written first.
    HoldBeforeLoan,
    /// A repeat meets an open loan and asks for units while the first request moves on. Rule: a repeat takes nothing.
    RepeatTakes,
    /// A repeat commits an open loan. Rule: only a hold earns a record.
    RepeatBelievesTheLoan,
    /// After silence the request asks the next lender, and the first question arrives late. Rule: the request ends.
    GoesOnAfterSilence,
    /// The reconciler takes back a loan without a hold, and the question arrives later. Rule: it bars the number first.
    TakenBackUnbarred,
    /// The reconciler takes back a loan that its owner has moved. Rule: only under the number that it barred.
    TakesBackAnyNumber,
    /// A slow owner moves a loan that was taken back and that a repeat wrote again. Rule: only under its own number.
    MovesAnyNumber,
    /// A buyer with an open loan buys with another key. Rule: other purchases of this buyer are 503.
    LoanNotCounted,
    /// Such a buyer hears "already purchased", and the loan is taken back. Rule: units count when the loan is closed.
    LoanCountsAsPurchase,
    /// An empty home shard says "sold out". Rule: all shards have said 0.
    SoldOutAtHome,
    /// Each shard said 0, at different moments. Rule: known empty until a set time, and all these times overlap.
    ZerosOfDifferentMoments,
    /// A shard that is known to be empty sells a returned unit. Rule: returned units stay aside until that time.
    KnownEmptyAndSells,
    /// A lender that is being refilled counts as empty. Rule: only an answer of 0 counts.
    AwayCountsAsEmpty,
    /// A 0 of the old epoch and one of the new are combined. Rule: an epoch's knowledge ends with it.
    ZerosOfTwoEpochs,
    /// The lender answers under a newer epoch, whose snapshot sells the unit again. Rule: `lend.lua` refuses another epoch.
    LendsAtAnyEpoch,
    /// A buyer with a lent hold hears "sold out" from memory. Rule: buyers with open loans are listed with the holders.
    MemoryWithoutLoans,
    /// The home shard lists its holders before a lender lends its last unit. Rule: the home shard is asked last.
    HomeRemembersFirst,
    /// An order ends while its loan is open, and its buyer is no holder. Rule: its release adds the holder, as closing does.
    ReleaseForgetsTheHolder,
    /// The record names the home shard, and the release finds no hold there. Rule: it names the shard that holds.
    RecordNamesHome,
    /// The loan stays, and the buyer stays at the limit. Rule: a release ends both.
    ReleasedAtLenderAlone,
    /// The hold stays, and the unit is lost. Rule: a release ends both.
    ReleasedAtHomeAlone,
    /// A lender's old master answers the release. Rule: the lowest epoch of both answers must be the current one.
    ReleasedAtAnyEpoch,
    /// One shard is refilled from a total that the others go on selling. Rule: all shards, under one epoch.
    RefillsOneShard,
    /// The refill gives each shard all units that are left. Rule: they are dealt out.
    WholeStockToEach,
    /// Tickets are written only where the units are, and the home shard sells again. Rule: at the home shard too.
    RefillForgetsHomes,
    /// Tickets are written only at home, and the release finds no lent hold. Rule: at the lender too.
    RefillForgetsLentHolds,
    /// The sale opens while a thread remembers "sold out" of the old epoch. Rule: the refill waits (rule 13).
    OpensWhileRemembered,
    /// Open loans of dead processes stay, and their buyers hear 503 to the end. Rule: the reconciler ends them.
    NoLoanReconciler,
    /// The process that would close the loan of a durable purchase dies. Rule: the reconciler closes it, by the record.
    LoansLeftOpen,
}

impl World {
    fn with(self, variant: Variant) -> Self {
        Self { broken: Some(variant), shows: &[], ..self }
    }

    fn is(&self, variant: Variant) -> bool {
        self.broken == Some(variant)
    }

    fn home(&self, order: Order) -> usize {
        self.homes[buyer(order)]
    }

    fn total(&self) -> u8 {
        self.stock.iter().sum()
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let open = |k: usize| Shard { epoch: 1, phase: Phase::Open, stock: self.stock[k], ..Shard::default() };
        vec![State {
            shards: std::array::from_fn(|k| if k < self.shards { open(k) } else { Shard::default() }),
            ledger: Ledger { epoch: 1, ..Ledger::default() },
            budget: self.budget,
            ..State::default()
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.system_actions(state, actions);
        self.outside_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        self.apply(&mut s, action);
        s.threads.sort_unstable();
        (s != *last).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
    }
}

const NO_FAULTS: World = World {
    shards: 3,
    stock: [0, 0, 1],
    homes: [0, 1],
    budget: Budget { requests: [1, 0, 1], deaths: 0, silences: 0, losses: 0, splits: 0, cancels: 0 },
    max_epoch: 1,
    knows_empty: false,
    broken: None,
    shows: &[],
};

/// Requests and workers die between any two steps, questions arrive late, and requests are repeated.
const DEATHS: World = World {
    budget: Budget { requests: [2, 0, 1], deaths: 1, silences: 1, ..NO_FAULTS.budget },
    stock: [0, 1, 1],
    shows: &[BORROWED, SECOND_LENDER, TAKEN_BACK, FOUND],
    ..NO_FAULTS
};

/// Two keys of one buyer and another buyer, who both borrow.
const TWO_KEYS: World = World {
    budget: Budget { requests: [1, 1, 1], silences: 1, ..NO_FAULTS.budget },
    stock: [0, 1, 1],
    shows: &[BORROWED, SECOND_LENDER],
    ..NO_FAULTS
};

/// Orders end, their units return at a lender that has refused before, and requests are repeated.
const RETURNS: World = World {
    budget: Budget { requests: [2, 0, 1], cancels: 1, ..NO_FAULTS.budget },
    stock: [0, 1, 1],
    shows: &[BORROWED, SECOND_LENDER],
    ..NO_FAULTS
};

/// The same, with workers that die, and with one unit, which is sold again.
const RETURNS_AND_DEATHS: World = World {
    budget: Budget { requests: [1, 0, 1], cancels: 1, deaths: 1, ..NO_FAULTS.budget },
    shows: &[BORROWED, SOLD_AGAIN],
    ..NO_FAULTS
};

/// The same, but the first buyer's home shard has the unit.
const RETURNS_AT_HOME: World = World {
    shards: 2,
    stock: [1, 0, 0],
    homes: [0, 0],
    budget: Budget { requests: [2, 0, 1], cancels: 1, silences: 1, ..NO_FAULTS.budget },
    shows: &[SOLD_AGAIN, HOME_AGAIN],
    ..NO_FAULTS
};

/// A shard forgets, and all are refilled while buyers borrow.
const REFILLS: World = World {
    shards: 2,
    stock: [0, 1, 0],
    budget: Budget { requests: [2, 1, 1], losses: 1, silences: 1, ..NO_FAULTS.budget },
    max_epoch: 2,
    shows: &[BORROWED, REFILLED],
    ..NO_FAULTS
};

/// The same, with an order that ends, a refill that dies, and a master that keeps running after its replica was promoted.
const REFILLS_AND_RETURNS: World = World {
    shards: 2,
    stock: [0, 1, 0],
    budget: Budget { requests: [1, 0, 1], losses: 1, splits: 1, cancels: 1, deaths: 1, ..NO_FAULTS.budget },
    max_epoch: 3,
    shows: &[BORROWED, SOLD_AGAIN, REFILLED],
    ..NO_FAULTS
};

/// Buyers get "sold out" while a unit returns at one of three shards.
const SOLD_OUT_SAID: World = World {
    knows_empty: true,
    budget: Budget { requests: [1, 0, 1], cancels: 1, ..NO_FAULTS.budget },
    shows: &[BORROWED, SAID, SOLD_AGAIN],
    ..NO_FAULTS
};

/// Buyers of two homes get it from memory, too.
const SOLD_OUT_REMEMBERED: World = World {
    shards: 2,
    stock: [0, 1, 0],
    knows_empty: true,
    budget: Budget { requests: [1, 2, 2], ..NO_FAULTS.budget },
    shows: &[SAID, REMEMBERED],
    ..NO_FAULTS
};

/// The same, with one home.
const SOLD_OUT_AT_ONE_HOME: World = World {
    homes: [0, 0],
    budget: Budget { requests: [2, 0, 2], cancels: 1, ..NO_FAULTS.budget },
    shows: &[SAID, REMEMBERED, SOLD_AGAIN],
    ..SOLD_OUT_REMEMBERED
};

/// A loan ends before it is closed.
const SOLD_OUT_AND_RETURNS: World =
    World { budget: Budget { requests: [2, 2, 1], cancels: 1, ..NO_FAULTS.budget }, ..SOLD_OUT_REMEMBERED };

/// The same across a refill.
const SOLD_OUT_AND_REFILLS: World = World {
    budget: Budget { requests: [1, 0, 3], losses: 1, ..NO_FAULTS.budget },
    max_epoch: 2,
    shows: &[SAID, REMEMBERED, REFILLED],
    ..SOLD_OUT_REMEMBERED
};

explored! {
    loans_and_deaths: DEATHS;
    loans_of_two_keys: TWO_KEYS;
    loans_and_returns: RETURNS;
    loans_returns_and_deaths: RETURNS_AND_DEATHS;
    loans_and_returns_at_home: RETURNS_AT_HOME;
    loans_and_refills: REFILLS;
    loans_refills_and_returns: REFILLS_AND_RETURNS;
    sold_out_of_all_shards: SOLD_OUT_SAID;
    sold_out_remembered_of_all_shards: SOLD_OUT_REMEMBERED;
    sold_out_at_one_home: SOLD_OUT_AT_ONE_HOME;
    sold_out_and_returns: SOLD_OUT_AND_RETURNS;
    sold_out_and_refills: SOLD_OUT_AND_REFILLS;
}

refuted! {
    any_shard_serves: LIMIT, TWO_KEYS.with(AnyShardServes);
    hold_before_loan: ONE_HOLD, DEATHS.with(HoldBeforeLoan);
    repeat_takes: ONE_HOLD, RETURNS.with(RepeatTakes);
    repeat_believes_the_loan: NOT_OVERSOLD, REFILLS.with(RepeatBelievesTheLoan);
    goes_on_after_silence: ONE_HOLD, DEATHS.with(GoesOnAfterSilence);
    taken_back_unbarred: ONE_HOLD, DEATHS.with(TakenBackUnbarred);
    takes_back_any_number: NAMED, DEATHS.with(TakesBackAnyNumber);
    moves_any_number: NAMED, DEATHS.with(MovesAnyNumber);
    loan_not_counted: LIMIT, TWO_KEYS.with(LoanNotCounted);
    loan_counts_as_purchase: AT_LIMIT, TWO_KEYS.with(LoanCountsAsPurchase);
    sold_out_at_home: SOLD_OUT, SOLD_OUT_SAID.with(SoldOutAtHome);
    zeros_of_different_moments: SOLD_OUT, SOLD_OUT_SAID.with(ZerosOfDifferentMoments);
    known_empty_and_sells: SOLD_OUT, SOLD_OUT_SAID.with(KnownEmptyAndSells);
    away_counts_as_empty: SOLD_OUT, SOLD_OUT_AND_REFILLS.with(AwayCountsAsEmpty);
    zeros_of_two_epochs: SOLD_OUT, SOLD_OUT_AND_REFILLS.with(ZerosOfTwoEpochs);
    lends_at_any_epoch: NAMED, REFILLS.with(LendsAtAnyEpoch);
    memory_without_loans: HOLDER, SOLD_OUT_REMEMBERED.with(MemoryWithoutLoans);
    home_remembers_first: HOLDER, SOLD_OUT_AT_ONE_HOME.with(HomeRemembersFirst);
    release_forgets_the_holder: HOLDER, SOLD_OUT_AND_RETURNS.with(ReleaseForgetsTheHolder);
    record_names_home: MATCHES, RETURNS.with(RecordNamesHome);
    released_at_lender_alone: AT_REST, RETURNS.with(ReleasedAtLenderAlone);
    released_at_home_alone: MATCHES, RETURNS.with(ReleasedAtHomeAlone);
    released_at_any_epoch: MATCHES, REFILLS_AND_RETURNS.with(ReleasedAtAnyEpoch);
    refills_one_shard: NOT_OVERSOLD, REFILLS.with(RefillsOneShard);
    whole_stock_to_each: NOT_OVERSOLD, REFILLS.with(WholeStockToEach);
    refill_forgets_homes: LIMIT, World { stock: [0, 2, 0], ..REFILLS }.with(RefillForgetsHomes);
    refill_forgets_lent_holds: MATCHES, REFILLS_AND_RETURNS.with(RefillForgetsLentHolds);
    opens_while_remembered: SOLD_OUT, SOLD_OUT_AND_REFILLS.with(OpensWhileRemembered);
    no_loan_reconciler: AT_REST, DEATHS.with(NoLoanReconciler);
    loans_left_open: AT_REST, DEATHS.with(LoansLeftOpen);
}
