//! The answers of `reserve` to a request for units, and the limits of purchases.

use super::captcha::PassCheck;
use super::client_address::ClientAddress;
use super::ids::{Epoch, OrderId, Shard, Units, UserId};
use super::trace_context::TraceContext;

#[derive(Debug, Clone)]
pub struct ReserveRequest {
    pub order: OrderId,
    pub user: UserId,
    pub address: ClientAddress,
    pub units: Units,
    /// The version of the terms by which the next three were judged. A sale of another version is not served.
    pub terms_version: i32,
    /// Holders of a ticket are not told of a wrong key or a level below the sale's.
    pub wrong_key: bool,
    pub level_too_low: bool,
    pub pass: PassCheck,
    pub trace: Option<Box<TraceContext>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Units were taken for this order. Its record must be committed before the buyer is answered.
    Reserved {
        expires_at_ms: i64,
    },
    /// The same purchase again. While it is unconfirmed, a record of it is committed (again) before the answer.
    Repeat {
        confirmed: bool,
    },
    /// The same purchase again, after its order has ended.
    RepeatEnded,
    /// The same idempotency key with another number of units.
    Mismatch,
    AtLimit {
        newest: Option<OrderId>,
    },
    NotStarted,
    Ended,
    Paused,
    WrongKey,
    LevelTooLow,
    /// The sale asks for a pass, and the buyer has none, or an expired or spent one (rule 18).
    PassInvalid,
    /// No unit is left, or fewer than asked for. Only the former may be remembered (rule 13).
    SoldOut,
    /// A limit refused the request; nothing was counted.
    Limited {
        limit: Limit,
        retry_ms: u64,
    },
    /// The buyer let holds lapse, and waits before the next (rule 17).
    Lapsed {
        retry_ms: u64,
    },
    /// Whether there are units is not clear yet: a purchase of the buyer has an open loan, or a shard that may have units could not be asked
    /// (rule 15). A repeat with the same key will tell.
    UnderWay,
    /// This Redis does not know the sale, or the sale is being refilled; nothing was changed.
    NotServing,
    /// Units are held, and it is not known whether a record of them is committed: a repeat with the same key will tell.
    NotDurable,
}

/// Units taken in Redis for one order: the shard and the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    pub epoch: Epoch,
    pub shard: Shard,
}

/// The dimensions in which purchases of a sale are limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum Limit {
    Buyer,
    Address,
    Sale,
}

impl Limit {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// At most `max` requests in each aligned window of `window_ms`; a `max` of -1 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub max: i64,
    pub window_ms: i64,
}

impl Window {
    pub const fn is_limit(self) -> bool {
        self.max >= 0
    }
}

/// The limits of the purchases of a sale. All are checked before any is counted.
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
