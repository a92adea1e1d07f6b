//! Policies of flow control: an algorithm, the applications that may use it, and the treatment of excess calls.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::breaker::BreakerSettings;
use super::client_address::ClientAddress;
use super::ids::Invalid;
use super::limiter::{Algorithm, AlgorithmKind, ParameterSet, Parameters, WrongParameter};
use super::text;

/// The name of an application or a policy: 1 to 64 of `A-Z a-z 0-9 _ . -`, the first a letter or a digit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String, pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
pub struct Name(Box<str>);

impl Name {
    pub fn parse(text: &str, field: &'static str) -> Result<Self, Invalid> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        if first && text.len() <= 64 && text.bytes().all(fits) {
            Ok(Self(text.into()))
        } else {
            Err(Invalid::new(field, "must be 1 to 64 of A-Z a-z 0-9 _ . - and begin with a letter or a digit"))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The treatment of a request beyond the limit.
#[derive(Debug, Clone, PartialEq)]
pub enum Excess {
    Reject,
    /// It waits in line for at most `patience`, and is then refused.
    Queue {
        patience: Duration,
    },
    /// It is refused with a prepared answer.
    Degrade {
        answer: Value,
    },
    /// It is granted and counted as refused, to try out a new limit.
    Shadow,
}

impl Excess {
    /// Parses `reject`, `queue:MS`, `degrade:JSON` or `shadow`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let wrong = |problem| Err(Invalid::new("excess", problem));
        match text.split_once(':') {
            None if text == "reject" => Ok(Self::Reject),
            None if text == "shadow" => Ok(Self::Shadow),
            Some(("queue", ms)) => match ms.parse() {
                Ok(ms @ 1..=60_000) if text == format!("queue:{ms}") => {
                    Ok(Self::Queue { patience: Duration::from_millis(ms) })
                }
                _ => wrong("queue:MS takes 1 to 60000 milliseconds"),
            },
            Some(("degrade", json)) if json.chars().count() <= 4096 => {
                match serde_json::from_str(json) {
                    // PostgreSQL's JSON has no such character.
                    Ok(_) if json.contains("\\u0000") => wrong("degrade:JSON may not have the character \\u0000"),
                    Ok(answer) => Ok(Self::Degrade { answer }),
                    Err(_) => wrong("degrade:JSON takes one JSON value"),
                }
            }
            Some(("degrade", _)) => wrong("degrade:JSON may have 4096 characters"),
            _ => wrong("must be reject, queue:MS, degrade:JSON or shadow"),
        }
    }

    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::Queue { .. } => "queue",
            Self::Degrade { .. } => "degrade",
            Self::Shadow => "shadow",
        }
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue { patience } => write!(f, "queue:{}", patience.as_millis()),
            Self::Degrade { answer } => write!(f, "degrade:{answer}"),
            Self::Reject | Self::Shadow => f.write_str(self.as_str()),
        }
    }
}

/// A policy's answer while the limiter's Redis cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str, parse_err_ty = Invalid, parse_err_fn = wrong_when_down)]
pub enum WhenDown {
    /// Refuse.
    Closed,
    /// Grant.
    Open,
    /// Each instance grants its share of the limit from its own memory.
    Local,
}

fn wrong_when_down(_: &str) -> Invalid {
    Invalid::new("when-down", "must be closed, open or local")
}

