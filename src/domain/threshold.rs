//! How a threshold moves between a floor and a ceiling: additive up, multiplicative down (Chiu and Jain, 1989; as in TCP).

use serde::Serialize;

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

/// A threshold, its range, and where trouble began last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThresholdState {
    pub threshold: i64,
    pub floor: i64,
    pub ceiling: i64,
    /// The threshold at the last trouble. Near it, steps up are small.
    pub trouble_at: Option<i64>,
}

impl LoadSeen {
    /// Whether more than 10 % of the reported calls failed or were slow. `None` with fewer than 10 reports.
    fn trouble(&self) -> Option<bool> {
        let bad = self.errors.saturating_add(self.slow);
        (self.reports >= 10).then(|| bad * 100 > self.reports * 10)
    }
}

impl ThresholdState {
    /// The next threshold: 30 % lower in trouble; one step higher where callers are refused without trouble; otherwise the same.
    pub fn next(&self, seen: &LoadSeen) -> i64 {
        let next = match seen.trouble() {
            Some(true) => self.threshold - (self.threshold * 3 / 10).max(1),
            Some(false) if seen.refused > 0 => self.threshold + self.step(),
            Some(false) | None => self.threshold,
        };
        next.clamp(self.floor, self.ceiling)
    }

    /// 5 % of the range; a quarter of that from 90 % of the last trouble on.
    fn step(&self) -> i64 {
        let step = (self.ceiling - self.floor) / 20;
        let near_trouble = self.trouble_at.is_some_and(|trouble| self.threshold >= trouble - trouble / 10);
        (if near_trouble { step / 4 } else { step }).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEALTHY: LoadSeen = LoadSeen { granted: 100, refused: 5, reports: 100, errors: 0, slow: 10 };
    const TROUBLED: LoadSeen = LoadSeen { granted: 100, refused: 5, reports: 100, errors: 1, slow: 10 };

    fn at(threshold: i64) -> ThresholdState {
        ThresholdState { threshold, floor: 10, ceiling: 210, trouble_at: None }
    }

    #[test]
    fn a_threshold_rises_by_steps_and_falls_by_shares() {
        assert_eq!([100, 205].map(|threshold| at(threshold).next(&HEALTHY)), [110, 210]);
        assert_eq!([100, 11, 10].map(|threshold| at(threshold).next(&TROUBLED)), [70, 10, 10]);
    }

    #[test]
    fn a_threshold_stays_without_refusals_or_reports() {
        assert_eq!(at(100).next(&LoadSeen { refused: 0, ..HEALTHY }), 100, "no caller was refused");
        assert_eq!(at(100).next(&LoadSeen { reports: 9, slow: 0, ..HEALTHY }), 100, "too few reports");
        assert_eq!(at(100).next(&LoadSeen::default()), 100);
    }

    #[test]
    fn steps_are_small_near_the_last_trouble() {
        let state = ThresholdState { trouble_at: Some(110), ..at(100) };
        assert_eq!(state.next(&HEALTHY), 102);
        assert_eq!(ThresholdState { threshold: 98, ..state }.next(&HEALTHY), 108);
    }
}
