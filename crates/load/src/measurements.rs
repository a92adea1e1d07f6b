//! What each thread measures. The measurements are merged once at the end, so that threads share nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

use super::answer::Answer;
use super::connections::NoAnswer;
use super::plan::Role;
use super::traffic::Traffic;

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

/// How an arrival ended that had its last answer; times in microseconds since the beginning of the rush.
#[derive(Debug, Clone, Copy)]
pub struct Settled {
    /// Index into the schedule.
    pub arrival: usize,
    pub answered_us: u64,
    /// From the arrival (its scheduled time or its first send, see [`super::MeasuredFrom`]) to this answer, with retries.
    pub waited_us: u64,
    /// How long after its scheduled time the first request left.
    pub lag_us: u64,
    /// The part of it in which a connection was free.
    pub own_lag_us: u64,
    pub kind: AnswerKind,
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

#[derive(Debug)]
pub struct Count {
    pub role: Role,
    pub status: u16,
    pub code: String,
    pub number: u64,
}

#[derive(Debug, Default)]
pub struct Measurements {
    /// One for each arrival, so that many retries do not fill the memory.
    pub settled: Vec<Settled>,
    /// Every request, by time.
    pub traffic: Traffic,
    /// Requests sent for an arrival after its first.
    pub retries: u64,
    /// About a dozen entries: a scan is cheaper than a map with owned keys.
    pub counts: Vec<Count>,
    /// Orders promised: index into the crowd and order id, with the time of the first promise in microseconds.
    pub accepted: BTreeMap<(usize, String), u64>,
}

impl Measurements {
    pub fn count(&mut self, role: Role, status: u16, code: &str, number: u64) {
        let same = |count: &&mut Count| count.role == role && count.status == status && count.code == code;
        match self.counts.iter_mut().find(same) {
            Some(count) => count.number += number,
            None => self.counts.push(Count { role, status, code: code.to_owned(), number }),
        }
    }

    /// Records a promised order. A repeated request repeats the promise; the earliest time counts.
    pub fn promise(&mut self, caller: usize, order_id: String, at_us: u64) {
        self.accepted
            .entry((caller, order_id))
            .and_modify(|first_us| *first_us = at_us.min(*first_us))
            .or_insert(at_us);
    }

    pub fn merge(&mut self, other: Self) {
        self.settled.extend(other.settled);
        self.traffic.merge(&other.traffic);
        self.retries += other.retries;
        for ((caller, order_id), at_us) in other.accepted {
            self.promise(caller, order_id, at_us);
        }
        for Count { role, status, code, number } in other.counts {
            self.count(role, status, &code, number);
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
    fn the_earliest_promise_of_an_order_counts() {
        let mut measurements = Measurements::default();
        measurements.promise(3, "a1".to_owned(), 70);
        let mut other = Measurements::default();
        other.promise(3, "a1".to_owned(), 40);
        measurements.merge(other);
        assert_eq!(measurements.accepted, BTreeMap::from([((3, "a1".to_owned()), 40)]));
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
