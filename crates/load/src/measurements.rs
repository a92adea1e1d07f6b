//! What each connection measures. The measurements are merged once at the end, so that connections share nothing.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::client::{Answer, NoAnswer};
use super::plan::Role;

/// What an answer means to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Accepted {
        order_id: String,
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
pub struct Reply {
    /// HTTP status; 0 if there was no answer.
    pub status: u16,
    pub code: String,
    pub outcome: Outcome,
}

/// The fields read from a body; a refusal is a problem document with a code.
#[derive(Deserialize, Default)]
struct AnswerFields {
    code: Option<String>,
    order_id: Option<String>,
}

impl Reply {
    pub fn read(answer: &Result<Answer, NoAnswer>) -> Self {
        let answer = match answer {
            Ok(answer) => answer,
            Err(no_answer) => {
                let outcome = Outcome::Failed { may_retry: true };
                return Self { status: 0, code: no_answer.to_string(), outcome };
            }
        };
        let status = answer.status.as_u16();
        let fields: AnswerFields = serde_json::from_slice(&answer.body).unwrap_or_default();
        let mut code = fields.code.unwrap_or_default();
        let outcome = match (status, fields.order_id) {
            (202, Some(order_id)) => Outcome::Accepted { order_id },
            (202, None) => {
                "without order_id".clone_into(&mut code);
                Outcome::Failed { may_retry: false }
            }
            (409, _) if code == "sold-out" => Outcome::SoldOut,
            // A proxy that got no answer from the service counts as the service not knowing.
            (502..=504, _) => Outcome::Failed { may_retry: true },
            (500.., _) => Outcome::Failed { may_retry: false },
            _ => Outcome::Refused,
        };
        Self { status, code, outcome }
    }
}

/// How one request of an arrival ended; times in microseconds since the beginning of the rush.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Index into the schedule.
    pub arrival: usize,
    pub sent_us: u64,
    pub answered_us: u64,
    /// From the arrival (its scheduled time or its first send, see [`super::MeasuredFrom`]) to this answer, with retries.
    pub waited_us: u64,
    /// How long after its scheduled time the first request left.
    pub lag_us: u64,
    pub kind: AnswerKind,
    /// No further request follows for this arrival.
    pub last: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    Accepted,
    SoldOut,
    Refused,
    Failed,
}

impl From<&Outcome> for AnswerKind {
    fn from(outcome: &Outcome) -> Self {
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
    pub samples: Vec<Sample>,
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
        self.samples.extend(other.samples);
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
    use bytes::Bytes;
    use hyper::StatusCode;

    use super::*;

    fn reply(status: StatusCode, body: &'static str) -> Reply {
        Reply::read(&Ok(Answer { status, retry_after: None, body: Bytes::from_static(body.as_bytes()) }))
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
        let accepted = reply(StatusCode::ACCEPTED, r#"{"order_id":"a1","status":"accepted"}"#);
        assert_eq!(accepted.outcome, Outcome::Accepted { order_id: "a1".to_owned() });
        assert_eq!(reply(StatusCode::CONFLICT, r#"{"code":"sold-out"}"#).outcome, Outcome::SoldOut);
        let already = reply(StatusCode::CONFLICT, r#"{"code":"already-purchased","order_id":"a1"}"#);
        assert_eq!((already.outcome, already.code.as_str()), (Outcome::Refused, "already-purchased"));
        assert_eq!(reply(StatusCode::BAD_GATEWAY, "<html>").outcome, Outcome::Failed { may_retry: true });
        assert_eq!(reply(StatusCode::INTERNAL_SERVER_ERROR, "").outcome, Outcome::Failed { may_retry: false });
        assert_eq!(reply(StatusCode::ACCEPTED, "{}").outcome, Outcome::Failed { may_retry: false });
        let lost = Reply::read(&Err(NoAnswer::TimeOut));
        assert_eq!((lost.status, lost.code.as_str()), (0, "time-out"));
    }
}
