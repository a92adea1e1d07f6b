//! Limits the requests per second, and keeps a log of the newest requests.

use std::collections::VecDeque;

use serde::Serialize;
use uuid::Uuid;

const SECOND_US: i64 = 1_000_000;
/// How long the limiter keeps a time. A request is checked after its body has arrived, up to 5 s after its time was taken.
const KEPT_US: i64 = 10 * SECOND_US;

/// A sliding log: admits at most `rate` requests in any second, whenever that second begins. Two requests exactly one second
/// apart are not in the same second.
///
/// The time of a request is taken when its head arrives, and several threads check requests a little later. Times may therefore
/// come out of order, so `admit` checks every second that contains the new time, not only the second that ends with it.
#[derive(Debug, Default)]
pub(crate) struct SlidingLog(VecDeque<i64>);

impl SlidingLog {
    /// Counts the request and returns true, or returns false if some second would then hold more than `rate` requests.
    pub(crate) fn admit(&mut self, at_us: i64, rate: usize) -> bool {
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

/// The bank's decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    Accepted,
    Repeated,
    RefusedRate,
    Refused,
    FailedOnPurpose,
}

/// A signed request in the log of arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Arrival {
    pub n: u64,
    pub at_us: i64,
    /// `None` if the request had no valid key.
    pub key: Option<Uuid>,
    pub outcome: Outcome,
}

/// The newest requests of a kind, numbered in order. They are not written to the file, so a restart loses them.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    kept: VecDeque<Arrival>,
    last: u64,
}

impl Arrivals {
    /// About 25 MB.
    const MAX: usize = 500_000;

    pub(crate) fn push(&mut self, at_us: i64, key: Option<Uuid>, outcome: Outcome) {
        self.last += 1;
        if self.kept.len() == Self::MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(Arrival { n: self.last, at_us, key, outcome });
    }

    /// At most `limit` requests with a number greater than `after`, and whether there are more.
    pub(crate) fn after(&self, after: u64, limit: usize) -> (Vec<Arrival>, bool) {
        let from = self.kept.partition_point(|arrival| arrival.n <= after);
        (self.kept.range(from..).take(limit).copied().collect(), self.kept.len() - from > limit)
    }

    /// The times at which the requests arrived.
    pub(crate) fn times_us(&self) -> Vec<i64> {
        self.kept.iter().map(|arrival| arrival.at_us).collect()
    }
}

/// How close together requests arrived.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Peak {
    /// The most requests in any sliding second.
    pub peak: usize,
    /// The shortest time between two requests.
    pub closest_us: Option<i64>,
    pub count: usize,
}

impl Peak {
    pub(crate) fn of(mut moments: Vec<i64>) -> Self {
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

    fn has_room(moments: &[i64], at_us: i64, rate: usize) -> bool {
        Peak::of([moments, &[at_us]].concat()).peak <= rate
    }

    proptest! {
        /// The limiter never admits one request too many, and never refuses a request for which there is room.
        #[test]
        fn the_limiter_admits_a_request_exactly_when_there_is_room(
            steps in prop::collection::vec((-50_000_i64..400_000, 0_usize..5), 1..120),
            rate in 1_usize..5,
        ) {
            let (mut log, mut counted, mut now) = (SlidingLog::default(), Vec::new(), 0);
            for (step, burst) in steps {
                now += step;
                for _ in 0..=burst {
                    let expected = has_room(&counted, now, rate);
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
    fn the_peak_is_the_most_in_any_sliding_second() {
        assert_eq!(Peak::of(vec![]), Peak { peak: 0, closest_us: None, count: 0 });
        let moments = vec![1_400_000, 900_000, 1_899_999, 0, 1_900_000];
        assert_eq!(Peak::of(moments), Peak { peak: 3, closest_us: Some(1), count: 5 });
    }
}
