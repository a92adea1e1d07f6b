//! How many requests a second the bank takes, and a memory of all that came.

use std::collections::VecDeque;

use serde::Serialize;
use uuid::Uuid;

use super::transfer::TransferKind;

const SECOND_US: i64 = 1_000_000;
/// How long the log remembers: a request is judged when its body is there, which may take five seconds from its stamp.
const KEPT_US: i64 = 10 * SECOND_US;

/// A sliding log: at most so many in any second, wherever it begins. A second does not hold two moments that are a whole
/// second apart.
///
/// Requests are stamped as they come and judged a moment later, by several threads, so stamps may come a little out of
/// order: each window that a stamp would be in is looked at, and not only the one that ends with it.
#[derive(Debug, Default)]
pub struct SlidingLog(VecDeque<i64>);

impl SlidingLog {
    /// Counts a request if there is room for it.
    pub fn admit(&mut self, at_us: i64, rate: usize) -> bool {
        while self.0.front().is_some_and(|oldest| at_us - oldest >= KEPT_US) {
            self.0.pop_front();
        }
        let place = self.0.partition_point(|moment| *moment <= at_us);
        self.0.insert(place, at_us);
        let full = (place.max(rate)..self.0.len().min(place + rate + 1))
            .any(|last| self.0[last] - self.0[last - rate] < SECOND_US);
        if full {
            self.0.remove(place);
        }
        !full
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Accepted,
    Repeated,
    RefusedRate,
    Refused,
    FailedOnPurpose,
}

/// A signed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Arrival {
    pub n: u64,
    pub at_us: i64,
    /// None where the request had no key that could be read.
    pub key: Option<Uuid>,
    pub outcome: Outcome,
}

/// The newest requests, with numbers that rise. They are not written to the file: a restart forgets them.
#[derive(Debug, Default)]
pub struct Arrivals {
    payments: VecDeque<Arrival>,
    refunds: VecDeque<Arrival>,
    last: u64,
}

impl Arrivals {
    /// Kept of both kinds together: some 50 MB.
    pub const MAX: usize = 1_000_000;

    pub fn push(&mut self, kind: TransferKind, at_us: i64, key: Option<Uuid>, outcome: Outcome) {
        self.last += 1;
        if self.payments.len() + self.refunds.len() == Self::MAX {
            let oldest = |kept: &VecDeque<Arrival>| kept.front().map_or(u64::MAX, |arrival| arrival.n);
            let full =
                if oldest(&self.payments) < oldest(&self.refunds) { &mut self.payments } else { &mut self.refunds };
            full.pop_front();
        }
        let arrival = Arrival { n: self.last, at_us, key, outcome };
        match kind {
            TransferKind::Payment => self.payments.push_back(arrival),
            TransferKind::Refund => self.refunds.push_back(arrival),
        }
    }

    const fn of(&self, kind: TransferKind) -> &VecDeque<Arrival> {
        match kind {
            TransferKind::Payment => &self.payments,
            TransferKind::Refund => &self.refunds,
        }
    }

    /// Those after a number, and whether there are more.
    pub fn after(&self, kind: TransferKind, after: u64, limit: usize) -> (Vec<Arrival>, bool) {
        let kept = self.of(kind);
        let from = kept.partition_point(|arrival| arrival.n <= after);
        (kept.range(from..).take(limit).copied().collect(), kept.len() - from > limit)
    }

    /// When each came.
    pub fn moments(&self, kind: TransferKind) -> Vec<i64> {
        self.of(kind).iter().map(|arrival| arrival.at_us).collect()
    }
}

/// How close requests came to each other.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// The most in any sliding second.
    pub peak: usize,
    /// The smallest distance of two.
    pub closest_us: Option<i64>,
    pub count: usize,
}

impl Peak {
    pub fn of(mut moments: Vec<i64>) -> Self {
        moments.sort_unstable();
        let mut oldest = 0;
        let mut peak = 0;
        for (place, moment) in moments.iter().enumerate() {
            while moment - moments[oldest] >= SECOND_US {
                oldest += 1;
            }
            peak = peak.max(place + 1 - oldest);
        }
        let closest_us = moments.windows(2).map(|pair| pair[1] - pair[0]).min();
        Self { peak, closest_us, count: moments.len() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn room(moments: &[i64], at_us: i64, rate: usize) -> bool {
        Peak::of([moments, &[at_us]].concat()).peak <= rate
    }

    proptest! {
        /// Both sides: never one too many, and nobody is refused for whom there was room.
        #[test]
        fn the_log_admits_exactly_those_for_whom_there_is_room(
            steps in prop::collection::vec((-50_000_i64..400_000, 0_usize..5), 1..120),
            rate in 1_usize..5,
        ) {
            let (mut log, mut counted, mut now) = (SlidingLog::default(), Vec::new(), 0);
            for (step, burst) in steps {
                now += step;
                for _ in 0..=burst {
                    let expected = room(&counted, now, rate);
                    prop_assert_eq!(log.admit(now, rate), expected);
                    if expected {
                        counted.push(now);
                    }
                }
            }
            prop_assert!(Peak::of(counted).peak <= rate);
        }
    }

    #[test]
    fn a_second_does_not_hold_both_its_ends() {
        let mut log = SlidingLog::default();
        assert!(log.admit(0, 1));
        assert!(!log.admit(999_999, 1));
        assert!(log.admit(1_000_000, 1));
    }

    #[test]
    fn the_peak_is_counted_over_sliding_seconds() {
        assert_eq!(Peak::of(vec![]), Peak { peak: 0, closest_us: None, count: 0 });
        let moments = vec![1_400_000, 900_000, 1_899_999, 0, 1_900_000];
        assert_eq!(Peak::of(moments), Peak { peak: 3, closest_us: Some(1), count: 5 });
    }

    #[test]
    fn only_the_newest_are_kept() {
        let mut arrivals = Arrivals::default();
        arrivals.push(TransferKind::Refund, 0, None, Outcome::Accepted);
        for at_us in (0..).take(Arrivals::MAX) {
            arrivals.push(TransferKind::Payment, at_us, None, Outcome::Accepted);
        }
        assert_eq!(arrivals.moments(TransferKind::Refund), [0; 0]);
        let (read, more) = arrivals.after(TransferKind::Payment, 10, 2);
        assert_eq!((read[0].n, read[1].n, more), (11, 12, true));
        let (read, more) = arrivals.after(TransferKind::Payment, arrivals.last - 1, 2);
        assert_eq!((read.len(), more), (1, false));
    }
}
