//! Thresholds that do not fit each other: a policy for everybody together that lets through less than one that counts
//! each user, address or interface by itself would give to a single one. For people: nothing is refused for it.

use super::limiter::Parameters;
use super::policy::{Name, Policy};

/// Permits in so many milliseconds; of a concurrency policy, at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    Over { permits: i64, ms: i64 },
    AtOnce(i64),
}

impl Pace {
    /// `None` where there is no limit.
    fn of(policy: &Policy) -> Option<Self> {
        let Parameters { limit, rate, window_ms, .. } = policy.algorithm.parameters();
        let permits = rate.or(limit).filter(|permits| *permits > 0)?;
        Some(window_ms.map_or(Self::AtOnce(permits), |ms| Self::Over { permits, ms }))
    }

    fn is_below(self, other: Self) -> bool {
        match (self, other) {
            // a/b < c/d, without a fraction lost.
            (Self::Over { permits: a, ms: b }, Self::Over { permits: c, ms: d }) => {
                i128::from(a) * i128::from(d) < i128::from(c) * i128::from(b)
            }
            (Self::AtOnce(a), Self::AtOnce(b)) => a < b,
            _ => false,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Over { permits, ms } => format!("{permits} in {ms} ms"),
            Self::AtOnce(permits) => format!("{permits} at once"),
        }
    }
}

/// What is to be said about a policy in the light of the others that its applications have. `visible` says which
/// applications the reader may know of.
pub fn warnings(policy: &Policy, all: &[Policy], visible: impl Fn(&Name) -> bool) -> Vec<String> {
    let Some(whole) = Pace::of(policy).filter(|_| policy.terms.key.is_empty()) else { return Vec::new() };
    let shares_an_app =
        |other: &Policy| other.terms.apps.iter().any(|app| visible(app) && policy.terms.apps.contains(app));
    let narrower = all.iter().filter(|other| !other.terms.key.is_empty() && shares_an_app(other));
    let greedy = narrower.filter_map(|other| Some((other, Pace::of(other).filter(|one| whole.is_below(*one))?)));
    let said = greedy.map(|(other, one)| {
        let (name, key) = (&other.terms.name, &other.terms.key);
        format!("{} for everybody together is less than {name} gives to one {key}: {}", whole.text(), one.text())
    });
    said.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::limiter::{Algorithm, AlgorithmKind};
    use crate::domain::policy::{Excess, NewPolicy, WhenDown};

    fn policy(app: &str, key: &str, kind: AlgorithmKind, limit: i64, span_ms: i64) -> Policy {
        let parameters = match kind {
            AlgorithmKind::Concurrency => {
                Parameters { limit: Some(limit), lease_ms: Some(span_ms), ..Parameters::default() }
            }
            AlgorithmKind::TokenBucket => {
                Parameters { rate: Some(limit), capacity: Some(1), window_ms: Some(span_ms), ..Parameters::default() }
            }
            _ => Parameters { limit: Some(limit), window_ms: Some(span_ms), ..Parameters::default() },
        };
        let algorithm = Algorithm::new(kind, &parameters).unwrap();
        let name = |text| Name::parse(text, "name").unwrap();
        let terms = NewPolicy {
            name: name("p"),
            apps: vec![name(app)],
            key: key.into(),
            spread: false,
            algorithm,
            range: None,
            excess: Excess::Reject,
            when_down: WhenDown::Closed,
            breaker: None,
        };
        Policy {
            id: 0,
            home: name(app),
            version: 1,
            terms,
            algorithm,
            created_by: String::new(),
            updated_by: String::new(),
            updated_at_ms: 0,
        }
    }

    #[test]
    fn a_whole_below_one_part_is_told() {
        let told = |whole: &Policy, part: &Policy| {
            let all = [whole.clone(), part.clone()];
            assert_eq!(warnings(part, &all, |_| true), Vec::<String>::new());
            warnings(whole, &all, |_| true)
        };
        let window = |key, limit, ms| policy("shop", key, AlgorithmKind::FixedWindow, limit, ms);
        assert_eq!(
            told(&window("", 4, 1000), &window("user", 5, 1000)),
            ["4 in 1000 ms for everybody together is less than p gives to one user: 5 in 1000 ms"]
        );
        assert!(told(&window("", 5, 1000), &window("user", 5, 1000)).is_empty());
        // 100 a minute is less than 2 a second, of a bucket too; nothing is less than no limit.
        assert_eq!(
            told(&window("", 100, 60_000), &policy("shop", "user", AlgorithmKind::TokenBucket, 2, 1000)).len(),
            1
        );
        assert!(told(&window("", -1, 1000), &window("user", 5, 1000)).is_empty());
        assert!(told(&window("", 1, 1000), &window("user", -1, 1000)).is_empty());
        // Places are compared with places only, and applications by themselves.
        let places = |key, limit| policy("shop", key, AlgorithmKind::Concurrency, limit, 1000);
        assert_eq!(told(&places("", 1), &places("user", 2)).len(), 1);
        assert!(told(&window("", 1, 1000), &places("user", 2)).is_empty());
        assert!(told(&window("", 1, 1000), &policy("bank", "user", AlgorithmKind::FixedWindow, 2, 1000)).is_empty());
        let unseen = [window("", 1, 1000), window("user", 2, 1000)];
        assert!(warnings(&unseen[0], &unseen, |_| false).is_empty());
    }
}
