//! The meaning of an answer to its caller.

use std::borrow::Cow;

use serde::Deserialize;

use super::answer::Answer;
use super::connections::NoAnswer;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    Accepted,
    SoldOut,
    Refused,
    /// The result is not known: the service could not answer, or no answer came.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply<'a> {
    /// HTTP status; 0 if there was no answer.
    pub status: u16,
    pub code: Cow<'a, str>,
    pub kind: AnswerKind,
    pub may_retry: bool,
    /// The order that a 202 promises.
    pub order_id: Option<Cow<'a, str>>,
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
    pub(crate) fn read(answer: Result<Answer<'a>, NoAnswer>) -> Self {
        let Answer { status, body, .. } = match answer {
            Ok(answer) => answer,
            Err(why) => {
                let (kind, code) = (AnswerKind::Failed, why.name().into());
                return Self { status: 0, code, kind, may_retry: true, order_id: None };
            }
        };
        let AnswerFields { mut code, order_id } = serde_json::from_slice(body).unwrap_or_default();
        let kind = match status {
            202 if order_id.is_empty() => {
                code = "without order_id".into();
                AnswerKind::Failed
            }
            202 => AnswerKind::Accepted,
            409 if code == "sold-out" => AnswerKind::SoldOut,
            500.. => AnswerKind::Failed,
            _ => AnswerKind::Refused,
        };
        // A proxy that got no answer from the service counts as the service not knowing.
        let may_retry = matches!(status, 502..=504);
        Self { status, code, kind, may_retry, order_id: (kind == AnswerKind::Accepted).then_some(order_id) }
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
        use AnswerKind::{Accepted, Failed, Refused, SoldOut};
        let accepted = r#"{"order_id":"a1","status":"accepted","expires_at_ms":7}"#;
        for (status, body, kind, may_retry) in [
            (202, accepted, Accepted, false),
            (202, "{}", Failed, false),
            (409, r#"{"code":"sold-out"}"#, SoldOut, false),
            (409, r#"{"code":"sold\u002dout","title":"\u0022"}"#, SoldOut, false),
            (409, r#"{"code":"already-purchased","order_id":"a1"}"#, Refused, false),
            (502, "<html>", Failed, true),
            (500, "", Failed, false),
        ] {
            let reply = reply(status, body);
            assert_eq!((reply.kind, reply.may_retry), (kind, may_retry), "{status} {body}");
        }
        assert_eq!(reply(202, accepted).order_id.as_deref(), Some("a1"));
        let lost = Reply::read(Err(NoAnswer::TimeOut));
        assert_eq!((lost.status, lost.code.as_ref(), lost.may_retry), (0, "time-out", true));
    }

    /// Reading a refusal copies nothing, because a crowd gets tens of thousands a second.
    #[test]
    fn a_refusal_is_read_where_it_lies() {
        let refused = reply(429, r#"{"type":"about:blank","code":"quota-exceeded"}"#);
        assert!(matches!(refused.code, Cow::Borrowed("quota-exceeded")));
    }
}
