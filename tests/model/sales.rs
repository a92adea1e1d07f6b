//! The configurations: each small enough to be explored whole, and all of them together wide enough.

use super::properties::*;
use super::state::Left;
use super::variants::Shop;

/// Instances die between any two steps; commits are lost, or late.
pub const CRASHES: Shop = Shop {
    left: Left { asks: [2, 1, 1], deaths: 1, unknowns: 1, ..Shop::CALM.left },
    shows: &[ALL_SOLD],
    ..Shop::CALM
};

/// Messages come twice or not at all, relay and releaser die, orders are cancelled.
pub const DELIVERY: Shop = Shop {
    left: Left { asks: [1, 1, 1], deaths: 1, unacked: 1, purges: 1, cancels: 1, ..Shop::CALM.left },
    tills: 1,
    shows: &[ALL_SOLD, SOLD_AGAIN],
    ..Shop::CALM
};

/// Redis loses writes, and two instances refill it at once while others sell.
pub const TWO_GUARDS: Shop = Shop {
    total: 1,
    left: Left { asks: [1, 1, 0], crashes: 1, fsyncs: 1, ..Shop::CALM.left },
    guards: 2,
    last_epoch: 3,
    shows: &[OVERTAKEN, TWO_REFILLS, REFILLED],
    ..Shop::CALM
};

/// Redis loses writes twice, the second time in the middle of anything, a refill too; inserts are late.
pub const LOST_TWICE: Shop = Shop {
    left: Left { asks: [2, 1, 0], crashes: 2, fsyncs: 2, unknowns: 1, ..Shop::CALM.left },
    total: 1,
    tills: 1,
    last_epoch: 3,
    shows: &[OVERTAKEN, REFILLED, ALL_SOLD],
    ..Shop::CALM
};

/// The keys vanish twice from a server that goes on, and two instances refill it.
pub const FLUSHED: Shop = Shop {
    left: Left { asks: [1, 1, 0], flushes: 2, ..Shop::CALM.left },
    guards: 2,
    last_epoch: 3,
    total: 1,
    tills: 1,
    shows: &[OVERTAKEN],
    ..Shop::CALM
};

/// Orders are cancelled, their units sold again, requests repeated after their order's end.
pub const RETURNS: Shop = Shop {
    total: 1,
    per_user: 1,
    orders: [(0, 1), (1, 1), (0, 1)],
    left: Left { asks: [2, 1, 1], cancels: 2, unknowns: 1, ..Shop::CALM.left },
    shows: &[SOLD_AGAIN, LATE],
    ..Shop::CALM
};

/// The same, on a Redis that loses writes.
pub const RETURNS_LOST: Shop = Shop {
    left: Left { asks: [2, 1, 0], cancels: 1, crashes: 1, fsyncs: 1, ..Shop::CALM.left },
    total: 1,
    shows: &[SOLD_AGAIN, OVERTAKEN, REFILLED],
    ..Shop::CALM
};

/// An order ends while Redis is open at an epoch that a refill has left behind.
pub const RETURNS_LOST_TWICE: Shop = Shop {
    left: Left { asks: [1, 1, 0], cancels: 1, crashes: 2, fsyncs: 1, ..Shop::CALM.left },
    total: 1,
    tills: 1,
    last_epoch: 3,
    shows: &[SOLD_AGAIN, REFILLED],
    ..Shop::CALM
};

/// "Sold out" is remembered while units come back and buyers want more than is left.
pub const MEMORY: Shop = Shop {
    left: Left { asks: [1, 1, 1], cancels: 1, ..Shop::CALM.left },
    remembers: true,
    shows: &[KEPT_ASIDE, SOLD_AGAIN],
    ..Shop::CALM
};

/// The same across a refill.
pub const MEMORY_REFILLED: Shop = Shop {
    total: 1,
    left: Left { asks: [2, 1, 0], cancels: 1, flushes: 1, ..Shop::CALM.left },
    remembers: true,
    shows: &[KEPT_ASIDE, SOLD_AGAIN, REFILLED],
    ..Shop::CALM
};
