//! What an answer means to its caller.

use std::borrow::Cow;

use serde::Deserialize;

use super::answer::Answer;
use super::connections::NoAnswer;

/// What an answer means to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<'a> {
    Accepted {
        order_id: Cow<'a, str>,
    },
    SoldOut,
    Refused,
    /// The result is not known: the service could not answer, or no answer came.
    Failed {
        may_retry: bool,
    },
}

/// The part of an answer that is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply<'a> {
    /// HTTP status; 0 if there was no answer.
    pub status: u16,
    pub code: Cow<'a, str>,
    pub outcome: Outcome<'a>,
}

/// The fields read from a body; a refusal is a problem document with a code.
#[derive(Deserialize, Default)]
#[serde(default)]
struct AnswerFields<'a> {
    #[serde(borrow)]
    code: Cow<'a, str>,
    #[serde(borrow)]
    order_id: Cow<'a, str>,
}

impl<'a> Reply<'a> {
    pub fn read(answer: Result<Answer<'a>, NoAnswer>) -> Self {
        let Answer { status, body, .. } = match answer {
            Ok(answer) => answer,
            Err(why) => {
                return Self { status: 0, code: why.name().into(), outcome: Outcome::Failed { may_retry: true } };
            }
        };
        let AnswerFields { mut code, order_id } = serde_json::from_slice(body).unwrap_or_default();
        let outcome = match status {
            202 if order_id.is_empty() => {
                code = "without order_id".into();
                Outcome::Failed { may_retry: false }
            }
            202 => Outcome::Accepted { order_id },
            409 if code == "sold-out" => Outcome::SoldOut,
            // A proxy that got no answer from the service counts as the service not knowing.
            502..=504 => Outcome::Failed { may_retry: true },
            500.. => Outcome::Failed { may_retry: false },
            _ => Outcome::Refused,
        };
        Self { status, code, outcome }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    Accepted,
    SoldOut,
    Refused,
    Failed,
}

impl From<&Outcome<'_>> for AnswerKind {
    fn from(outcome: &Outcome<'_>) -> Self {
        match outcome {
            Outcome::Accepted { .. } => Self::Accepted,
            Outcome::SoldOut => Self::SoldOut,
            Outcome::Refused => Self::Refused,
            Outcome::Failed { .. } => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, body: &str) -> Reply<'_> {
        Reply::read(Ok(Answer { status, retry_after: None, body: body.as_bytes() }))
    }

    #[test]
    fn answers_are_classified() {
        let accepted = reply(202, r#"{"order_id":"a1","status":"accepted","expires_at_ms":7}"#);
        assert_eq!(accepted.outcome, Outcome::Accepted { order_id: "a1".into() });
        assert_eq!(reply(409, r#"{"code":"sold-out"}"#).outcome, Outcome::SoldOut);
        let already = reply(409, r#"{"code":"already-purchased","order_id":"a1"}"#);
        assert_eq!((already.outcome, already.code.as_ref()), (Outcome::Refused, "already-purchased"));
        assert_eq!(reply(409, r#"{"code":"sold\u002dout","title":"\u0022"}"#).outcome, Outcome::SoldOut);
        assert_eq!(reply(502, "<html>").outcome, Outcome::Failed { may_retry: true });
        assert_eq!(reply(500, "").outcome, Outcome::Failed { may_retry: false });
        assert_eq!(reply(202, "{}").outcome, Outcome::Failed { may_retry: false });
        let lost = Reply::read(Err(NoAnswer::TimeOut));
        assert_eq!((lost.status, lost.code.as_ref()), (0, "time-out"));
    }

    /// Reading a refusal copies nothing, because a crowd gets tens of thousands a second.
    #[test]
    fn a_refusal_is_read_where_it_lies() {
        let refused = reply(429, r#"{"type":"about:blank","code":"quota-exceeded"}"#);
        assert!(matches!(refused.code, Cow::Borrowed("quota-exceeded")));
    }
}
