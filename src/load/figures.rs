//! Latencies and the time line, from samples.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::tally::{Kind, Sample};

/// Most buckets of a time line: what fits beside its label on a terminal.
const MAX_BUCKETS: u64 = 72;
/// Significant digits kept by the histograms.
const DIGITS: u8 = 3;

/// Latency of a group in milliseconds: one value per arrival, to its last answer, retries included.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latency {
    pub arrivals: u64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub p99_9_ms: f64,
    pub max_ms: f64,
}

/// What happened in a stretch of the time line, by the time of the send and of the answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Bucket {
    pub from_ms: u64,
    pub sent: u64,
    pub accepted: u64,
    pub sold_out: u64,
    pub refused: u64,
    pub failed: u64,
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

pub fn timeline(samples: &[Sample], bucket_ms: u64) -> Vec<Bucket> {
    let place = |us: u64| usize::try_from(us / 1_000 / bucket_ms).unwrap_or(usize::MAX);
    let Some(last) = samples.iter().map(|sample| place(sample.answered_us)).max() else {
        return Vec::new();
    };
    let mut buckets: Vec<Bucket> =
        (0..=last as u64).map(|n| Bucket { from_ms: n * bucket_ms, ..Bucket::default() }).collect();
    for sample in samples {
        buckets[place(sample.sent_us)].sent += 1;
        let bucket = &mut buckets[place(sample.answered_us)];
        match sample.kind {
            Kind::Accepted => bucket.accepted += 1,
            Kind::SoldOut => bucket.sold_out += 1,
            Kind::Refused => bucket.refused += 1,
            Kind::Failed => bucket.failed += 1,
        }
    }
    buckets
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
}
