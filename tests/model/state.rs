//! What there is: one Redis server with its memory and its disk, PostgreSQL, the broker, two instances.

pub const ORDERS: usize = 3;
pub const INSTANCES: usize = 2;

/// An order id: a buyer and his idempotency key (rule 1). Repeats of a request have the same one.
pub type Order = usize;
/// 0 is none.
pub type Epoch = u8;
/// A run of a server; 0 is none.
pub type Run = u8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub redis: Server,
    pub ledger: Ledger,
    /// order_placed messages in the broker. A set: what comes twice is delivered, and not acknowledged.
    pub queue: [bool; ORDERS],
    /// Inserts on their way whose sender has given up waiting, with the epoch they name.
    pub late: [Epoch; ORDERS],
    pub tills: [Till; INSTANCES],
    pub guards: [Guard; INSTANCES],
    /// What each instance remembers of "sold out" (rule 13).
    pub memories: [Option<SoldOut>; INSTANCES],
    pub reconciler: Reconciler,
    /// A release that Redis has answered, under this epoch, and that is not settled yet.
    pub releaser: Option<(Order, Epoch)>,
    /// Orders that were answered 202.
    pub answered: [bool; ORDERS],
    pub wrong: Wrong,
    /// What may still happen: it keeps the space finite.
    pub left: Left,
}

/// A Redis server. What is in memory and not on disk is lost when it crashes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub run: Run,
    /// Whether reserve.lua is in the script cache: the fence (rule 10).
    pub loaded: bool,
    pub now: Memory,
    pub disk: Memory,
    /// The run and the script cache of a replica that can be promoted; no part of the protocol's assumptions.
    pub peer: (Run, bool),
}

/// The keys of the sale.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    pub epoch: Epoch,
    pub phase: Phase,
    pub stock: u8,
    /// Units kept aside until no instance can remember "sold out".
    pub returning: u8,
    /// sold_out_until_ms lies ahead.
    pub promised: bool,
    pub tickets: [Ticket; ORDERS],
    pub unconfirmed: [bool; ORDERS],
    /// The list of holders, by order; their buyers are meant.
    pub holders: [bool; ORDERS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    #[default]
    Missing,
    Filling,
    Open,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ticket {
    #[default]
    None,
    Held,
    /// The tombstone.
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    pub epoch: Epoch,
    /// The run that the epoch was filled on.
    pub run: Run,
    pub stock: u8,
    pub purchases: [Purchase; ORDERS],
    pub orders: [Status; ORDERS],
    pub releases: [Release; ORDERS],
}

/// The purchase row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Purchase {
    #[default]
    None,
    Pending,
    Sent,
    Processed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Status {
    #[default]
    None,
    PendingPayment,
    Cancelled,
    Rejected,
}

/// The hold_release row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Release {
    #[default]
    None,
    Pending {
        returns: bool,
    },
    Done,
}

/// Where an instance is with its purchase. It may die between any two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Till {
    #[default]
    Idle,
    /// Redis has answered under this epoch; the row is not written.
    Reserved(Order, Epoch),
    /// The row is committed; the 202 has not left.
    Committed(Order),
    /// The 202 has left; the order waits to be confirmed.
    Answered(Order),
}

/// Where an instance is with its refill. `Run`: the server its connection leads to, which is never replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Guard {
    #[default]
    Idle,
    Closed(Run),
    Raised(Run, Epoch),
    Read(Run, Epoch, Snapshot),
    Begun(Run, Epoch, Snapshot),
    Put(Run, Epoch, Snapshot),
    Opened(Run, Epoch),
    /// It has seen that the server is whole, and is about to load reserve.
    Whole(Run),
}

/// One moment of the ledger, as a refill reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Snapshot {
    pub left: u8,
    pub tickets: [Ticket; ORDERS],
}

/// What an instance knows when it remembers "sold out".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SoldOut {
    pub holders: [bool; ORDERS],
    /// Whether nothing was left when it learnt so: not known to the program, only to the model.
    pub stock_was_0: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reconciler {
    #[default]
    Idle,
    /// Only where it reads in two steps.
    SawEpoch(Epoch),
    Listed(Order, Epoch),
    Inserted(Order),
}

/// Broken promises that are seen in a step and not in a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wrong {
    pub sold_twice: bool,
    pub holder_told_sold_out: bool,
    pub told_sold_out_with_stock: bool,
}

/// How often each misfortune or wish may still come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Left {
    /// Requests of each order's buyer.
    pub asks: [u8; ORDERS],
    pub crashes: u8,
    pub fsyncs: u8,
    pub flushes: u8,
    pub deaths: u8,
    pub unknowns: u8,
    pub unacked: u8,
    pub purges: u8,
    pub cancels: u8,
}
