//! Percentiles, histograms and timelines, computed from measurements.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::plan::Arrival;
use super::traffic::Slot;

/// A timeline has at most this many buckets: they fit beside their label on a terminal.
const MAX_BUCKETS: u64 = 72;
/// Significant digits kept by the histograms.
const DIGITS: u8 = 3;

/// Latency of a group: one value per arrival, to its last answer, with retries.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latency {
    pub arrivals: u64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub p99_9_ms: f64,
    pub max_ms: f64,
}

/// What happened in one bucket of the timeline, by the time of the send and of the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Bucket {
    pub from_ms: u64,
    /// Arrivals due by the schedule; 0 if all were due at once.
    pub arrived: u64,
    pub sent: u64,
    pub accepted: u64,
    pub sold_out: u64,
    pub refused: u64,
    pub failed: u64,
    /// Distinct orders promised until the end of the bucket.
    pub orders_so_far: u64,
    /// Stock at the beginning less these orders.
    pub stock_left: Option<u64>,
}

impl Bucket {
    pub(super) fn starts_at_s(&self) -> f64 {
        self.from_ms as f64 / 1_000.0
    }
}

/// Latency of the arrivals of one bucket of the timeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LatencyBucket {
    pub from_ms: u64,
    #[serde(flatten)]
    pub latency: Latency,
}

/// Number of arrivals that waited at most this long, and longer than the step before.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HistogramStep {
    pub up_to_ms: f64,
    pub all: u64,
    pub first_second: u64,
}

/// When an arrival began, and how long it took until its last answer.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    pub began_us: u64,
    pub waited_us: u64,
}

impl Wait {
    pub fn in_first_second(&self) -> bool {
        self.began_us < 1_000_000
    }
}

pub fn latency(values_us: impl Iterator<Item = u64>) -> Option<Latency> {
    let mut histogram = Histogram::<u64>::new(DIGITS).ok()?;
    values_us.for_each(|value_us| histogram.record(value_us).unwrap_or_default());
    let ms = |us: u64| us as f64 / 1_000.0;
    let at = |quantile| ms(histogram.value_at_quantile(quantile));
    (!histogram.is_empty()).then(|| Latency {
        arrivals: histogram.len(),
        p50_ms: at(0.50),
        p90_ms: at(0.90),
        p99_ms: at(0.99),
        p99_9_ms: at(0.999),
        max_ms: ms(histogram.max()),
    })
}

/// The narrowest width of 10, 20, 50, 100, 200, 500 … ms that gives few enough buckets.
pub fn bucket_width_ms(duration_ms: u64) -> u64 {
    let ladder = (1..).flat_map(|power| [1, 2, 5].map(|step| step * 10u64.saturating_pow(power)));
    ladder.into_iter().find(|width_ms| duration_ms / width_ms < MAX_BUCKETS).unwrap_or(u64::MAX)
}

/// The input of a timeline.
pub struct Events<'a> {
    pub arrivals: &'a [Arrival],
    /// False if all arrivals were due at once, so that their times mean nothing.
    pub paced: bool,
    /// When the last answer came, in microseconds; none if there was none.
    pub ended_us: Option<u64>,
    /// When each order was first promised, in microseconds.
    pub orders_us: &'a [u64],
    /// Units left when the rush began.
    pub stock: Option<u64>,
}

impl Events<'_> {
    /// The timeline, up to a time or to the last event, whichever is earlier. No slot is wider than a bucket.
    pub fn timeline(&self, slots: &[Slot], bucket_ms: u64, until_ms: u64) -> Vec<Bucket> {
        let bucket_of = |ms: u64| usize::try_from(ms / bucket_ms).unwrap_or(usize::MAX);
        let due_us = self.arrivals.iter().filter(|_| self.paced).map(|arrival| arrival.due.as_micros() as u64);
        let Some(last_us) = due_us.clone().chain(self.ended_us).max() else {
            return Vec::new();
        };
        let length = (bucket_of(last_us / 1_000) + 1).min(bucket_of(until_ms));
        let mut buckets: Vec<Bucket> =
            (0..length as u64).map(|n| Bucket { from_ms: n * bucket_ms, ..Bucket::default() }).collect();
        for slot in slots {
            if let Some(bucket) = buckets.get_mut(bucket_of(slot.from_ms)) {
                bucket.sent += slot.sent;
                bucket.accepted += slot.accepted;
                bucket.sold_out += slot.sold_out;
                bucket.refused += slot.refused;
                bucket.failed += slot.failed;
            }
        }
        let mut count = |us: u64, field: fn(&mut Bucket) -> &mut u64| {
            if let Some(bucket) = buckets.get_mut(bucket_of(us / 1_000)) {
                *field(bucket) += 1;
            }
        };
        due_us.for_each(|us| count(us, |bucket| &mut bucket.arrived));
        self.orders_us.iter().for_each(|us| count(*us, |bucket| &mut bucket.orders_so_far));
        let mut orders = 0;
        for bucket in &mut buckets {
            orders += bucket.orders_so_far;
            bucket.orders_so_far = orders;
            bucket.stock_left = self.stock.map(|stock| stock.saturating_sub(orders));
        }
        buckets
    }
}

