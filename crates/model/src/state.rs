//! The state of the model: Redis servers with memory and disk, PostgreSQL, the broker, two instances.

use std::collections::BTreeSet;

use super::orders::{ORDERS, Order, Orders};

/// Rows of purchase_groups with several members. No order is in two groups, so three orders make at most one group; broken variants make a
/// second one.
pub(crate) const GROUPS: usize = 2;
/// Rows of the outbox: those of the groups of one, by order, and then those of the larger groups.
pub(crate) const ROWS: usize = ORDERS + GROUPS;
pub(crate) const INSTANCES: usize = 2;
/// Redis servers that may believe to be the master.
pub(crate) const MASTERS: usize = 2;

/// 0 means none.
pub(crate) type Epoch = u8;
/// A run of a server; 0 means none.
pub(crate) type Run = u8;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The second server appears when a replica is promoted while the first keeps running. From then on instance 1 uses it.
    pub redis: [Server; MASTERS],
    pub ledger: Ledger,
    /// Messages in the broker, by their outbox rows. A duplicate is a message that was delivered and not acknowledged.
    pub queue: [bool; ROWS],
    /// Inserts of groups in flight whose sender has given up, with the epoch that they name.
    pub late_inserts: BTreeSet<(Orders, Epoch)>,
    pub requests: [PurchaseStep; INSTANCES],
    pub refills: [RefillStep; INSTANCES],
    /// The "sold out" cache of each instance (rule 13).
    pub sold_out_caches: [Option<SoldOutCache>; INSTANCES],
    pub reconciler: Reconciler,
    pub splitter: Splitter,
    /// A release that Redis has answered under this epoch, not settled yet.
    pub releaser: Option<(Order, Epoch)>,
    /// Orders whose buyer has a 202.
    pub accepted: [bool; ORDERS],
    pub violations: Violations,
    /// The remaining faults and requests. It keeps the number of states finite.
    pub budget: Budget,
}

impl State {
    /// The server that an instance uses.
    pub(crate) fn master_of(&self, instance: usize) -> usize {
        usize::from(instance == 1 && self.redis[1].run != 0)
    }

    /// The servers that exist.
    pub(crate) fn masters(&self) -> impl Iterator<Item = usize> + use<> {
        0..1 + usize::from(self.redis[1].run != 0)
    }
}

/// A Redis server. A crash loses the data that is only in memory. A lagging replica has the same data as the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    /// 0: the server does not exist.
    pub run: Run,
    /// The replication id: it changes at each start and promotion, and sometimes without any loss.
    pub replid: u8,
    /// Whether the second replication id is set. A promotion sets it; a new id without loss clears it.
    pub second: bool,
    /// How many times this run has read another server's memory.
    pub read: u8,
    pub now: SaleKeys,
    pub disk: SaleKeys,
}

/// The server's identity as begin_refill.lua records it: replid and server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    pub replid: u8,
    pub run: Run,
    pub read: u8,
}

/// The sale's keys in Redis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SaleKeys {
    pub epoch: Epoch,
    pub phase: Phase,
    pub stamp: Stamp,
    pub stock: u8,
    /// Units held back until no instance can have "sold out" cached.
    pub returning: u8,
    /// `sold_out_until_ms` is in the future: some instance may have "sold out" cached.
    pub sold_out_granted: bool,
    pub tickets: [Ticket; ORDERS],
    pub unconfirmed: [bool; ORDERS],
    /// The list of holders; an order of each buyer represents the buyer.
    pub holders: [bool; ORDERS],
    /// Orders that were not paid in time (rule 17). Only the histories of crates/model/src/lua_histories.rs have such orders.
    pub lapsed: [bool; ORDERS],
    /// A key was deleted or evicted: nothing is served until a refill. For purchases this equals a sale that is closed for a refill, so
    /// only those histories lose keys.
    pub is_key_lost: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    #[default]
    Missing,
    Filling,
    Open,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Ticket {
    #[default]
    None,
    Held,
    /// The tombstone.
    Ended,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ledger {
    pub epoch: Epoch,
    /// The run on which the epoch was filled.
    pub run: Run,
    pub stock: u8,
    /// The buyers' counters: the units of each buyer.
    pub counted: [u8; ORDERS],
    pub outbox: [OutboxRow; ROWS],
    pub groups: [GroupRow; GROUPS],
    pub orders: [Status; ORDERS],
    pub releases: [Release; ORDERS],
}

/// The outbox row of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum OutboxRow {
    #[default]
    None,
    Pending,
    Sent,
    Processed,
}

