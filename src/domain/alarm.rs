//! What can be wrong, and be told.

use serde_json::Value;

/// Kinds of alarms. docs/runbooks says what to do about each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlarmKind {
    /// Messages that are not sent again by themselves.
    Parked,
    /// Rows of the outbox that nobody carries out.
    OutboxOld,
    /// Redis and PostgreSQL disagreed about a sale at rest.
    Drift,
    /// What could not be sent to a channel, and is not sent again by itself.
    DeadChannel,
    /// A policy refuses most of what it is asked.
    Refusals,
    /// The limiter's Redis does not answer.
    LimiterDown,
    /// Callbacks that do not fit what is known, set aside.
    SetAside,
    /// Refunds that their channel has refused.
    RefundFailed,
    /// Money of which nothing has been heard for long.
    MoneyStuck,
}

impl AlarmKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parked => "parked",
            Self::OutboxOld => "outbox-old",
            Self::Drift => "drift",
            Self::DeadChannel => "dead-channel",
            Self::Refusals => "refusals",
            Self::LimiterDown => "limiter-down",
            Self::SetAside => "set-aside",
            Self::RefundFailed => "refund-failed",
            Self::MoneyStuck => "money-stuck",
        }
    }
}

/// One thing that is wrong: with what, and by how much.
#[derive(Debug, Clone, PartialEq)]
pub struct Trouble {
    pub subject: String,
    pub details: Value,
}

impl Trouble {
    pub fn new(subject: &str, details: Value) -> Self {
        Self { subject: subject.to_owned(), details }
    }
}

/// Whether so many refusals among so many answers are an alarm: a share says nothing of a handful.
pub fn too_many_refused(granted: u64, refused: u64, percent: u64) -> bool {
    const ANSWERS_MIN: u64 = 100;
    let answers = granted.saturating_add(refused);
    answers >= ANSWERS_MIN && refused.saturating_mul(100) >= answers.saturating_mul(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_counts_from_a_hundred_answers_on() {
        assert!(too_many_refused(10, 90, 90));
        assert!(!too_many_refused(11, 89, 90));
        assert!(!too_many_refused(0, 99, 90));
        assert!(too_many_refused(0, u64::MAX, 90));
    }
}
