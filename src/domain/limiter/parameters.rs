//! The parameters of limiters, and the bounds that they must keep.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// Permits in a window: a billion is no limit any more, and ten digits are easily exact.
pub(super) const WINDOW_LIMIT: RangeInclusive<i64> = 1..=1_000_000_000;
/// Entries that a limiter keeps one by one: at some 140 bytes each, a full key takes 1.4 MB.
pub(super) const LISTED_LIMIT: RangeInclusive<i64> = 1..=10_000;
/// A window: below 100 ms the network's jitter is measured, not the callers; 31 days hold every calendar month.
pub(super) const WINDOW_MS: RangeInclusive<i64> = 100..=2_678_400_000;
/// A bucket's level is counted in tokens times its period in microseconds: 10^6 times 3.6 * 10^9 is below 2^53.
pub(super) const BUCKET: RangeInclusive<i64> = 1..=1_000_000;
pub(super) const PERIOD_MS: RangeInclusive<i64> = 100..=3_600_000;
/// A rate without a period is per second.
pub(super) const SECOND_MS: i64 = 1000;
/// What a crashed holder took is free again after a day at the latest.
pub(super) const LEASE_MS: RangeInclusive<i64> = 100..=86_400_000;

/// The parameters of an algorithm as somebody wrote them down: nothing is known of them yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    pub limit: Option<i64>,
    /// The window; of a bucket, the time that `rate` is meant for (a second, if it is not given).
    pub window_ms: Option<i64>,
    pub rate: Option<i64>,
    pub capacity: Option<i64>,
    pub lease_ms: Option<i64>,
}

/// Why parameters make no algorithm; names the parameter and its bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongParameter {
    #[error(
        "algorithm must be one of fixed-window, sliding-log, sliding-counter, token-bucket, leaky-bucket, concurrency"
    )]
    UnknownAlgorithm,
    #[error("{parameter} is missing: {algorithm} needs it")]
    Missing { algorithm: &'static str, parameter: &'static str },
    #[error("{parameter} means nothing to {algorithm}")]
    Alien { algorithm: &'static str, parameter: &'static str },
    #[error("{parameter} must be {least} to {most}")]
    OutOfBounds { parameter: &'static str, least: i64, most: i64 },
    #[error("limit must be 1 to {most}, or -1 for no limit")]
    LimitOutOfBounds { most: i64 },
}

/// Parameters on their way to becoming an algorithm.
pub(super) struct Given<'a> {
    pub(super) algorithm: &'static str,
    pub(super) given: &'a Parameters,
}

impl Given<'_> {
    pub(super) fn only(&self, wanted: &[&str]) -> Result<(), WrongParameter> {
        let Parameters { limit, window_ms, rate, capacity, lease_ms } = *self.given;
        for (parameter, value) in
            [("limit", limit), ("window_ms", window_ms), ("rate", rate), ("capacity", capacity), ("lease_ms", lease_ms)]
        {
            if value.is_some() && !wanted.contains(&parameter) {
                return Err(WrongParameter::Alien { algorithm: self.algorithm, parameter });
            }
        }
        Ok(())
    }

    pub(super) fn within(
        &self,
        parameter: &'static str,
        value: Option<i64>,
        bounds: RangeInclusive<i64>,
    ) -> Result<i64, WrongParameter> {
        let value = value.ok_or(WrongParameter::Missing { algorithm: self.algorithm, parameter })?;
        let (least, most) = bounds.into_inner();
        if !(least..=most).contains(&value) {
            return Err(WrongParameter::OutOfBounds { parameter, least, most });
        }
        Ok(value)
    }

    /// `None` is no limit: -1, and it alone of what is below 1.
    pub(super) fn limit(&self, bounds: RangeInclusive<i64>) -> Result<Option<i64>, WrongParameter> {
        if self.given.limit == Some(-1) {
            return Ok(None);
        }
        let most = *bounds.end();
        match self.within("limit", self.given.limit, bounds) {
            Err(WrongParameter::OutOfBounds { .. }) => Err(WrongParameter::LimitOutOfBounds { most }),
            limit => limit.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, AlgorithmKind};
    use super::*;

    fn window(limit: i64, window_ms: i64) -> Parameters {
        Parameters { limit: Some(limit), window_ms: Some(window_ms), ..Parameters::default() }
    }

    fn bucket(capacity: i64, rate: i64, window_ms: Option<i64>) -> Parameters {
        Parameters { capacity: Some(capacity), rate: Some(rate), window_ms, ..Parameters::default() }
    }

    #[test]
    fn minus_one_and_it_alone_of_what_is_below_one_is_unlimited() {
        for kind in [AlgorithmKind::FixedWindow, AlgorithmKind::SlidingLog, AlgorithmKind::SlidingCounter] {
            assert!(matches!(Algorithm::new(kind, &window(-1, 1000)), Ok(Algorithm::Unlimited(_))));
            for wrong in [0, -2, i64::MIN, i64::MAX] {
                let error = Algorithm::new(kind, &window(wrong, 1000)).unwrap_err().to_string();
                assert!(error.starts_with("limit must be 1 to") && error.contains("-1 for no limit"), "{error}");
            }
        }
        for kind in [AlgorithmKind::TokenBucket, AlgorithmKind::LeakyBucket] {
            for wrong in [0, -1, 1_000_001, i64::MAX] {
                let error = Algorithm::new(kind, &bucket(wrong, 1, None)).unwrap_err().to_string();
                assert_eq!(error, "capacity must be 1 to 1000000");
                let error = Algorithm::new(kind, &bucket(1, wrong, None)).unwrap_err().to_string();
                assert_eq!(error, "rate must be 1 to 1000000");
            }
        }
    }

    #[test]
    fn what_is_missing_or_does_not_belong_is_named() {
        let error = Algorithm::new(AlgorithmKind::FixedWindow, &Parameters::default()).unwrap_err().to_string();
        assert_eq!(error, "window_ms is missing: fixed-window needs it");
        let error = Algorithm::new(AlgorithmKind::Concurrency, &window(1, 1000)).unwrap_err().to_string();
        assert_eq!(error, "window_ms means nothing to concurrency");
        assert!(Algorithm::new(AlgorithmKind::SlidingLog, &window(10_001, 1000)).is_err());
        assert!(Algorithm::new(AlgorithmKind::FixedWindow, &window(1, 99)).is_err());
    }

    #[test]
    fn an_algorithm_is_written_down_as_it_was_given() {
        let leases = Parameters { limit: Some(3), lease_ms: Some(500), ..Parameters::default() };
        for (kind, parameters) in [
            (AlgorithmKind::FixedWindow, window(5, 60_000)),
            (AlgorithmKind::SlidingLog, window(-1, 60_000)),
            (AlgorithmKind::SlidingCounter, window(1_000_000_000, 2_678_400_000)),
            (AlgorithmKind::TokenBucket, bucket(10, 3, Some(60_000))),
            (AlgorithmKind::LeakyBucket, bucket(1, 1, Some(1000))),
            (AlgorithmKind::Concurrency, leases),
        ] {
            let algorithm = Algorithm::new(kind, &parameters).unwrap();
            assert_eq!((algorithm.kind(), algorithm.parameters()), (kind, parameters));
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        assert_eq!(
            Algorithm::new(AlgorithmKind::TokenBucket, &bucket(10, 3, None)).unwrap().parameters().window_ms,
            Some(1000)
        );
    }
}
