//! What may come of asking for units: the answers of `reserve`, and the limits it is asked under.

use super::ids::{Epoch, OrderId, Shard, Units, UserId};

/// One buyer's request for units of a sale.
#[derive(Debug, Clone)]
pub struct ReserveRequest {
    pub order: OrderId,
    pub user: UserId,
    /// The caller's network address, as limits see it: an IPv4 address, or an IPv6 /64.
    pub address: String,
    pub units: Units,
    pub purchase_key: String,
    pub level: i64,
}

/// What a sale's gate says to one ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Units were taken for this order; its purchase row must be committed before anybody is told.
    Reserved {
        hold: Hold,
        expires_at_ms: i64,
    },
    /// The same purchase again. An unconfirmed one is committed (again) before it is told.
    Repeat {
        hold: Option<Hold>,
    },
    /// The same purchase again, and its order has ended.
    RepeatEnded,
    /// The same key for another number of units.
    Mismatch,
    /// The buyer has all that one buyer may have.
    AtLimit {
        newest: Option<OrderId>,
    },
    NotStarted,
    Ended,
    Paused,
    WrongKey,
    LevelTooLow,
    /// Nothing is left, or fewer than asked for: the difference is never remembered, only the first is (rule 13).
    SoldOut,
    /// Refused by a limit; nothing was counted.
    Limited {
        limit: Limit,
        retry_ms: u64,
    },
    /// This Redis does not know the sale, or is being refilled: nothing was looked at.
    NotServing,
}

/// Units taken in Redis for one order: where, and under which epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    pub epoch: Epoch,
    pub shard: Shard,
}

/// The dimensions that purchases of a sale are limited in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Buyer,
    Address,
    Sale,
}

impl Limit {
    pub const ALL: [Self; 3] = [Self::Buyer, Self::Address, Self::Sale];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Buyer => "buyer",
            Self::Address => "address",
            Self::Sale => "sale",
        }
    }
}

/// At most `max` in each aligned window of `window_ms`; a `max` of -1 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub max: i64,
    pub window_ms: i64,
}

/// The limits of a sale's purchases: all are checked before any is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub buyer: Window,
    pub address: Window,
    pub sale: Window,
}

impl Limits {
    pub const fn of(&self, limit: Limit) -> Window {
        match limit {
            Limit::Buyer => self.buyer,
            Limit::Address => self.address,
            Limit::Sale => self.sale,
        }
    }
}
