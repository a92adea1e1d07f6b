//! The state of the model of shards: the shards of one sale, PostgreSQL, two selling threads, and the workers.

pub(crate) use super::super::orders::Order;
pub(crate) use super::super::state::{Epoch, Phase};

pub(crate) const SHARDS: usize = 3;
pub(crate) const BUYERS: usize = 2;
/// Order ids. The first two are two keys of one buyer, the third is the other buyer's. Each asks for one unit, and a buyer may have one.
pub(crate) const ORDERS: usize = 3;
pub(crate) const THREADS: usize = 2;

/// The number of a loan, which rises with each loan of a home shard.
pub(crate) type Number = u8;

pub(crate) const fn buyer(order: Order) -> usize {
    order / 2
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub shards: [Shard; SHARDS],
    pub ledger: Ledger,
    /// Sorted: the threads are interchangeable.
    pub threads: [Thread; THREADS],
    /// A question to a lender whose sender has given up.
    pub late: Option<Loan>,
    /// The epoch at which an old master of a shard is still open, beside the present master.
    pub old_masters: [Option<Epoch>; SHARDS],
    pub reconciler: Reconciler,
    pub releaser: Releaser,
    pub refill: Refill,
    /// Orders whose buyer has a 202.
    pub accepted: [bool; ORDERS],
    pub violations: Violations,
    /// Whether any buyer got "sold out", from Redis or from memory.
    pub shown_sold_out: bool,
    pub budget: Budget,
}

/// Redis's data of one shard. A server that has lost its memory is `Missing`: rule 10 and its own model show that no server sells from
/// an old memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Shard {
    pub epoch: Epoch,
    pub phase: Phase,
    /// Units for sale. If the shard does not sell: its units before, or after.
    pub stock: u8,
    /// Returned units, held back while a thread may consider the shard empty.
    pub aside: u8,
    /// Whether a thread may do so.
    pub granted: bool,
    pub tickets: [Ticket; ORDERS],
    pub unconfirmed: [bool; ORDERS],
    pub holders: [bool; BUYERS],
    pub number: Number,
}

/// A ticket of a buyer at one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Ticket {
    #[default]
    None,
    /// At home: units of the home shard.
    Held,
    /// At home: an open loan.
    Open { lender: usize, number: Number },
    /// At home: a closed loan.
    Closed { lender: usize },
    /// At the lender: its units.
    Lent { number: Number },
    /// At the lender: nothing will ever be held under this number or an earlier one.
    Barred { number: Number },
    /// The tombstone.
    Ended,
}

impl Ticket {
    pub(crate) const fn is_hold(self) -> bool {
        matches!(self, Self::Held | Self::Lent { .. })
    }
}

/// A loan, as its users know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Loan {
    pub order: Order,
    pub lender: usize,
    pub number: Number,
    pub epoch: Epoch,
}

/// Units that a caller found held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Hold {
    pub order: Order,
    pub shard: usize,
    pub epoch: Epoch,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ledger {
    pub epoch: Epoch,
    /// The record of a purchase, or its order: the shard that it names, and whether it has ended.
    pub orders: [Status; ORDERS],
    pub releases: [Release; ORDERS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Status {
    #[default]
    None,
    Live(usize),
    Ended(usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Release {
    #[default]
    None,
    Pending,
    Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Thread {
    pub step: Step,
    /// The epoch under which each shard is known to be empty.
    pub empty: [Option<Epoch>; SHARDS],
    /// Per home shard: "sold out" is remembered for all buyers but these.
    pub sold_out: [Option<[bool; BUYERS]>; SHARDS],
}

/// The step of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Step {
    #[default]
    Idle,
    /// The loan is written, and the lender will be asked. With the lenders that have refused this request.
    Borrowing(Loan, Refused),
    /// The lender has said no.
    Refused(Loan, Refused),
    /// Only a broken variant: the lender holds units, and the home shard does not know it.
    LentFirst(Hold),
    /// A repeat has met an open loan.
    Looking(Loan),
    /// Redis holds units.
    Held(Hold),
    /// The record is committed and the 202 is sent; nothing is confirmed.
    Answered(Hold),
    /// The lender has confirmed; the home shard has not closed the loan.
    Confirmed(Order),
}

/// The shards that have refused a request.
pub(crate) type Refused = [bool; SHARDS];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Reconciler {
    #[default]
    Idle,
    FoundHold(Hold),
    FoundLoan(Loan),
    /// The number is barred.
    Barred(Loan),
    /// A record is durable.
    Durable(Hold),
    /// The loan of a durable purchase must still be closed.
    ToClose(Order),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Releaser {
    #[default]
    Idle,
    /// The shard of the record has answered under this epoch; the home shard has not been asked.
    AtHome(Order, Epoch),
    /// All have answered: the lowest and the highest epoch.
    Answered(Order, Epoch, Epoch),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Refill {
    #[default]
    Idle,
    /// This many shards are stopped.
    Stopping(usize),
    /// This many shards have the tickets of this snapshot.
    Filling(Snapshot, usize),
    /// This many shards are open.
    Opening(Snapshot, usize),
}

/// One moment of PostgreSQL, as a refill reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Snapshot {
    pub epoch: Epoch,
    pub shares: [u8; SHARDS],
    pub orders: [Status; ORDERS],
    /// Only a broken variant: the one shard that is refilled.
    pub only: Option<usize>,
}

/// Broken promises that are visible in a step and not in a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Violations {
    pub sold_out_with_units: bool,
    pub sold_out_to_holder: bool,
    pub at_limit_with_nothing: bool,
    pub sold_twice: bool,
}

/// How often each request or fault may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub requests: [u8; ORDERS],
    pub deaths: u8,
    pub silences: u8,
    pub losses: u8,
    /// How many of the forgetting servers keep running beside their promoted replicas.
    pub splits: u8,
    pub cancels: u8,
}

impl State {
    pub(crate) fn serves(&self, shard: usize) -> bool {
        self.shards[shard].phase == Phase::Open
    }

    /// Small configurations use fewer shards: the others never open.
    pub(crate) fn is_whole(&self, shards: usize) -> bool {
        (0..shards).all(|shard| self.serves(shard) && self.shards[shard].epoch == self.ledger.epoch)
    }

    /// Whether units are held under this order id, at an open shard of the current epoch.
    pub(crate) fn is_held(&self, order: Order) -> bool {
        let holds = |shard: &Shard| shard.phase == Phase::Open && shard.tickets[order].is_hold();
        self.shards.iter().any(|shard| shard.epoch == self.ledger.epoch && holds(shard))
    }

    pub(crate) fn has_record(&self, order: Order) -> bool {
        self.ledger.orders[order] != Status::None
    }
}

impl Ledger {
    pub(crate) fn is_live(&self, order: Order) -> bool {
        matches!(self.orders[order], Status::Live(_))
    }

    pub(crate) fn live(&self) -> u8 {
        (0..ORDERS).map(|order| u8::from(self.is_live(order))).sum()
    }

    /// Rule 3: a record is inserted at its epoch or not at all. Returns whether it is durable.
    pub(crate) fn insert(&mut self, hold: Hold) -> bool {
        let agreed = hold.epoch == self.epoch;
        if agreed && self.orders[hold.order] == Status::None {
            self.orders[hold.order] = Status::Live(hold.shard);
        }
        agreed
    }
}