/// A row of purchase_groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct GroupRow {
    pub members: Orders,
    pub status: GroupStatus,
}

/// `settled_at` and `was_split` of a group, as one status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum GroupStatus {
    /// The row does not exist.
    #[default]
    None,
    Open,
    /// Its orders were made as a whole.
    Settled,
    /// Its orders have groups of one instead.
    Split,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Status {
    #[default]
    None,
    PendingPayment,
    Cancelled,
    Rejected,
}

/// The hold_release row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Release {
    #[default]
    None,
    Pending {
        returns: bool,
    },
    Done,
}

/// The step of an instance with the purchases of a call to Redis. It may die between any two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum PurchaseStep {
    #[default]
    Idle,
    /// Redis has answered under this epoch, and nothing is written yet: for the winners of this call, and for repeats of requests whose
    /// hold is not confirmed.
    Reserved { won: Orders, repeated: Orders, epoch: Epoch },
    /// The group's row was refused. Each order becomes a group of one: `left` are pending, `done` are written.
    OneByOne { left: Orders, done: Orders, epoch: Epoch },
    /// The records are committed. The 202s are not sent yet.
    Committed(Orders),
    /// The 202s are sent. The orders are not confirmed yet.
    Accepted(Orders),
}

/// The step of an instance's refill. `Run` is the server run of its connection, which never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum RefillStep {
    #[default]
    Idle,
    Closed(Run),
    Raised(Run, Epoch),
    Read(Run, Epoch, Snapshot),
    Begun(Run, Epoch, Snapshot),
    Put(Run, Epoch, Snapshot),
    Recorded(Run, Epoch, Snapshot),
}

/// One moment of PostgreSQL, as a refill reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Snapshot {
    pub units_left: u8,
    pub tickets: [Ticket; ORDERS],
}

/// An instance's cached "sold out".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SoldOutCache {
    pub holders: [bool; ORDERS],
    /// Whether the stock was 0 at that moment. Only the model knows this, not the program.
    pub stock_was_0: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Reconciler {
    #[default]
    Idle,
    /// Only in the variant that reads in two calls.
    ReadEpoch(Epoch),
    /// With the server that it was read from.
    Listed(usize, Order, Epoch),
    Inserted(usize, Order),
}

/// A worker that could not settle a group as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Splitter {
    #[default]
    Idle,
    /// The transaction is rolled back, and the group is not split yet.
    Failed(usize),
    /// Only in the variant that splits in two transactions.
    Closed(usize),
}

/// Broken promises that are visible in a step and not in a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Violations {
    pub sold_twice: bool,
    pub sold_out_to_holder: bool,
    pub sold_out_with_stock: bool,
    pub came_back: bool,
}

/// How often each request or fault may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Requests for each order.
    pub requests: [u8; ORDERS],
    pub crashes: u8,
    pub fsyncs: u8,
    pub flushes: u8,
    /// How many times the server is demoted, reads another server's memory, and is promoted again.
    pub takeovers: u8,
    /// How many times the server changes its replication id without any loss.
    pub new_ids: u8,
    /// Whether a lagging replica may be promoted while its master keeps running: two masters.
    pub splits: u8,
    pub deaths: u8,
    pub lost_commits: u8,
    /// How many times the row of a group cannot be inserted, for another reason than an outage.
    pub refused_groups: u8,
    /// How many times a group cannot be settled as a whole, for a reason outside the model.
    pub poisons: u8,
    pub lost_acks: u8,
    pub purges: u8,
    pub cancels: u8,
}
