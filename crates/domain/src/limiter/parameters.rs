//! The parameters of limiters and their bounds.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use strum::VariantNames;

use super::{AlgorithmKind, ParameterSet};

/// Permits in a window. A billion is as good as no limit, and Lua counts ten digits exactly.
const WINDOW_LIMIT: RangeInclusive<i64> = 1..=1_000_000_000;
/// Permits that a limiter keeps one by one. An entry takes about 140 bytes, so a full key takes 1.4 MB.
const LISTED_LIMIT: RangeInclusive<i64> = 1..=10_000;
/// A window. Below 100 ms a limiter would measure the network's jitter; 31 days hold every calendar month.
const WINDOW_MS: RangeInclusive<i64> = 100..=2_678_400_000;
/// Capacity and rate. A level is counted in tokens times the period in microseconds, and 10^6 times 3.6 * 10^9 is below 2^53.
const BUCKET: RangeInclusive<i64> = 1..=1_000_000;
const PERIOD_MS: RangeInclusive<i64> = 100..=3_600_000;
/// The period of a rate that was given without one.
pub(super) const SECOND_MS: i64 = 1000;
/// A lease: a crashed holder's permits are free again after a day at the latest.
const LEASE_MS: RangeInclusive<i64> = 100..=86_400_000;

/// The parameters of an algorithm, unchecked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    pub limit: Option<i64>,
    /// The window; for a bucket, the period of `rate` (by default a second).
    pub window_ms: Option<i64>,
    pub rate: Option<i64>,
    pub capacity: Option<i64>,
    pub lease_ms: Option<i64>,
}

/// Whether an algorithm has a parameter, and its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterBounds {
    Unused,
    /// The API has a default.
    Optional(i64, i64),
    Required(i64, i64),
    /// 1 to this many permits, or -1 for no limit. Required.
    Limit(i64),
}

impl AlgorithmKind {
    /// Each parameter of the API: `Algorithm::new` refuses everything else.
    pub fn bounds(self) -> [(&'static str, ParameterBounds); 5] {
        use ParameterBounds::{Limit, Optional, Required, Unused};
        let optional = |bounds: RangeInclusive<i64>| Optional(*bounds.start(), *bounds.end());
        let required = |bounds: RangeInclusive<i64>| Required(*bounds.start(), *bounds.end());
        let [limit, window_ms, rate, capacity, lease_ms] = match self.parameter_set() {
            ParameterSet::Window => [Limit(self.threshold_max()), required(WINDOW_MS), Unused, Unused, Unused],
            ParameterSet::Bucket => [Unused, optional(PERIOD_MS), required(BUCKET), optional(BUCKET), Unused],
            ParameterSet::Leases => [Limit(self.threshold_max()), Unused, Unused, Unused, optional(LEASE_MS)],
        };
        [("limit", limit), ("window_ms", window_ms), ("rate", rate), ("capacity", capacity), ("lease_ms", lease_ms)]
    }

    /// The values of all parameters in the order of `bounds`, 0 for unused ones. Every parameter of the algorithm must be given.
    pub(super) fn check(self, given: &Parameters) -> Result<[i64; 5], WrongParameter> {
        let Parameters { limit, window_ms, rate, capacity, lease_ms } = *given;
        let (algorithm, given) = (self.as_str(), [limit, window_ms, rate, capacity, lease_ms]);
        let parameters = || self.bounds().into_iter().zip(given).enumerate();
        let is_unused = |bounds: ParameterBounds| bounds == ParameterBounds::Unused;
        if let Some((_, ((parameter, _), _))) =
            parameters().find(|(_, ((_, of), value))| is_unused(*of) && value.is_some())
        {
            return Err(WrongParameter::Unused { algorithm, parameter });
        }
        let mut values = [0; 5];
        for (place, ((parameter, bounds), value)) in parameters().rev().filter(|(_, ((_, of), _))| !is_unused(*of)) {
            let value = value.ok_or(WrongParameter::Missing { algorithm, parameter })?;
            match bounds {
                ParameterBounds::Limit(most) if value != -1 && !(1..=most).contains(&value) => {
                    return Err(WrongParameter::LimitOutOfBounds { most });
                }
                ParameterBounds::Optional(least, most) | ParameterBounds::Required(least, most)
                    if !(least..=most).contains(&value) =>
                {
                    return Err(WrongParameter::OutOfBounds { parameter, least, most });
                }
                _ => values[place] = value,
            }
        }
        Ok(values)
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
