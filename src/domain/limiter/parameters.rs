//! The parameters of limiters and their bounds.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use strum::VariantNames;

use super::{AlgorithmKind, ParameterSet};

/// Permits in a window. A billion is as good as no limit, and Lua counts ten digits exactly.
pub(super) const WINDOW_LIMIT: RangeInclusive<i64> = 1..=1_000_000_000;
/// Permits that a limiter keeps one by one. An entry takes about 140 bytes, so that a full key takes 1.4 MB.
pub(super) const LISTED_LIMIT: RangeInclusive<i64> = 1..=10_000;
/// A window. Below 100 ms a limiter would measure the network's jitter; 31 days hold every calendar month.
const WINDOW_MS: RangeInclusive<i64> = 100..=2_678_400_000;
/// Capacity and rate. A level is counted in tokens times the period in microseconds, and 10^6 times 3.6 * 10^9 is below
/// 2^53.
const BUCKET: RangeInclusive<i64> = 1..=1_000_000;
const PERIOD_MS: RangeInclusive<i64> = 100..=3_600_000;
/// The period of a rate that was given without one.
const SECOND_MS: i64 = 1000;
/// A lease. The permits of a crashed holder are free again after a day at the latest.
const LEASE_MS: RangeInclusive<i64> = 100..=86_400_000;

/// The parameters of an algorithm as they were given; they are not checked yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    pub limit: Option<i64>,
    /// The window; for a bucket, the time that `rate` refers to (a second where it is missing).
    pub window_ms: Option<i64>,
    pub rate: Option<i64>,
    pub capacity: Option<i64>,
    pub lease_ms: Option<i64>,
}

/// What an algorithm takes as one of its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterBounds {
    Unused,
    /// The least and the greatest value; it has a default.
    Optional(i64, i64),
    Required(i64, i64),
    /// 1 to this many permits, or -1 for no limit. Required.
    Limit(i64),
}

impl AlgorithmKind {
    /// Each parameter by its name, as the API takes it: `Algorithm::new` refuses everything else.
    pub fn bounds(self) -> [(&'static str, ParameterBounds); 5] {
        use ParameterBounds::{Limit, Optional, Required, Unused};
        let ends = |bounds: RangeInclusive<i64>| bounds.into_inner();
        let (optional, required) = (|(least, most)| Optional(least, most), |(least, most)| Required(least, most));
        let [limit, window_ms, rate, capacity, lease_ms] = match self.parameter_set() {
            ParameterSet::Window => [Limit(self.threshold_max()), required(ends(WINDOW_MS)), Unused, Unused, Unused],
            ParameterSet::Bucket => {
                [Unused, optional(ends(PERIOD_MS)), required(ends(BUCKET)), optional(ends(BUCKET)), Unused]
            }
            ParameterSet::Leases => [Limit(self.threshold_max()), Unused, Unused, Unused, optional(ends(LEASE_MS))],
        };
        [("limit", limit), ("window_ms", window_ms), ("rate", rate), ("capacity", capacity), ("lease_ms", lease_ms)]
    }

    /// The greatest limit, or rate of a bucket.
    pub const fn threshold_max(self) -> i64 {
        match self {
            Self::FixedWindow | Self::SlidingCounter => *WINDOW_LIMIT.end(),
            Self::SlidingLog | Self::Concurrency => *LISTED_LIMIT.end(),
            Self::TokenBucket | Self::LeakyBucket => *BUCKET.end(),
        }
    }
}

/// Why there is no such algorithm. Names the parameter and its bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongParameter {
    #[error("algorithm must be one of {}", AlgorithmKind::VARIANTS.join(", "))]
    UnknownAlgorithm,
    #[error("{parameter} is missing: {algorithm} needs it")]
    Missing { algorithm: &'static str, parameter: &'static str },
    #[error("{parameter} means nothing to {algorithm}")]
    Unused { algorithm: &'static str, parameter: &'static str },
    #[error("{parameter} must be {least} to {most}")]
    OutOfBounds { parameter: &'static str, least: i64, most: i64 },
    #[error("limit must be 1 to {most}, or -1 for no limit")]
    LimitOutOfBounds { most: i64 },
}

/// The parameters given for an algorithm, to be checked.
pub(super) struct Given<'a> {
    pub(super) algorithm: &'static str,
    pub(super) parameters: &'a Parameters,
}

