//! Alarms, and the trouble that raises them.

use serde_json::{Value, json};

/// Kinds of alarms (docs/monitoring.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum AlarmKind {
    /// Outbox rows that are parked: no worker tries them again.
    Parked,
    /// Outbox rows that wait too long for a worker.
    OutboxOld,
    /// Redis and PostgreSQL disagreed about a sale at rest.
    Drift,
    /// Redis has lost keys of a sale, or is set to evict them.
    KeysLost,
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
    /// An application's keys take all the memory in Redis that they may take.
    TooManyKeys,
    /// Redis has little memory left.
    RedisMemory,
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

    /// The file that says what to do, from the top of the repository.
    pub fn runbook(self) -> String {
        format!("docs/runbooks/{}.md", self.as_str())
    }

    /// Whether the subject of such an alarm is a policy and its application.
    pub(crate) const fn names_application(self) -> bool {
        matches!(self, Self::Refusals | Self::LimiterBroken | Self::TooManyKeys)
    }

    /// The runbook of a stored alarm. A newer version may have stored a kind that is unknown here.
    pub fn runbook_of(kind: &str) -> Option<String> {
        kind.parse::<Self>().ok().map(Self::runbook)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Trouble {
    pub subject: String,
    pub details: Value,
    /// The trouble raises no alarm, but keeps an open one from being cleared.
    pub slight: bool,
}

impl Trouble {
    pub fn new(subject: &str, details: Value) -> Self {
        Self { subject: subject.to_owned(), details, slight: false }
    }
}

/// The share of refusals, in percent, at which an alarm is cleared is this much below the share that raises it.
const REFUSED_HYSTERESIS: u64 = 10;

/// Whether a policy refuses too many calls, or still many. With fewer than 100 answers, nothing is known.
pub fn too_many_refused(policy: &str, granted: u64, refused: u64, percent: u64) -> Option<Trouble> {
    const ANSWERS_MIN: u64 = 100;
    let answers = granted.saturating_add(refused);
    let above = |percent: u64| refused.saturating_mul(100) >= answers.saturating_mul(percent);
    if answers < ANSWERS_MIN || !above(percent.saturating_sub(REFUSED_HYSTERESIS).max(1)) {
        return None;
    }
    let details = json!({ "granted": granted, "refused": refused });
    Some(Trouble { slight: !above(percent), ..Trouble::new(policy, details) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_count_from_a_hundred_answers_on() {
        for (granted, refused, is_slight) in [
            (10, 90, Some(false)),
            (11, 89, Some(true)),
            (20, 80, Some(true)),
            (21, 79, None),
            (0, 99, None),
            (0, u64::MAX, Some(false)),
        ] {
            let trouble = too_many_refused("p", granted, refused, 90);
            assert_eq!(trouble.map(|trouble| trouble.slight), is_slight, "{granted} {refused}");
        }
    }
}
