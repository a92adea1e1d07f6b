//! How much memory a Redis server has left.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr, strum::FromRepr)]
#[repr(u8)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum MemoryLevel {
    Ample,
    /// An operator should add memory.
    Low,
    /// The limiters make no new keys: the remaining memory is for sales.
    Scarce,
}

impl MemoryLevel {
    /// `limit` is `maxmemory`, or the machine's memory where there is none.
    pub const fn of(used: u64, limit: u64) -> Self {
        let percent = used.saturating_mul(100).checked_div(limit);
        match percent {
            None | Some(0..75) => Self::Ample,
            Some(75..85) => Self::Low,
            Some(85..) => Self::Scarce,
        }
    }

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}
