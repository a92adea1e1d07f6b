//! Rule 15: a sale with several shards (docs/shards.md). Buyers whose home shard is empty borrow from others, while requests and
//! workers die, questions arrive late, shards forget and are refilled, units come back, and "sold out" is remembered.
//!
//! One call serves one buyer, every buyer asks for one unit, and a record is an order at once: groups, fulfilment, late inserts, two
//! refills at once and old memories are in the model of one shard, and nothing of them differs here.

mod actions;
mod histories;
mod properties;
mod scripts;
mod state;
mod steps;

use stateright::{Model, Property};

use super::small::{breaks, holds};
use actions::Action;
use properties::*;
use state::{
    BUYERS, Budget, Ledger, ORDERS, Order, Phase, Reconciler, Refill, Releaser, SHARDS, Shard, State, THREADS, Thread,
    buyer,
};

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
    /// Whether shards say for how long they are empty. Without that nobody hears "sold out", but 503.
    knows_empty: bool,
    broken: Option<Variant>,
    shows: &'static [&'static str],
}

/// Each breaks one part of the rule. Docs/shards.md has the holes that they open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    AnyShardServes,
    HoldBeforeLoan,
    RepeatTakes,
    RepeatBelievesTheLoan,
    GoesOnAfterSilence,
    TakenBackUnbarred,
    TakesBackAnyNumber,
    MovesAnyNumber,
    LoanNotCounted,
    LoanCountsAsPurchase,
    SoldOutAtHome,
    ZerosOfDifferentMoments,
    KnownEmptyAndSells,
    AwayCountsAsEmpty,
    ZerosOfTwoEpochs,
    LendsAtAnyEpoch,
    MemoryWithoutLoans,
    HomeRemembersFirst,
    ReleaseForgetsTheHolder,
    RecordNamesHome,
    ReleasedAtLenderAlone,
    ReleasedAtHomeAlone,
    ReleasedAtAnyEpoch,
    RefillsOneShard,
    WholeStockToEach,
    RefillForgetsHomes,
    RefillForgetsLentHolds,
    OpensWhileRemembered,
    NoLoanReconciler,
    LoansLeftOpen,
}