impl WhenDown {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// The range in which a threshold moves by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Range {
    pub floor: i64,
    pub ceiling: i64,
    /// Calls reported as slower than this count as trouble, which lowers the threshold.
    pub target_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct NewPolicy {
    pub name: Name,
    pub apps: Vec<Name>,
    /// The meaning of the caller's key: user, channel… For readers, except for `ADDRESS_KEY`.
    pub key: String,
    /// Whether each key has a hash tag of its own; see `SlotKey::new`.
    pub spread: bool,
    pub algorithm: Algorithm,
    pub range: Option<Range>,
    pub excess: Excess,
    pub when_down: WhenDown,
    pub breaker: Option<BreakerSettings>,
}

impl NewPolicy {
    pub fn check(mut self) -> Result<Self, WrongPolicy> {
        let invalid = |field, problem| Err(Invalid::new(field, problem).into());
        let unworkable = |field, problem| Err(WrongPolicy::Unworkable(Invalid::new(field, problem)));
        if !(1..=100).contains(&self.apps.len()) {
            return invalid("app", "must be given once to a hundred times");
        }
        self.key = text::line(&self.key, "key", 0..=64)?;
        if let Some(range) = self.range {
            if range.floor < 1 {
                return invalid("floor", "must be at least 1");
            }
            if range.target_ms.is_some_and(|ms| !(1..=3_600_000).contains(&ms)) {
                return invalid("target_ms", "must be 1 to 3600000");
            }
            // Both ends must be legal limits too, so that no later move of the threshold can fail.
            with_threshold(&self.algorithm, range.floor)?;
            with_threshold(&self.algorithm, range.ceiling)?;
            match threshold(&self.algorithm) {
                None => return invalid("floor", "needs a limit to move"),
                Some(threshold) if (range.floor..=range.ceiling).contains(&threshold) => {}
                Some(_) => {
                    return unworkable(
                        "floor",
                        "and the ceiling must have the limit, or a bucket's rate, between them",
                    );
                }
            }
        }
        if let Some(breaker) = self.breaker {
            breaker.check()?;
        }
        // The script that sells has fixed windows only.
        let limits_purchases = self.apps.iter().any(|app| app.as_str() == HOUSE_APP);
        if limits_purchases && (self.apps.len() > 1 || self.algorithm.kind() != AlgorithmKind::FixedWindow) {
            let problem = "must be fixed-window for the app seckill, which shares its policies with no other";
            return unworkable("algorithm", problem);
        }
        if limits_purchases && self.excess != Excess::Reject {
            return unworkable("excess", "must be reject for the app seckill");
        }
        Ok(self)
    }
}

/// The parameter that can move: a bucket's rate, and the limit of other algorithms. `None` where there is no limit.
pub fn threshold(algorithm: &Algorithm) -> Option<i64> {
    let Parameters { limit, rate, .. } = algorithm.parameters();
    let threshold = match algorithm.kind().parameter_set() {
        ParameterSet::Bucket => rate,
        ParameterSet::Window | ParameterSet::Leases => limit,
    };
    threshold.filter(|threshold| *threshold > 0)
}

/// The same algorithm with another threshold, unless that is out of bounds.
pub fn with_threshold(algorithm: &Algorithm, threshold: i64) -> Result<Algorithm, WrongParameter> {
    let before = algorithm.parameters();
    let after = match algorithm.kind().parameter_set() {
        ParameterSet::Bucket => Parameters { rate: Some(threshold), ..before },
        ParameterSet::Window | ParameterSet::Leases => Parameters { limit: Some(threshold), ..before },
    };
    Algorithm::new(algorithm.kind(), &after)
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongPolicy {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Parameter(#[from] WrongParameter),
    /// Each term is valid, but not together with the others.
    #[error(transparent)]
    Unworkable(Invalid),
}

/// The meaning of keys that are network addresses.
pub const ADDRESS_KEY: &str = "address";

/// The application of this service itself. Its policies limit purchases.
pub const HOUSE_APP: &str = "seckill";

#[derive(Debug, Clone)]
pub struct Policy {
    pub id: i64,
    /// The policy's first application. It never changes: slots of one home can be checked in one script.
    pub home: Name,
    pub version: i64,
    pub terms: NewPolicy,
    /// The algorithm in force. Its threshold may have moved between floor and ceiling.
    pub algorithm: Algorithm,
    /// The threshold at the last trouble.
    pub trouble_at: Option<i64>,
    pub created_by: String,
    pub updated_by: String,
    pub updated_at_ms: i64,
}

impl NewPolicy {
    /// The key that is counted for a caller's key. Where keys are addresses, all spellings of one client are one key. A key that is no address
    /// stays as it is, and so does every key of other policies: what looks like an address may be something else.
    pub fn counted_key<'a>(&self, key: &'a str) -> Cow<'a, str> {
        let client = if self.key == ADDRESS_KEY { ClientAddress::parse(key) } else { None };
        client.map_or(Cow::Borrowed(key), |client| client.to_string().into())
    }

    /// The terms as JSON, for the audit log.
    pub fn describe(&self) -> Value {
        let Parameters { limit, capacity, rate, window_ms, lease_ms } = self.algorithm.parameters();
        json!({
            "apps": self.apps, "key": self.key, "spread": self.spread, "algorithm": self.algorithm.kind(),
            "limit": limit, "capacity": capacity, "rate": rate, "window_ms": window_ms, "lease_ms": lease_ms,
            "range": self.range, "excess": self.excess.to_string(), "when_down": self.when_down,
            "breaker": self.breaker,
        })
    }
}

impl Policy {
    pub fn planned(terms: NewPolicy) -> Option<Self> {
        let home = terms.apps.first()?.clone();
        Some(Self {
            id: 0,
            home,
            version: 0,
            algorithm: terms.algorithm,
            terms,
            trouble_at: None,
            created_by: String::new(),
            updated_by: String::new(),
            updated_at_ms: 0,
        })
    }

    /// The parameters in force, for people.
    pub fn describe_terms(&self) -> String {
        let Parameters { limit, capacity, rate, window_ms, lease_ms } = self.algorithm.parameters();
        let (limit, capacity, rate) = (("limit", limit), ("capacity", capacity), ("rate", rate));
        let named = [limit, capacity, rate, ("window_ms", window_ms), ("lease_ms", lease_ms)];
        let mut parts: Vec<_> = named.into_iter().filter_map(|(name, n)| Some(format!("{name} {}", n?))).collect();
        if let Some(range) = &self.terms.range {
            parts.push(format!("adapts {} to {}", range.floor, range.ceiling));
        }
        if self.terms.breaker.is_some() {
            parts.push("breaker".to_owned());
        }
        parts.join(", ")
    }

    /// The most permits of a call at the highest threshold.
    pub fn most_permits(&self) -> i64 {
        let highest = self.terms.range.and_then(|range| with_threshold(&self.algorithm, range.ceiling).ok());
        highest.map_or(0, |highest| highest.max_permits()).max(self.algorithm.max_permits())
    }
}

/// An account's rights to an application's policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str, parse_err_ty = Invalid, parse_err_fn = wrong_role)]
#[schema(as = GrantedRole)]
pub enum Role {
    /// Sees them.
    Viewer,
    /// Sees, changes and deletes them.
    Owner,
}

fn wrong_role(_: &str) -> Invalid {
    Invalid::new("role", "must be viewer or owner")
}

impl Role {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}
