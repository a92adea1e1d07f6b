//! How many units a sale has.

use serde::{Deserialize, Serialize};

use super::ids::Invalid;

/// Units that are left, or were put up for sale. Unlimited stock is -1 in PostgreSQL, Redis and the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stock {
    Unlimited,
    Units(u64),
}

impl Stock {
    /// PostgreSQL, Redis and Lua's doubles all count exactly up to here.
    const MAX: i64 = 1_000_000_000_000;

    pub fn parse(n: i64) -> Result<Self, Invalid> {
        match n {
            -1 => Ok(Self::Unlimited),
            0..=Self::MAX => Ok(Self::Units(n.unsigned_abs())),
            _ => Err(Invalid::new("stock", "must be -1 (unlimited) or 0 to 1000000000000")),
        }
    }

    pub fn as_i64(self) -> i64 {
        match self {
            Self::Unlimited => -1,
            Self::Units(n) => n.cast_signed(),
        }
    }
}
