//! Events that change the book, and refusals that do not.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::transfer::{TransferKind, TransferRequest};

/// A payment or refund, by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TransferRef {
    pub kind: TransferKind,
    pub key: Uuid,
}

/// A change of the book: one line of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Taken {
        key: Uuid,
        n: u64,
        asked: TransferRequest,
        due_us: i64,
    },
    Decided {
        which: TransferRef,
        verdict: Verdict,
        message: u64,
        at_us: i64,
    },
    /// A callback is owed once more.
    Again {
        which: TransferRef,
        send: u64,
        due_us: i64,
    },
    /// A callback needs no more attempts.
    Ended {
        send: u64,
        outcome: Outcome,
    },
}

/// A decision, with its callback's contents and times: random numbers are drawn once, so that a restart changes nothing.
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
    /// 422: the receiver refuses the callback for good.
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
    #[error("no payment or refund has this key")]
    Unknown,
    #[error("the transfer is decided already")]
    Decided,
    #[error("the transfer is not decided yet")]
    NotDecided,
}
