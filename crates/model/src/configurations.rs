//! The configurations. Each is small enough for a complete search; together they cover the protocol.

use super::properties::*;
use super::state::Budget;
use super::variants::World;

/// Instances die between any two steps. The outcome of a commit is unknown, or the insert arrives late.
pub(crate) const CRASHES: World = World {
    budget: Budget { requests: [2, 1, 1], deaths: 1, lost_commits: 1, ..World::NO_FAULTS.budget },
    shows: &[ALL_SOLD],
    ..World::NO_FAULTS
};

/// Messages arrive twice or never, the relay and the releaser die, orders are cancelled.
pub(crate) const DELIVERY: World = World {
    budget: Budget { requests: [1, 1, 1], deaths: 1, lost_acks: 1, purges: 1, cancels: 1, ..World::NO_FAULTS.budget },
    selling: 1,
    shows: &[ALL_SOLD, SOLD_AGAIN],
    ..World::NO_FAULTS
};

/// Redis loses writes. Two instances refill it at the same time while others sell.
pub(crate) const TWO_REFILLS: World = World {
    total: 1,
    budget: Budget { requests: [1, 1, 0], crashes: 1, fsyncs: 1, ..World::NO_FAULTS.budget },
    refilling: 2,
    max_epoch: 3,
    shows: &[OVERTAKEN, REFILLS_MEET, REFILLED],
    ..World::NO_FAULTS
};

/// Redis loses writes twice, the second time at any moment, even during a refill. Inserts arrive late.
pub(crate) const LOST_TWICE: World = World {
    budget: Budget { requests: [2, 1, 0], crashes: 2, fsyncs: 2, lost_commits: 1, ..World::NO_FAULTS.budget },
    total: 1,
    selling: 1,
    max_epoch: 3,
    shows: &[OVERTAKEN, REFILLED, ALL_SOLD],
    ..World::NO_FAULTS
};

/// Redis is demoted, and promoted again with an older memory. Before or after that it changes its replication id without any loss.
pub(crate) const TAKEN_OVER: World = World {
    budget: Budget { requests: [1, 1, 0], takeovers: 1, fsyncs: 1, new_ids: 2, ..World::NO_FAULTS.budget },
    total: 1,
    selling: 1,
    max_epoch: 3,
    shows: &[OVERTAKEN, REFILLED, ALL_SOLD],
    ..World::NO_FAULTS
};

/// The same in the middle of a refill.
pub(crate) const TAKEN_OVER_IN_A_REFILL: World = World {
    budget: Budget { requests: [1, 0, 0], crashes: 1, takeovers: 1, fsyncs: 1, ..World::NO_FAULTS.budget },
    total: 1,
    selling: 1,
    max_epoch: 3,
    shows: &[ALL_SOLD],
    ..World::NO_FAULTS
};

/// Redis changes its replication id several times and loses nothing: nothing is refilled.
pub(crate) const NEW_IDS: World = World {
    budget: Budget { requests: [2, 1, 1], new_ids: 3, cancels: 1, ..World::NO_FAULTS.budget },
    max_epoch: 1,
    selling: 1,
    shows: &[ALL_SOLD, SOLD_AGAIN],
    ..World::NO_FAULTS
};

/// A lagging replica is promoted while its master keeps running. Two instances sell and refill, each at one server; the workers meet
/// both servers.
pub(crate) const TWO_MASTERS: World = World {
    total: 1,
    budget: Budget { requests: [2, 1, 0], splits: 1, fsyncs: 1, ..World::NO_FAULTS.budget },
    refilling: 2,
    max_epoch: 2,
    shows: &[OVERTAKEN, REFILLED],
    ..World::NO_FAULTS
};

/// The same, with an order that ends.
pub(crate) const TWO_MASTERS_RETURNS: World = World {
    budget: Budget { requests: [1, 0, 0], cancels: 1, ..TWO_MASTERS.budget },
    shows: &[OVERTAKEN],
    ..TWO_MASTERS
};

/// The keys of a running server are deleted twice, and two instances refill it.
pub(crate) const FLUSHED: World = World {
    budget: Budget { requests: [1, 1, 0], flushes: 2, ..World::NO_FAULTS.budget },
    refilling: 2,
    max_epoch: 3,
    total: 1,
    selling: 1,
    shows: &[OVERTAKEN],
    ..World::NO_FAULTS
};

/// Orders are cancelled, their units are sold again, and requests are repeated after their order has ended.
pub(crate) const RETURNS: World = World {
    total: 1,
    per_user: 1,
    orders: [(0, 1), (1, 1), (0, 1)],
    budget: Budget { requests: [2, 1, 1], cancels: 2, lost_commits: 1, ..World::NO_FAULTS.budget },
    shows: &[SOLD_AGAIN, LATE_INSERT],
    ..World::NO_FAULTS
};

/// The same, on a Redis that loses writes.
pub(crate) const RETURNS_LOST: World = World {
    budget: Budget { requests: [2, 1, 0], cancels: 1, crashes: 1, fsyncs: 1, ..World::NO_FAULTS.budget },
    total: 1,
    shows: &[SOLD_AGAIN, OVERTAKEN, REFILLED],
    ..World::NO_FAULTS
};

/// An order ends while Redis is open at an outdated epoch.
pub(crate) const RETURNS_LOST_TWICE: World = World {
    budget: Budget { requests: [1, 1, 0], cancels: 1, crashes: 2, fsyncs: 1, ..World::NO_FAULTS.budget },
    total: 1,
    selling: 1,
    max_epoch: 3,
    shows: &[SOLD_AGAIN, REFILLED],
    ..World::NO_FAULTS
};

/// Instances cache "sold out" while units return and buyers ask for more than the stock.
pub(crate) const SOLD_OUT_CACHED: World = World {
    budget: Budget { requests: [1, 1, 1], cancels: 1, ..World::NO_FAULTS.budget },
    caches_sold_out: true,
    shows: &[KEPT_ASIDE, SOLD_AGAIN],
    ..World::NO_FAULTS
};

/// The same across a refill.
pub(crate) const SOLD_OUT_CACHED_REFILL: World = World {
    total: 1,
    budget: Budget { requests: [2, 1, 0], cancels: 1, flushes: 1, ..World::NO_FAULTS.budget },
    caches_sold_out: true,
    shows: &[KEPT_ASIDE, SOLD_AGAIN, REFILLED],
    ..World::NO_FAULTS
};
