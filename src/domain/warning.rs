//! Warnings about a policy for all callers that grants less than another policy grants to one user, address or interface.

use super::limiter::{ParameterSet, Parameters};
use super::policy::{Name, Policy, threshold};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    Over { permits: i64, ms: i64 },
    InFlight(i64),
}

impl Pace {
    /// `None` where there is no limit.
    fn of(policy: &Policy) -> Option<Self> {
        let permits = threshold(&policy.algorithm)?;
        let Parameters { window_ms, .. } = policy.algorithm.parameters();
        match policy.algorithm.kind().parameter_set() {
            ParameterSet::Window | ParameterSet::Bucket => window_ms.map(|ms| Self::Over { permits, ms }),
            ParameterSet::Leases => Some(Self::InFlight(permits)),
        }
    }

    /// Paces of different kinds cannot be compared.
    fn is_below(self, other: Self) -> bool {
        match (self, other) {
            // a/b < c/d in whole numbers.
            (Self::Over { permits: a, ms: b }, Self::Over { permits: c, ms: d }) => {
                i128::from(a) * i128::from(d) < i128::from(c) * i128::from(b)
            }
            (Self::InFlight(a), Self::InFlight(b)) => a < b,
            _ => false,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Over { permits, ms } => format!("{permits} in {ms} ms"),
            Self::InFlight(permits) => format!("{permits} at once"),
        }
    }
}

/// The warnings about a policy, compared with the other policies of its applications that are visible to the reader.
pub fn warnings(policy: &Policy, all: &[Policy], visible: impl Fn(&Name) -> bool) -> Vec<String> {
    let Some(whole) = Pace::of(policy).filter(|_| policy.terms.key.is_empty()) else { return Vec::new() };
    let shares_an_app =
        |other: &Policy| other.terms.apps.iter().any(|app| visible(app) && policy.terms.apps.contains(app));
    let narrower = all.iter().filter(|other| !other.terms.key.is_empty() && shares_an_app(other));
    let larger = narrower.filter_map(|other| Some((other, Pace::of(other).filter(|pace| whole.is_below(*pace))?)));
    let warnings = larger.map(|(other, pace)| {
        let (name, key) = (&other.terms.name, &other.terms.key);
        format!("{} for everybody together is less than {name} gives to one {key}: {}", whole.text(), pace.text())
    });
    warnings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::limiter::{Algorithm, AlgorithmKind};
    use crate::domain::policy::{Excess, NewPolicy, WhenDown};

    fn policy(app: &str, key: &str, kind: AlgorithmKind, limit: i64, span_ms: i64) -> Policy {
        let name = |text| Name::parse(text, "name").unwrap();
        let terms = NewPolicy {
            name: name("p"),
            apps: vec![name(app)],
            key: key.into(),
            spread: false,
            algorithm: Algorithm::of(kind, limit, span_ms),
            range: None,
            excess: Excess::Reject,
            when_down: WhenDown::Closed,
            breaker: None,
        };
        Policy::planned(terms).unwrap()
    }

    #[test]
    fn a_policy_for_all_that_grants_less_than_one_caller_gets_has_a_warning() {
        let warnings_of = |whole: &Policy, part: &Policy| {
            let all = [whole.clone(), part.clone()];
            assert_eq!(warnings(part, &all, |_| true), Vec::<String>::new());
            warnings(whole, &all, |_| true)
        };
        let window = |key, limit, ms| policy("shop", key, AlgorithmKind::FixedWindow, limit, ms);
        assert_eq!(
            warnings_of(&window("", 4, 1000), &window("user", 5, 1000)),
            ["4 in 1000 ms for everybody together is less than p gives to one user: 5 in 1000 ms"]
        );
        assert!(warnings_of(&window("", 5, 1000), &window("user", 5, 1000)).is_empty());
        // 100 a minute is less than 2 a second, also for a bucket; a policy without a limit has no warning.
        let bucket = policy("shop", "user", AlgorithmKind::TokenBucket, 2, 1000);
        assert_eq!(warnings_of(&window("", 100, 60_000), &bucket).len(), 1);
        assert!(warnings_of(&window("", -1, 1000), &window("user", 5, 1000)).is_empty());
        assert!(warnings_of(&window("", 1, 1000), &window("user", -1, 1000)).is_empty());
        // Permits in flight are compared with permits in flight only, and policies within one application only.
        let in_flight = |key, limit| policy("shop", key, AlgorithmKind::Concurrency, limit, 1000);
        assert_eq!(warnings_of(&in_flight("", 1), &in_flight("user", 2)).len(), 1);
        assert!(warnings_of(&window("", 1, 1000), &in_flight("user", 2)).is_empty());
        let of_bank = policy("bank", "user", AlgorithmKind::FixedWindow, 2, 1000);
        assert!(warnings_of(&window("", 1, 1000), &of_bank).is_empty());
        let unseen = [window("", 1, 1000), window("user", 2, 1000)];
        assert!(warnings(&unseen[0], &unseen, |_| false).is_empty());
    }
}
