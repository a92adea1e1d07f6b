//! The answers to a request for permits.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::error::Error;
use crate::permit::{Held, Permit, Reason};

/// How requests are answered while the service is away: it cannot be reached, does not answer in time, or cannot decide (408, 5xx, or
/// 429 from a proxy).
///
/// This is about the way from the caller to the service. If the service's own limiter is away, the policy decides (`--when-down`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenAway {
    /// [`Decision::Refused`] with [`Reason::ServiceAway`]: the limit matters more than the work. The default.
    #[default]
    Closed,
    /// [`Decision::Granted`] with [`Reason::ServiceAway`], and nothing is counted: the work matters more than the limit.
    Open,
}

/// The answer to a request for permits.
#[derive(Debug)]
pub enum Decision {
    /// The work may begin. Keep the permit until it is done.
    Granted(Permit),
    /// The application has no such policy: nothing limits the work. A misspelt name looks the same.
    NotConfigured,
    Refused(Refusal),
    /// The work must not begin, and the policy has an answer for the caller (`--excess degrade:JSON`).
    Prepared {
        answer: Value,
        refusal: Refusal,
    },
}

impl Decision {
    /// The permit if the work may begin, also without a policy.
    ///
    /// # Errors
    /// The refusal.
    pub fn permit(self) -> Result<Permit, Refusal> {
        match self {
            Self::Granted(permit) => Ok(permit),
            Self::NotConfigured => Ok(Permit::uncounted(None)),
            Self::Refused(refusal) | Self::Prepared { refusal, .. } => Err(refusal),
        }
    }
}

/// Why a permit was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("refused ({reason:?}); again in {} ms", .retry_after.as_millis())]
pub struct Refusal {
    /// When the same call would be granted if there were no other callers.
    pub retry_after: Duration,
    pub reason: Reason,
    /// The policy that refused; `None` while the service is away.
    pub policy: Option<String>,
}

/// The service's answer.
#[derive(Deserialize)]
pub(crate) struct Verdict {
    code: i8,
    #[serde(default)]
    remaining: i64,
    #[serde(default)]
    retry_after_ms: u64,
    lease: Option<String>,
    policy: Option<String>,
    reason: Option<Reason>,
    answer: Option<Value>,
    delay_ms: Option<u64>,
}

impl Verdict {
    /// Reads the answer. `hold` keeps the lease of a granted permit, if there is one.
    pub(crate) fn decide(self, hold: impl FnOnce(String) -> Held) -> Result<Decision, Error> {
        match self.code {
            1 => {
                let delay = Duration::from_millis(self.delay_ms.unwrap_or(0));
                let held = self.lease.map(hold);
                Ok(Decision::Granted(Permit::granted(self.remaining, self.reason, delay, held)))
            }
            0 => Ok(Decision::NotConfigured),
            -1 => {
                let refusal = Refusal {
                    retry_after: Duration::from_millis(self.retry_after_ms),
                    reason: self.reason.unwrap_or(Reason::Unknown),
                    policy: self.policy,
                };
                Ok(match self.answer {
                    Some(answer) => Decision::Prepared { answer, refusal },
                    None => Decision::Refused(refusal),
                })
            }
            code => Err(Error::Unreadable(format!("code {code}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(verdict: &str) -> Result<Decision, Error> {
        let verdict: Verdict = serde_json::from_str(verdict).unwrap();
        verdict.decide(|lease| panic!("no answer has a lease: {lease}"))
    }

    /// Also reasons that this version does not know.
    #[test]
    fn every_answer_of_the_service_is_a_decision() {
        let shadow = r#"{"code":1,"remaining":-1,"reason":"shadow","delay_ms":20}"#;
        let permit = decide(shadow).unwrap().permit().unwrap();
        assert_eq!((permit.remaining(), permit.reason()), (None, Some(Reason::Shadow)));
        assert_eq!(permit.delay(), Duration::from_millis(20));
        assert!(decide(r#"{"code":0}"#).unwrap().permit().is_ok());
        let refusal = decide(r#"{"code":-1,"retry_after_ms":70,"reason":"new-one"}"#).unwrap().permit().unwrap_err();
        assert_eq!((refusal.retry_after, refusal.reason), (Duration::from_millis(70), Reason::Unknown));
        let prepared = decide(r#"{"code":-1,"reason":"limit","answer":{"a":1}}"#);
        assert!(matches!(prepared, Ok(Decision::Prepared { answer, .. }) if answer["a"] == 1));
        assert!(matches!(decide(r#"{"code":7}"#), Err(Error::Unreadable(_))));
    }
}
