//! How a threshold moves: additive up, multiplicative down (Chiu and Jain, 1989; as TCP does), between a floor and a
//! ceiling. Pure: what was seen goes in, the next threshold comes out.

use serde::Serialize;

/// What was seen of a policy since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LoadSeen {
    pub granted: u64,
    pub refused: u64,
    /// Calls that callers reported the end of: all of them, those that failed, those slower than the target.
    pub reports: u64,
    pub errors: u64,
    pub slow: u64,
}

/// Where a threshold stands, and what is remembered of where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThresholdState {
    pub threshold: i64,
    pub floor: i64,
    pub ceiling: i64,
    /// The threshold at which there was trouble last: near it, steps up are small.
    pub trouble_at: Option<i64>,
}

impl LoadSeen {
    /// Fewer reports than this say nothing.
    const REPORTS_MIN: u64 = 10;
    /// The share of calls that may fail or be slow, in percent.
    const TROUBLE_PERCENT: u64 = 10;

    /// What was reported of what is behind the policy: `None` where too little was.
    pub fn trouble(&self) -> Option<bool> {
        let bad = self.errors.saturating_add(self.slow);
        (self.reports >= Self::REPORTS_MIN).then(|| bad * 100 > self.reports * Self::TROUBLE_PERCENT)
    }
}

impl ThresholdState {
    /// The next threshold: down by three tenths in trouble; up a step where callers are refused and all is well; else
    /// it stays, because nothing speaks for a change.
    pub fn next(&self, seen: &LoadSeen) -> i64 {
        let next = match seen.trouble() {
            Some(true) => self.threshold - (self.threshold * 3 / 10).max(1),
            Some(false) if seen.refused > 0 => self.threshold + self.step(),
            _ => self.threshold,
        };
        next.clamp(self.floor, self.ceiling)
    }

    /// A twentieth of the way from floor to ceiling; a quarter of that from nine tenths of the last trouble on.
    fn step(&self) -> i64 {
        let step = (self.ceiling - self.floor) / 20;
        let careful = self.trouble_at.is_some_and(|trouble| self.threshold >= trouble - trouble / 10);
        (if careful { step / 4 } else { step }).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: LoadSeen = LoadSeen { granted: 100, refused: 5, reports: 100, errors: 0, slow: 10 };
    const ILL: LoadSeen = LoadSeen { granted: 100, refused: 5, reports: 100, errors: 1, slow: 10 };

    fn at(threshold: i64) -> ThresholdState {
        ThresholdState { threshold, floor: 10, ceiling: 210, trouble_at: None }
    }

    #[test]
    fn up_by_steps_and_down_by_shares() {
        assert_eq!(at(100).next(&WELL), 110);
        assert_eq!(at(100).next(&ILL), 70);
        assert_eq!(at(205).next(&WELL), 210);
        assert_eq!(at(11).next(&ILL), 10);
        assert_eq!(at(10).next(&ILL), 10);
    }

    #[test]
    fn it_stays_where_nothing_speaks_for_a_change() {
        assert_eq!(at(100).next(&LoadSeen { refused: 0, ..WELL }), 100, "nobody wants more");
        assert_eq!(at(100).next(&LoadSeen { reports: 9, slow: 0, ..WELL }), 100, "too little is known");
        assert_eq!(at(100).next(&LoadSeen::default()), 100);
    }

    #[test]
    fn near_the_last_trouble_steps_are_small() {
        let standing = ThresholdState { trouble_at: Some(110), ..at(100) };
        assert_eq!(standing.next(&WELL), 102);
        assert_eq!(ThresholdState { threshold: 98, ..standing }.next(&WELL), 108);
    }
}
