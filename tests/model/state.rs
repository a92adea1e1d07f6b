//! The state of the model: one Redis server with its memory and its disk, PostgreSQL, the broker, two instances.

pub const ORDERS: usize = 3;
pub const INSTANCES: usize = 2;

/// An order id stands for a buyer and an idempotency key (rule 1). Repeats of a request have the same id.
pub type Order = usize;
/// 0 is none.
pub type Epoch = u8;
/// A run of a server; 0 is none.
pub type Run = u8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub redis: Server,
    pub ledger: Ledger,
    /// order_placed messages in the broker. A message that comes twice is one that was delivered and not acknowledged.
    pub queue: [bool; ORDERS],
    /// Inserts whose sender waits no longer, by the epoch that they name.
    pub late_inserts: [Epoch; ORDERS],
    pub requests: [PurchaseStep; INSTANCES],
    pub refills: [RefillStep; INSTANCES],
    /// What each instance has cached of "sold out" (rule 13).
    pub sold_out_caches: [Option<SoldOutCache>; INSTANCES],
    pub reconciler: Reconciler,
    /// A release that Redis has answered under this epoch, and that is not settled yet.
    pub releaser: Option<(Order, Epoch)>,
    /// Orders whose buyer has a 202.
    pub accepted: [bool; ORDERS],
    pub violations: Violations,
    /// How much may still happen. It keeps the number of states finite.
    pub budget: Budget,
}

/// A Redis server. A crash loses what is in memory and not on disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub run: Run,
    /// Whether reserve.lua is in the script cache: the fence (rule 10).
    pub loaded: bool,
    pub now: SaleKeys,
    pub disk: SaleKeys,
    /// The run of a replica that can be promoted, and whether its script cache has reserve.lua. Only a broken variant uses it.
    pub replica: (Run, bool),
}

/// What Redis knows of the sale.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SaleKeys {
    pub epoch: Epoch,
    pub phase: Phase,
    pub stock: u8,
    /// Units kept aside until no instance can have "sold out" cached.
    pub returning: u8,
    /// `sold_out_until_ms` lies ahead: some instance may have "sold out" cached.
    pub sold_out_granted: bool,
    pub tickets: [Ticket; ORDERS],
    pub unconfirmed: [bool; ORDERS],
    /// The list of holders, each named by an order of that buyer.
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
    /// The run on which the epoch was filled.
    pub run: Run,
    pub stock: u8,
    pub purchase_rows: [PurchaseRow; ORDERS],
    pub orders: [Status; ORDERS],
    pub releases: [Release; ORDERS],
}

/// The purchase row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PurchaseRow {
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

/// How far an instance is with its purchase. It may die between any two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PurchaseStep {
    #[default]
    Idle,
    /// Redis has answered under this epoch. The row is not written.
    Reserved(Order, Epoch),
    /// The row is committed. The 202 has not left.
    Committed(Order),
    /// The 202 has left. The order is not confirmed.
    Accepted(Order),
}

/// How far an instance is with its refill. `Run` is the server run that its connection leads to, and never another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RefillStep {
    #[default]
    Idle,
    Closed(Run),
    Raised(Run, Epoch),
    Read(Run, Epoch, Snapshot),
    Begun(Run, Epoch, Snapshot),
    Put(Run, Epoch, Snapshot),
    Opened(Run, Epoch),
    /// The instance has seen that the server is complete, and is about to load reserve.lua.
    Complete(Run),
}

/// One moment of PostgreSQL, as a refill reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Snapshot {
    pub units_left: u8,
    pub tickets: [Ticket; ORDERS],
}

/// What an instance caches with "sold out".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SoldOutCache {
    pub holders: [bool; ORDERS],
    /// Whether the stock was 0 at that moment. Only the model knows this, not the program.
    pub stock_was_0: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reconciler {
    #[default]
    Idle,
    /// Only in the variant that reads in two calls.
    ReadEpoch(Epoch),
    Listed(Order, Epoch),
    Inserted(Order),
}

/// Broken promises that show in a step and not in a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Violations {
    pub sold_twice: bool,
    pub sold_out_to_holder: bool,
    pub sold_out_with_stock: bool,
}

/// How often each request or fault may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Requests for each order.
    pub requests: [u8; ORDERS],
    pub crashes: u8,
    pub fsyncs: u8,
    pub flushes: u8,
    pub deaths: u8,
    pub lost_commits: u8,
    pub lost_acks: u8,
    pub purges: u8,
    pub cancels: u8,
}
