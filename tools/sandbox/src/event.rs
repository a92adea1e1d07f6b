//! Events, which change the book.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::transfer::{TransferKind, TransferRequest};

/// A payment or refund, by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct TransferRef {
    pub kind: TransferKind,
    pub key: Uuid,
}

/// A change of the book. Each is one line of the file, so these field names are the file's format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// A payment or refund was taken.
    Taken { key: Uuid, n: u64, asked: TransferRequest, due_us: i64 },
    /// A transfer succeeded or failed.
    Decided { which: TransferRef, verdict: Verdict, message: u64, at_us: i64 },
    /// A callback has to be sent once more.
    Again { which: TransferRef, send: u64, due_us: i64 },
    /// A callback needs no more attempts.
    Ended { send: u64, outcome: Outcome },
}

/// A decision, with the amount and the times of its callbacks. Random numbers are drawn before the event is written, so that
/// a restart does not change them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub succeeded: bool,
    /// The amount in the callback.
    pub told_cents: i64,
    /// When the callback is due: one entry for each time that it is sent.
    pub due_us: Vec<i64>,
    /// Why it was declined, as a code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How a callback ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Delivered,
    /// The receiver answered 422: the callback is not sent again.
    Refused,
    /// A day has passed without a final answer.
    GivenUp,
}
