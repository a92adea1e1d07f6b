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
    use crate::limiter::{Algorithm, AlgorithmKind};
    use crate::policy::{Excess, NewPolicy, WhenDown};

    fn policy(app: &str, key: &str, (kind, limit, ms): (AlgorithmKind, i64, i64)) -> Policy {
        let name = |text| Name::parse(text, "name").unwrap();
        let terms = NewPolicy {
            name: name("p"),
            apps: vec![name(app)],
            key: key.into(),
            spread: false,
            algorithm: Algorithm::of(kind, limit, ms),
            range: None,
            excess: Excess::Reject,
            when_down: WhenDown::Closed,
            breaker: None,
        };
        Policy::planned(terms).unwrap()
    }

    #[test]
    fn a_policy_for_all_that_grants_less_than_one_caller_gets_has_a_warning() {
        use AlgorithmKind::{Concurrency, FixedWindow, TokenBucket};
        // 100 a minute is less than 2 a second, also for a bucket. Permits in flight are compared with permits in flight only, and policies
        // within one application only.
        for (whole, app, part, warned) in [
            ((FixedWindow, 4, 1000), "shop", (FixedWindow, 5, 1000), true),
            ((FixedWindow, 5, 1000), "shop", (FixedWindow, 5, 1000), false),
            ((FixedWindow, 100, 60_000), "shop", (TokenBucket, 2, 1000), true),
            ((FixedWindow, -1, 1000), "shop", (FixedWindow, 5, 1000), false),
            ((FixedWindow, 1, 1000), "shop", (FixedWindow, -1, 1000), false),
            ((Concurrency, 1, 1000), "shop", (Concurrency, 2, 1000), true),
            ((FixedWindow, 1, 1000), "shop", (Concurrency, 2, 1000), false),
            ((FixedWindow, 1, 1000), "bank", (FixedWindow, 2, 1000), false),
        ] {
            let all = [policy("shop", "", whole), policy(app, "user", part)];
            assert_eq!(warnings(&all[0], &all, |_| true).len(), usize::from(warned), "{whole:?} {app} {part:?}");
            assert!(warnings(&all[1], &all, |_| true).is_empty() && warnings(&all[0], &all, |_| false).is_empty());
        }
        let all = [policy("shop", "", (FixedWindow, 4, 1000)), policy("shop", "user", (FixedWindow, 5, 1000))];
        let text = "4 in 1000 ms for everybody together is less than p gives to one user: 5 in 1000 ms";
        assert_eq!(warnings(&all[0], &all, |_| true), [text]);
    }
}
