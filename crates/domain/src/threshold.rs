//! How a threshold moves between a floor and a ceiling: additive up, multiplicative down (Chiu and Jain, 1989; as in TCP).

use serde::Serialize;

use super::policy::Range;

/// The load on a policy since the last check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LoadSeen {
    pub granted: u64,
    pub refused: u64,
    /// Calls with a reported end.
    pub reports: u64,
    pub errors: u64,
    /// Slower than the target.
    pub slow: u64,
}

impl LoadSeen {
    /// Whether more than 10 % of the reported calls failed or were slow. `None` with fewer than 10 reports.
    fn trouble(&self) -> Option<bool> {
        let bad = self.errors.saturating_add(self.slow);
        (self.reports >= 10).then(|| bad * 100 > self.reports * 10)
    }
}

/// The next threshold: 30 % lower in trouble; one step higher where callers are refused without trouble; otherwise the same. `trouble_at` is
/// the threshold at the last trouble.
pub fn next_threshold(threshold: i64, range: Range, trouble_at: Option<i64>, seen: &LoadSeen) -> i64 {
    let next = match seen.trouble() {
        Some(true) => threshold - (threshold * 3 / 10).max(1),
        Some(false) if seen.refused > 0 => {
            // 5 % of the range; a quarter of that from 90 % of the last trouble on.
            let step = (range.ceiling - range.floor) / 20;
            let near_trouble = trouble_at.is_some_and(|trouble| threshold >= trouble - trouble / 10);
            threshold + (if near_trouble { step / 4 } else { step }).max(1)
        }
        Some(false) | None => threshold,
    };
    next.clamp(range.floor, range.ceiling)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEALTHY: LoadSeen = LoadSeen { granted: 100, refused: 5, reports: 100, errors: 0, slow: 10 };
    const TROUBLED: LoadSeen = LoadSeen { granted: 100, refused: 5, reports: 100, errors: 1, slow: 10 };

    /// The next thresholds after these, with a range of 10 to 210.
    fn next<const N: usize>(thresholds: [i64; N], trouble_at: Option<i64>, seen: LoadSeen) -> [i64; N] {
        let range = Range { floor: 10, ceiling: 210, target_ms: None };
        thresholds.map(|threshold| next_threshold(threshold, range, trouble_at, &seen))
    }

    #[test]
    fn a_threshold_rises_by_steps_and_falls_by_shares() {
        assert_eq!(next([100, 205], None, HEALTHY), [110, 210]);
        assert_eq!(next([100, 11, 10], None, TROUBLED), [70, 10, 10]);
        assert_eq!(next([100, 98], Some(110), HEALTHY), [102, 108], "steps are small near the last trouble");
    }

    #[test]
    fn a_threshold_stays_without_refusals_or_reports() {
        assert_eq!(next([100], None, LoadSeen { refused: 0, ..HEALTHY }), [100], "no caller was refused");
        assert_eq!(next([100], None, LoadSeen { reports: 9, slow: 0, ..HEALTHY }), [100], "too few reports");
    }
}
