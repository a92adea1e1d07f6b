//! A policy as the command line or the API gives it, before it is checked.

use serde::Deserialize;
use utoipa::ToSchema;

use super::breaker::BreakerSettings;
use super::ids::Invalid;
use super::json_object;
use super::limiter::{Algorithm, AlgorithmKind, ParameterSet, Parameters};
use super::policy::{Excess, Name, NewPolicy, Range, WhenDown, WrongPolicy};

/// The terms of a policy. docs/limits.md says which parameters each algorithm takes.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PolicyTerms)]
pub struct PolicyForm {
    /// The applications that may use the policy. The first one given when the policy is made is its home.
    #[schema(value_type = Vec<Name>, min_items = 1, max_items = 100)]
    pub apps: Vec<String>,
    pub algorithm: AlgorithmKind,
    /// Permits in a window, or permits in flight (concurrency); -1 means no limit.
    pub limit: Option<i64>,
    /// The window in milliseconds; for a bucket, the period of its rate (default 1000).
    pub window_ms: Option<i64>,
    /// Permits that a bucket regains, or drains, in one window.
    pub rate: Option<i64>,
    /// Permits that a bucket holds (default: its rate).
    pub capacity: Option<i64>,
    /// After how many milliseconds the permits of a caller that does not give them back are free again (default 30000).
    pub lease_ms: Option<i64>,
    /// With `ceiling`: the range in which the limit, or the rate of a bucket, moves by itself.
    pub floor: Option<i64>,
    pub ceiling: Option<i64>,
    /// Calls reported as slower than this many milliseconds lower the limit.
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub target_ms: Option<i64>,
    /// `reject` (default), `queue:MS`, `degrade:JSON` or `shadow`.
    #[schema(
        max_length = 4104,
        pattern = "^(reject|shadow|queue:([1-9][0-9]{0,3}|[1-5][0-9]{4}|60000)|degrade:[\\s\\S]*)$"
    )]
    pub excess: Option<String>,
    /// What to answer while the limiter's Redis cannot be asked (default `closed`).
    pub when_down: Option<WhenDown>,
    /// A circuit breaker; `{}` takes the defaults.
    #[serde(default, deserialize_with = "json_object::optional")]
    pub breaker: Option<BreakerSettings>,
    /// The meaning of the caller's key: user, interface, channel… For readers and for warnings. With `address`, keys are network addresses:
    /// all spellings of one client are counted together, and an IPv6 /64 is one client.
    #[serde(default)]
    #[schema(max_length = 64, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]*$")]
    pub key: String,
    /// Distribute the keys over the nodes of a cluster. Gives more throughput, but a call over several policies then
    /// asks them one after another.
    #[serde(default)]
    pub spread: bool,
}

impl PolicyForm {
    /// The policy with these terms under a name, still to be checked.
    pub fn named(self, name: &str) -> Result<NewPolicy, WrongPolicy> {
        let Self { limit, window_ms, rate, mut capacity, mut lease_ms, .. } = self;
        match self.algorithm.parameter_set() {
            ParameterSet::Window => {}
            ParameterSet::Bucket => capacity = capacity.or(rate),
            ParameterSet::Leases => lease_ms = lease_ms.or(Some(30_000)),
        }
        let parameters = Parameters { limit, window_ms, rate, capacity, lease_ms };
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
            excess: self.excess.as_deref().map_or(Ok(Excess::Reject), excess)?,
            when_down: self.when_down.unwrap_or(WhenDown::Closed),
            breaker: self.breaker,
        })
    }
}

/// A schema cannot say whether a text is JSON, so a wrong prepared answer counts as `Unworkable`.
fn excess(text: &str) -> Result<Excess, WrongPolicy> {
    let unworkable = text.starts_with("degrade:");
    Excess::parse(text).map_err(|wrong| if unworkable { WrongPolicy::Unworkable(wrong) } else { wrong.into() })
}

/// Parses the names of applications, without repeated ones. The first one is the policy's home.
pub fn names(texts: &[String]) -> Result<Vec<Name>, Invalid> {
    let mut names = texts.iter().map(|text| Name::parse(text, "app")).collect::<Result<Vec<_>, _>>()?;
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    Ok(names)
}