impl Given<'_> {
    /// The limit, or `None` for no limit, and the window in milliseconds.
    pub(super) fn window(&self, limits: RangeInclusive<i64>) -> Result<Option<(i64, i64)>, WrongParameter> {
        self.only(&["limit", "window_ms"])?;
        let window_ms = self.within("window_ms", self.parameters.window_ms, WINDOW_MS)?;
        Ok(self.limit(limits)?.map(|limit| (limit, window_ms)))
    }

    /// The capacity, the rate, and the period in milliseconds.
    pub(super) fn bucket(&self) -> Result<(i64, i64, i64), WrongParameter> {
        self.only(&["capacity", "rate", "window_ms"])?;
        let capacity = self.within("capacity", self.parameters.capacity, BUCKET)?;
        let rate = self.within("rate", self.parameters.rate, BUCKET)?;
        let period_ms = self.parameters.window_ms.or(Some(SECOND_MS));
        Ok((capacity, rate, self.within("window_ms", period_ms, PERIOD_MS)?))
    }

    /// The limit, or `None` for no limit, and the lease in milliseconds.
    pub(super) fn leases(&self) -> Result<Option<(i64, i64)>, WrongParameter> {
        self.only(&["limit", "lease_ms"])?;
        let lease_ms = self.within("lease_ms", self.parameters.lease_ms, LEASE_MS)?;
        Ok(self.limit(LISTED_LIMIT)?.map(|limit| (limit, lease_ms)))
    }

    fn only(&self, used: &[&str]) -> Result<(), WrongParameter> {
        let Parameters { limit, window_ms, rate, capacity, lease_ms } = *self.parameters;
        for (parameter, value) in
            [("limit", limit), ("window_ms", window_ms), ("rate", rate), ("capacity", capacity), ("lease_ms", lease_ms)]
        {
            if value.is_some() && !used.contains(&parameter) {
                return Err(WrongParameter::Unused { algorithm: self.algorithm, parameter });
            }
        }
        Ok(())
    }

    fn within(
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

    /// `None` for -1, which means no limit. Every other number below 1 is an error.
    fn limit(&self, bounds: RangeInclusive<i64>) -> Result<Option<i64>, WrongParameter> {
        if self.parameters.limit == Some(-1) {
            return Ok(None);
        }
        let most = *bounds.end();
        match self.within("limit", self.parameters.limit, bounds) {
            Err(WrongParameter::OutOfBounds { .. }) => Err(WrongParameter::LimitOutOfBounds { most }),
            limit => limit.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Algorithm;
    use super::*;

    fn window(limit: i64, window_ms: i64) -> Parameters {
        Parameters { limit: Some(limit), window_ms: Some(window_ms), ..Parameters::default() }
    }

    fn bucket(capacity: i64, rate: i64, window_ms: Option<i64>) -> Parameters {
        Parameters { capacity: Some(capacity), rate: Some(rate), window_ms, ..Parameters::default() }
    }

    #[test]
    fn minus_one_is_unlimited_and_other_numbers_below_one_are_errors() {
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
    fn an_error_names_the_parameter_that_is_missing_or_unused() {
        let error = Algorithm::new(AlgorithmKind::FixedWindow, &Parameters::default()).unwrap_err().to_string();
        assert_eq!(error, "window_ms is missing: fixed-window needs it");
        let error = Algorithm::new(AlgorithmKind::Concurrency, &window(1, 1000)).unwrap_err().to_string();
        assert_eq!(error, "window_ms means nothing to concurrency");
        assert!(Algorithm::new(AlgorithmKind::SlidingLog, &window(10_001, 1000)).is_err());
        assert!(Algorithm::new(AlgorithmKind::FixedWindow, &window(1, 99)).is_err());
    }

    #[test]
    fn an_algorithm_returns_the_parameters_that_it_was_made_of() {
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
