//! Alarms: what can be wrong.

use serde_json::Value;

/// Kinds of alarms. docs/runbooks says what to do about each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum AlarmKind {
    /// Outbox rows that are parked: no worker tries them again.
    Parked,
    /// Outbox rows that wait too long for a worker.
    OutboxOld,
    /// Redis and PostgreSQL disagreed about a sale at rest.
    Drift,
    /// Outflow items that are parked: their channel did not take them.
    DeadChannel,
    /// A policy refuses most requests.
    Refusals,
    /// The limiter's Redis does not answer.
    LimiterDown,
    /// Callbacks that do not fit their order and were set aside.
    SetAside,
    /// Refunds that their channel refused.
    RefundFailed,
    /// Payments or refunds that have waited long for an answer of their channel.
    MoneyStuck,
}

impl AlarmKind {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// One thing that is wrong, and its details.
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

/// Whether the share of refusals raises an alarm. With fewer than 100 answers it does not.
pub fn too_many_refused(granted: u64, refused: u64, percent: u64) -> bool {
    const ANSWERS_MIN: u64 = 100;
    let answers = granted.saturating_add(refused);
    answers >= ANSWERS_MIN && refused.saturating_mul(100) >= answers.saturating_mul(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_count_from_a_hundred_answers_on() {
        assert!(too_many_refused(10, 90, 90));
        assert!(!too_many_refused(11, 89, 90));
        assert!(!too_many_refused(0, 99, 90));
        assert!(too_many_refused(0, u64::MAX, 90));
    }
}
