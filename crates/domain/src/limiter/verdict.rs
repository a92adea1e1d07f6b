//! The answer of a limiter to one call.

use super::ms;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub granted: bool,
    /// Permits left; -1 where there is no limit.
    pub remaining: i64,
    /// When the same call would be granted if no other caller came, rounded up; 0 for a grant.
    pub retry_after_ms: i64,
    /// When all permits are available again if no other caller comes, rounded up.
    pub reset_ms: i64,
    /// How long a granted caller must wait for an even outflow; leaky buckets only.
    pub delay_ms: i64,
    /// The server's time at this call, and never less than at an earlier grant.
    pub at_us: i64,
    pub receipt: Receipt,
}

/// Where the permits of a grant were taken from, and go back to. Each limiter defines the two numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Receipt {
    pub mark: i64,
    pub detail: i64,
}

impl Verdict {
    pub const UNLIMITED: Self = Self {
        granted: true,
        remaining: -1,
        retry_after_ms: 0,
        reset_ms: 0,
        delay_ms: 0,
        at_us: 0,
        receipt: Receipt { mark: 0, detail: 0 },
    };

    pub(super) const fn granted(at_us: i64, remaining: i64, reset_us: i64, mark: i64, detail: i64) -> Self {
        let receipt = Receipt { mark, detail };
        Self { remaining, reset_ms: ms(reset_us), at_us, receipt, ..Self::UNLIMITED }
    }

    pub(super) const fn refused(at_us: i64, remaining: i64, retry_us: i64, reset_us: i64) -> Self {
        let (retry_after_ms, reset_ms) = (ms(retry_us), ms(reset_us));
        Self { granted: false, remaining, retry_after_ms, reset_ms, at_us, ..Self::UNLIMITED }
    }
}
