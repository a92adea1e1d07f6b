//! How much memory a Redis server has left.

/// Used memory from which an operator should give it more, in percent of its limit.
const LOW_PERCENT: u64 = 75;
/// Used memory from which nothing is added that sales do not need.
const SCARCE_PERCENT: u64 = 85;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr, strum::FromRepr)]
#[repr(u8)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum MemoryLevel {
    Ample,
    Low,
    /// The limiters make no new keys, so that sales have what is left.
    Scarce,
}

impl MemoryLevel {
    /// `limit` is `maxmemory`, or the machine's memory where there is none.
    pub const fn of(used: u64, limit: u64) -> Self {
        let percent = used.saturating_mul(100).checked_div(limit);
        match percent {
            None | Some(0..LOW_PERCENT) => Self::Ample,
            Some(LOW_PERCENT..SCARCE_PERCENT) => Self::Low,
            Some(SCARCE_PERCENT..) => Self::Scarce,
        }
    }

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}
