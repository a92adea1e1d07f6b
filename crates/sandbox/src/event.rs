//! What happens to the book, and what does not.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::transfer::{Asked, Kind};

/// Which payment or refund.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Which {
    pub kind: Kind,
    pub key: Uuid,
}

/// What happens to the book: a line of the file each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Taken {
        key: Uuid,
        n: u64,
        asked: Asked,
        due_us: i64,
    },
    Decided {
        which: Which,
        verdict: Verdict,
        message: u64,
        at_us: i64,
    },
    /// A callback is owed once more.
    Again {
        which: Which,
        send: u64,
        due_us: i64,
    },
    /// A callback needs no more attempts.
    Ended {
        send: u64,
        outcome: Outcome,
    },
}

/// A decision, and what its callback shall say and when: dice are thrown once, so that a restart changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub succeeded: bool,
    /// The amount that the callback says.
    pub told_cents: i64,
    /// When its callback is due, for each time that it is to be sent.
    pub due_us: Vec<i64>,
}

/// How a callback ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Delivered,
    /// 422: the receiver does not want it, ever.
    Refused,
    /// A day has passed.
    GivenUp,
}

/// Why a call has no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Malformed(String),
    #[error("the limit of this second is reached")]
    TooMany,
    #[error("failed on purpose; nothing was done")]
    OnPurpose,
    #[error("this key was used with another body")]
    Mismatch,
    #[error("{0}")]
    NotRefundable(&'static str),
    #[error("there is none of this key")]
    Unknown,
    #[error("it is decided already")]
    Decided,
    #[error("it is not decided yet")]
    NotDecided,
}
