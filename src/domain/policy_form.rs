//! A policy as somebody wrote it down, on the command line or over the API: nothing is known of it yet.

use serde::Deserialize;
use utoipa::ToSchema;

use super::breaker::BreakerTerms;
use super::ids::Invalid;
use super::limiter::{Algorithm, AlgorithmKind, Parameters};
use super::policy::{Excess, Name, NewPolicy, Range, WhenDown, WrongPolicy};

/// The terms of a policy; which of them an algorithm takes, docs/limits.md says.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PolicyTerms)]
pub struct PolicyForm {
    /// The applications that may use it. The first one, when it is made, is its home.
    #[schema(min_items = 1, max_items = 100)]
    pub apps: Vec<String>,
    pub algorithm: AlgorithmKind,
    /// Permits in a window, or at once (concurrency); -1 is no limit.
    #[schema(nullable = false)]
    pub limit: Option<i64>,
    /// The window; for a bucket, the time in which it gets back its rate (1000 where it is missing).
    #[schema(nullable = false)]
    pub window_ms: Option<i64>,
    /// Permits that a bucket gets back, or drains, in its window.
    #[schema(nullable = false)]
    pub rate: Option<i64>,
    /// Permits that a bucket holds; as many as its rate where it is missing.
    #[schema(nullable = false)]
    pub capacity: Option<i64>,
    /// How long a place is kept for a caller who is not heard of again; 30000 where it is missing.
    #[schema(nullable = false)]
    pub lease_ms: Option<i64>,
    /// With `ceiling`: the limit, or a bucket's rate, moves between the two by itself.
    #[schema(nullable = false)]
    pub floor: Option<i64>,
    #[schema(nullable = false)]
    pub ceiling: Option<i64>,
    /// Calls reported as slower than this make the limit move down.
    #[schema(nullable = false)]
    pub target_ms: Option<i64>,
    /// `reject` (where it is missing), `queue:MS`, `degrade:JSON` or `shadow`.
    #[schema(nullable = false)]
    pub excess: Option<String>,
    /// When the limiter cannot be asked; `closed` where it is missing.
    #[schema(nullable = false)]
    pub when_down: Option<WhenDown>,
    /// A circuit breaker; `{}` takes the defaults.
    #[schema(nullable = false)]
    pub breaker: Option<BreakerTerms>,
    /// What the caller's key stands for: user, address, interface, channel…; for people, and for warnings.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub key: String,
    /// Spread the keys over a cluster's slots: more throughput, but alone in a call.
    #[serde(default)]
    pub spread: bool,
}

impl PolicyForm {
    /// A caller that has not given its place back by then is taken for dead.
    const LEASE_MS: i64 = 30_000;

    /// The policy that this makes under a name; what its parts cannot say alone is still to be checked.
    pub fn named(self, name: &str) -> Result<NewPolicy, WrongPolicy> {
        let is_bucket = matches!(self.algorithm, AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket);
        let parameters = Parameters {
            limit: self.limit,
            window_ms: self.window_ms,
            rate: self.rate,
            capacity: self.capacity.or(self.rate.filter(|_| is_bucket)),
            lease_ms: self.lease_ms.or((self.algorithm == AlgorithmKind::Concurrency).then_some(Self::LEASE_MS)),
        };
        let range = match (self.floor, self.ceiling, self.target_ms) {
            (Some(floor), Some(ceiling), target_ms) => Some(Range { floor, ceiling, target_ms }),
            (None, None, None) => None,
            _ => return Err(Invalid::new("floor", "and ceiling come together, and target_ms with them").into()),
        };
        Ok(NewPolicy {
            name: Name::parse(name, "name")?,
            apps: names(&self.apps)?,
            key: self.key,
            spread: self.spread,
            algorithm: Algorithm::new(self.algorithm, &parameters)?,
            range,
            excess: self.excess.as_deref().map_or(Ok(Excess::Reject), Excess::parse)?,
            when_down: self.when_down.unwrap_or(WhenDown::Closed),
            breaker: self.breaker,
        })
    }
}

/// Names of applications. The first one given is the policy's home; the same one twice is one.
pub fn names(texts: &[String]) -> Result<Vec<Name>, Invalid> {
    let mut names = texts.iter().map(|text| Name::parse(text, "app")).collect::<Result<Vec<_>, _>>()?;
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    Ok(names)
}
