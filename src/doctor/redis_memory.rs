//! Whether Redis has enough memory for the planned sales.

use super::{Finding, not_shown};
use seckill_domain::memory_level::MemoryLevel;
use seckill_postgres::inspect::PlannedUnits;
use seckill_redis::inspect::ServerInfo;

/// Redis memory of one sold unit: ticket, buyer, holder, and the entry in the unconfirmed list. docs/install.md lists the parts.
const UNIT_BYTES: u64 = 500;
/// Redis memory of one asking buyer: the counts of the limits by buyer and by address, for two windows.
const BUYER_BYTES: u64 = 250;
/// Buyers who ask for one unit within two windows; and the fewest and the most buyers that are assumed.
const BUYERS_A_UNIT: u64 = 50;
const BUYERS: (u64, u64) = (10_000, 1_000_000);

/// Each of `masters` masters has its part of the sales.
pub(super) fn judge(info: &ServerInfo, planned: &PlannedUnits, masters: u64) -> Finding {
    let (Some(used), Some(maxmemory)) = (info.number("used_memory"), info.number("maxmemory")) else {
        return not_shown("used_memory and maxmemory");
    };
    let limit = if maxmemory == 0 { info.number("total_system_memory").unwrap_or(u64::MAX) } else { maxmemory };
    let free = limit.saturating_sub(used);
    let needed = needed_bytes(planned).div_ceil(masters);
    let unlimited = match planned.unlimited {
        0 => String::new(),
        n => format!("; {n} unlimited not counted"),
    };
    let found = format!(
        "{} free; {} sales with {} units to sell need about {}{unlimited}",
        megabytes(free),
        planned.sales,
        planned.units,
        megabytes(needed)
    );
    let raise = format!("let maxmemory be at least {}", megabytes((used + needed.saturating_mul(2)).max(used / 3 * 5)));
    let level = MemoryLevel::of(used, limit);
    if needed > free {
        Finding::fail(found, raise)
    } else if level == MemoryLevel::Scarce {
        Finding::fail(format!("{found}; memory is scarce: limiters make no new keys"), raise)
    } else if level == MemoryLevel::Low {
        Finding::warn(format!("{found}; memory is low"), raise)
    } else if needed > free / 2 {
        let found = format!("{found}: orders that end leave tombstones, and a rewrite of the file copies memory");
        Finding::warn(found, raise)
    } else if maxmemory == 0 {
        let fix = "set maxmemory below what the machine has free: else the kernel ends Redis where it would have \
                   refused";
        Finding::warn(format!("{found}; maxmemory is 0, no limit"), fix)
    } else {
        Finding::pass(found)
    }
}

fn needed_bytes(planned: &PlannedUnits) -> u64 {
    if planned.sales == 0 {
        return 0;
    }
    let buyers = planned.units.saturating_mul(BUYERS_A_UNIT).clamp(BUYERS.0, BUYERS.1);
    planned.units.saturating_mul(UNIT_BYTES).saturating_add(buyers * BUYER_BYTES)
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn memory_is_enough_with_room_to_spare() {
        let planned = PlannedUnits { sales: 1, units: 1_000_000, unlimited: 0 };
        let needed = needed_bytes(&planned);
        assert_eq!(needed, 1_000_000 * (UNIT_BYTES + BUYER_BYTES));
        let verdict = |free: u64| {
            let max = format!("maxmemory:{}", free + 1_000_000);
            judge(&ServerInfo::from(format!("used_memory:1000000\r\n{max}")), &planned, 1).verdict
        };
        assert_eq!(verdict(needed - 1), Verdict::Fail);
        assert_eq!(verdict(needed), Verdict::Warn);
        assert_eq!(verdict(needed * 2 + 2), Verdict::Pass);
        let nothing = PlannedUnits { sales: 0, units: 0, unlimited: 0 };
        assert_eq!(needed_bytes(&nothing), 0);
        let used = |percent: u64| {
            let used = format!("used_memory:{}", percent * 10_000_000);
            judge(&ServerInfo::from(format!("{used}\r\nmaxmemory:1000000000")), &nothing, 1).verdict
        };
        assert_eq!([used(74), used(75), used(85)], [Verdict::Pass, Verdict::Warn, Verdict::Fail]);
    }
}