impl World {
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
            ledger: Ledger { epoch: 1, orders: Default::default(), releases: Default::default() },
            threads: [Thread::default(); THREADS],
            late: None,
            old_masters: [None; SHARDS],
            reconciler: Reconciler::Idle,
            releaser: Releaser::Idle,
            refill: Refill::Idle,
            accepted: [false; ORDERS],
            violations: Default::default(),
            shown_sold_out: false,
            budget: self.budget,
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

/// Orders end, their units come back at a lender that has refused before, and requests are repeated.
const RETURNS: World = World {
    budget: Budget { requests: [2, 0, 1], cancels: 1, ..NO_FAULTS.budget },
    stock: [0, 1, 1],
    shows: &[BORROWED, SECOND_LENDER],
    ..NO_FAULTS
};

/// The same with workers that die, and with one unit, which is sold again.
const RETURNS_AND_DEATHS: World = World {
    budget: Budget { requests: [1, 0, 1], cancels: 1, deaths: 1, ..NO_FAULTS.budget },
    shows: &[BORROWED, SOLD_AGAIN],
    ..NO_FAULTS
};

/// The same where the first buyer's home shard has the unit.
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

/// The same with an order that ends, a refill that dies, and a master that goes on after its replica was promoted.
const REFILLS_AND_RETURNS: World = World {
    shards: 2,
    stock: [0, 1, 0],
    budget: Budget { requests: [1, 0, 1], losses: 1, splits: 1, cancels: 1, deaths: 1, ..NO_FAULTS.budget },
    max_epoch: 3,
    shows: &[BORROWED, SOLD_AGAIN, REFILLED],
    ..NO_FAULTS
};

/// Buyers hear "sold out", while a unit comes back at one of three shards.
const SOLD_OUT_SAID: World = World {
    knows_empty: true,
    budget: Budget { requests: [1, 0, 1], cancels: 1, ..NO_FAULTS.budget },
    shows: &[BORROWED, SAID, SOLD_AGAIN],
    ..NO_FAULTS
};

/// Buyers of two homes hear it from memory, too.
const SOLD_OUT_REMEMBERED: World = World {
    shards: 2,
    stock: [0, 1, 0],
    knows_empty: true,
    budget: Budget { requests: [1, 2, 2], ..NO_FAULTS.budget },
    shows: &[SAID, REMEMBERED],
    ..NO_FAULTS
};

/// The same of one home.
const SOLD_OUT_AT_ONE_HOME: World = World {
    homes: [0, 0],
    budget: Budget { requests: [2, 0, 2], cancels: 1, ..NO_FAULTS.budget },
    shows: &[SAID, REMEMBERED, SOLD_AGAIN],
    ..SOLD_OUT_REMEMBERED
};

/// A loan ends before it was closed.
const SOLD_OUT_AND_RETURNS: World =
    World { budget: Budget { requests: [2, 2, 1], cancels: 1, ..NO_FAULTS.budget }, ..SOLD_OUT_REMEMBERED };

/// The same across a refill.
const SOLD_OUT_AND_REFILLS: World = World {
    budget: Budget { requests: [1, 0, 3], losses: 1, ..NO_FAULTS.budget },
    max_epoch: 2,
    shows: &[SAID, REMEMBERED, REFILLED],
    ..SOLD_OUT_REMEMBERED
};

macro_rules! explored {
    ($($name:ident: $world:expr;)*) => {$(
        #[test]
        fn $name() {
            holds(stringify!($name), $world);
        }
    )*};
}

/// Each test breaks one part of the rule in a configuration that holds, and must find a violation.
macro_rules! refuted {
    ($($name:ident: $variant:ident, $property:expr, $world:expr;)*) => {$(
        #[test]
        fn $name() {
            let world = World { broken: Some(Variant::$variant), shows: &[], ..$world };
            breaks(stringify!($name), $property, world);
        }
    )*};
}

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
    any_shard_serves: AnyShardServes, LIMIT, TWO_KEYS;
    hold_before_loan: HoldBeforeLoan, ONE_HOLD, DEATHS;
    repeat_takes: RepeatTakes, ONE_HOLD, RETURNS;
    repeat_believes_the_loan: RepeatBelievesTheLoan, NOT_OVERSOLD, REFILLS;
    goes_on_after_silence: GoesOnAfterSilence, ONE_HOLD, DEATHS;
    taken_back_unbarred: TakenBackUnbarred, ONE_HOLD, DEATHS;
    takes_back_any_number: TakesBackAnyNumber, NAMED, DEATHS;
    moves_any_number: MovesAnyNumber, NAMED, DEATHS;
    loan_not_counted: LoanNotCounted, LIMIT, TWO_KEYS;
    loan_counts_as_purchase: LoanCountsAsPurchase, AT_LIMIT, TWO_KEYS;
    sold_out_at_home: SoldOutAtHome, SOLD_OUT, SOLD_OUT_SAID;
    zeros_of_different_moments: ZerosOfDifferentMoments, SOLD_OUT, SOLD_OUT_SAID;
    known_empty_and_sells: KnownEmptyAndSells, SOLD_OUT, SOLD_OUT_SAID;
    away_counts_as_empty: AwayCountsAsEmpty, SOLD_OUT, SOLD_OUT_AND_REFILLS;
    zeros_of_two_epochs: ZerosOfTwoEpochs, SOLD_OUT, SOLD_OUT_AND_REFILLS;
    lends_at_any_epoch: LendsAtAnyEpoch, NAMED, REFILLS;
    memory_without_loans: MemoryWithoutLoans, HOLDER, SOLD_OUT_REMEMBERED;
    home_remembers_first: HomeRemembersFirst, HOLDER, SOLD_OUT_AT_ONE_HOME;
    release_forgets_the_holder: ReleaseForgetsTheHolder, HOLDER, SOLD_OUT_AND_RETURNS;
    record_names_home: RecordNamesHome, MATCHES, RETURNS;
    released_at_lender_alone: ReleasedAtLenderAlone, AT_REST, RETURNS;
    released_at_home_alone: ReleasedAtHomeAlone, MATCHES, RETURNS;
    released_at_any_epoch: ReleasedAtAnyEpoch, MATCHES, REFILLS_AND_RETURNS;
    refills_one_shard: RefillsOneShard, NOT_OVERSOLD, REFILLS;
    whole_stock_to_each: WholeStockToEach, NOT_OVERSOLD, REFILLS;
    refill_forgets_homes: RefillForgetsHomes, LIMIT, World { stock: [0, 2, 0], ..REFILLS };
    refill_forgets_lent_holds: RefillForgetsLentHolds, MATCHES, REFILLS_AND_RETURNS;
    opens_while_remembered: OpensWhileRemembered, SOLD_OUT, SOLD_OUT_AND_REFILLS;
    no_loan_reconciler: NoLoanReconciler, AT_REST, DEATHS;
    loans_left_open: LoansLeftOpen, AT_REST, DEATHS;
}
