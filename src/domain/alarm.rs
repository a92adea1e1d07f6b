//! Alarms: what can be wrong.

use serde_json::Value;

/// Kinds of alarms (docs/alarms.md).
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
    /// The limiter's Redis answers late.
    LimiterSlow,
    /// A policy's limiter failed in Redis, as it should never do.
    LimiterBroken,
    /// A receiver of webhooks, payments or outflows cannot be connected to.
    ReceiverAway,
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
    /// Whether it raises no alarm, and only keeps one from being cleared.
    pub slight: bool,
}

impl Trouble {
    pub fn new(subject: &str, details: Value) -> Self {
        Self { subject: subject.to_owned(), details, slight: false }
    }
}

/// How much the share of refusals must fall below the one that raises an alarm, before the alarm is cleared, in percent.
const REFUSED_HYSTERESIS: u64 = 10;

/// Whether the share of refusals is enough for an alarm. With fewer than 100 answers it does neither.
pub fn too_many_refused(granted: u64, refused: u64, percent: u64) -> Option<Refusals> {
    const ANSWERS_MIN: u64 = 100;
    let answers = granted.saturating_add(refused);
    let above = |percent: u64| refused.saturating_mul(100) >= answers.saturating_mul(percent);
    if answers < ANSWERS_MIN || !above(percent.saturating_sub(REFUSED_HYSTERESIS).max(1)) {
        return None;
    }
    Some(if above(percent) { Refusals::TooMany } else { Refusals::StillMany })
}

/// How many requests a policy refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusals {
    /// Enough for an alarm.
    TooMany,
    /// Enough to keep one.
    StillMany,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_count_from_a_hundred_answers_on() {
        assert_eq!(too_many_refused(10, 90, 90), Some(Refusals::TooMany));
        assert_eq!(too_many_refused(11, 89, 90), Some(Refusals::StillMany));
        assert_eq!(too_many_refused(20, 80, 90), Some(Refusals::StillMany));
        assert_eq!(too_many_refused(21, 79, 90), None);
        assert_eq!(too_many_refused(0, 99, 90), None);
        assert_eq!(too_many_refused(0, u64::MAX, 90), Some(Refusals::TooMany));
    }
}
