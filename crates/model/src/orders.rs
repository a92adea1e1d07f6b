//! Orders, and a set of them.

use std::fmt;

pub(crate) const ORDERS: usize = 3;

/// An order id represents a buyer and an idempotency key (rule 1). Repeats of a request have the same id.
pub(crate) type Order = usize;

/// A set of orders as bits, iterated in the order of their numbers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Orders(u8);

impl Orders {
    /// Every set of 1 to `max` orders.
    pub(crate) fn up_to(max: usize) -> impl Iterator<Item = Self> {
        (1..1_u8 << ORDERS).map(Self).filter(move |orders| orders.len() <= max)
    }

    pub(crate) fn one(order: Order) -> Self {
        Self(1 << order)
    }

    pub(crate) fn has(self, order: Order) -> bool {
        self.0 & (1 << order) != 0
    }

    pub(crate) fn with(self, order: Order) -> Self {
        Self(self.0 | (1 << order))
    }

    pub(crate) fn without(self, order: Order) -> Self {
        Self(self.0 & !(1 << order))
    }

    /// The orders of both sets.
    pub(crate) fn union(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    pub(crate) fn len(self) -> usize {
        self.iter().count()
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Order> {
        (0..ORDERS).filter(move |order| self.has(*order))
    }
}

impl fmt::Debug for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