/// Latencies by the time of arrival. Buckets without an arrival are left out.
pub fn latency_timeline(waits: &[Wait], bucket_ms: u64, until_ms: u64) -> Vec<LatencyBucket> {
    let mut buckets: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for wait in waits.iter().filter(|wait| wait.began_us / 1_000 < until_ms) {
        let from_ms = wait.began_us / 1_000 / bucket_ms * bucket_ms;
        buckets.entry(from_ms).or_default().push(wait.waited_us);
    }
    let bucket = |(from_ms, values_us): (u64, Vec<u64>)| {
        latency(values_us.into_iter()).map(|latency| LatencyBucket { from_ms, latency })
    };
    buckets.into_iter().filter_map(bucket).collect()
}

/// Number of arrivals by their wait, in steps of 1, 2, 5, 10 … ms, without empty steps at either end.
pub fn histogram(waits: &[Wait]) -> Vec<HistogramStep> {
    let ladder_us = (0..9u32).flat_map(|power| [100, 200, 500].map(|step| step * 10u64.pow(power)));
    let bounds_us: Vec<u64> = ladder_us.collect();
    let mut steps: Vec<HistogramStep> =
        bounds_us.iter().map(|us| HistogramStep { up_to_ms: *us as f64 / 1_000.0, all: 0, first_second: 0 }).collect();
    for wait in waits {
        let place = bounds_us.partition_point(|bound_us| *bound_us < wait.waited_us).min(steps.len() - 1);
        steps[place].all += 1;
        steps[place].first_second += u64::from(wait.in_first_second());
    }
    let first = steps.iter().position(|step| step.all > 0).unwrap_or(steps.len());
    let last = steps.iter().rposition(|step| step.all > 0).map_or(first, |last| last + 1);
    steps[first..last].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_keep_three_digits() {
        assert_eq!(latency(std::iter::empty()), None);
        let latency = latency((1..=1_000).map(|ms| ms * 1_000)).unwrap();
        assert_eq!(latency.arrivals, 1_000);
        for (found_ms, expected_ms) in
            [(latency.p50_ms, 500.0), (latency.p90_ms, 900.0), (latency.p99_9_ms, 999.0), (latency.max_ms, 1_000.0)]
        {
            assert!((found_ms / expected_ms - 1.0_f64).abs() < 0.001, "{found_ms} is not {expected_ms}");
        }
    }

    #[test]
    fn buckets_widen_with_the_duration() {
        for (duration_ms, width_ms) in [(0, 10), (719, 10), (720, 20), (7_000, 100), (60_000, 1_000)] {
            assert_eq!(bucket_width_ms(duration_ms), width_ms, "{duration_ms}");
        }
    }

    fn wait(began_ms: u64, waited_us: u64) -> Wait {
        Wait { began_us: began_ms * 1_000, waited_us }
    }

    #[test]
    fn the_histogram_reaches_from_the_quickest_to_the_slowest() {
        let waits = [wait(0, 900), wait(10, 1_000), wait(1_000, 1_001), wait(2_000, 9_000)];
        let steps: Vec<_> = histogram(&waits).iter().map(|step| (step.up_to_ms, step.all, step.first_second)).collect();
        assert_eq!(steps, [(1.0, 2, 2), (2.0, 1, 0), (5.0, 0, 0), (10.0, 1, 0)]);
        assert!(histogram(&[]).is_empty());
        assert_eq!(histogram(&[wait(0, u64::MAX)]).len(), 1);
    }

    #[test]
    fn latencies_are_grouped_by_the_time_of_arrival() {
        let waits = [wait(5, 2_000), wait(9, 4_000), wait(1_205, 1_000)];
        let line = latency_timeline(&waits, 10, u64::MAX);
        let found: Vec<_> = line.iter().map(|bucket| (bucket.from_ms, bucket.latency.arrivals)).collect();
        assert_eq!(found, [(0, 2), (1_200, 1)]);
        assert_eq!(latency_timeline(&waits, 10, 1_000).len(), 1);
    }
}
