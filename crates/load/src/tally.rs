//! What one connection writes down; merged once at the end, so that nothing is shared while it runs.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::client::{Answer, NoAnswer};
use super::plan::Role;

/// What an answer means to the one who asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Accepted {
        order_id: String,
    },
    SoldOut,
    Refused,
    /// Not known: the service could not say, or nobody answered.
    Failed {
        may_retry: bool,
    },
}

/// An answer reduced to what is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status; 0 where there was no answer.
    pub status: u16,
    pub code: String,
    pub outcome: Outcome,
}

/// The fields read from an answer; a refusal is a problem document with a code.
#[derive(Deserialize, Default)]
struct Fields {
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
        let fields: Fields = serde_json::from_slice(&answer.body).unwrap_or_default();
        let mut code = fields.code.unwrap_or_default();
        let outcome = match (status, fields.order_id) {
            (202, Some(order_id)) => Outcome::Accepted { order_id },
            (202, None) => {
                "without order_id".clone_into(&mut code);
                Outcome::Failed { may_retry: false }
            }
            (409, _) if code == "sold-out" => Outcome::SoldOut,
            // A proxy's word for "I do not know" counts as the service's own.
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
    /// From the arrival (its scheduled time or its first send, as the report says) to this answer, retries included.
    pub waited_us: u64,
    /// How long after its scheduled time the first request left.
    pub lag_us: u64,
    pub kind: Kind,
    /// No further request follows for this arrival.
    pub last: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Accepted,
    SoldOut,
    Refused,
    Failed,
}

impl From<&Outcome> for Kind {
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
pub struct Tally {
    pub samples: Vec<Sample>,
    /// A dozen entries at most, so a scan is cheaper than a map with owned keys.
    pub counts: Vec<Count>,
    /// Who was promised which order, the index into the crowd and the id; and when it was first heard, in microseconds.
    pub accepted: BTreeMap<(usize, String), u64>,
}

impl Tally {
    pub fn count(&mut self, role: Role, status: u16, code: &str, number: u64) {
        let same = |count: &&mut Count| count.role == role && count.status == status && count.code == code;
        match self.counts.iter_mut().find(same) {
            Some(count) => count.number += number,
            None => self.counts.push(Count { role, status, code: code.to_owned(), number }),
        }
    }

    /// A promise; the answer to a repeated request repeats it.
    pub fn promise(&mut self, who: usize, order_id: String, heard_us: u64) {
        self.accepted
            .entry((who, order_id))
            .and_modify(|first_us| *first_us = heard_us.min(*first_us))
            .or_insert(heard_us);
    }

    pub fn merge(&mut self, other: Self) {
        self.samples.extend(other.samples);
        for ((who, order_id), heard_us) in other.accepted {
            self.promise(who, order_id, heard_us);
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
    fn a_promise_counts_from_when_it_was_first_heard() {
        let mut tally = Tally::default();
        tally.promise(3, "a1".to_owned(), 70);
        let mut other = Tally::default();
        other.promise(3, "a1".to_owned(), 40);
        tally.merge(other);
        assert_eq!(tally.accepted, BTreeMap::from([((3, "a1".to_owned()), 40)]));
    }

    #[test]
    fn answers_are_told_apart() {
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
