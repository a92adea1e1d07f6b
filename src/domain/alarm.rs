//! Alarms: what can be wrong.

use serde_json::Value;

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
    pub const fn runbook(self) -> &'static str {
        match self {
            Self::Parked => "docs/runbooks/parked.md",
            Self::OutboxOld => "docs/runbooks/outbox-old.md",
            Self::Drift => "docs/runbooks/drift.md",
            Self::KeysLost => "docs/runbooks/keys-lost.md",
            Self::DeadChannel => "docs/runbooks/dead-channel.md",
            Self::Refusals => "docs/runbooks/refusals.md",
            Self::LimiterDown => "docs/runbooks/limiter-down.md",
            Self::LimiterSlow => "docs/runbooks/limiter-slow.md",
            Self::LimiterBroken => "docs/runbooks/limiter-broken.md",
            Self::TooManyKeys => "docs/runbooks/too-many-keys.md",
            Self::RedisMemory => "docs/runbooks/redis-memory.md",
            Self::ReceiverAway => "docs/runbooks/receiver-away.md",
            Self::SetAside => "docs/runbooks/set-aside.md",
            Self::RefundFailed => "docs/runbooks/refund-failed.md",
            Self::MoneyStuck => "docs/runbooks/money-stuck.md",
        }
    }

    /// Whether the subject of such an alarm names an application: a policy and its application.
    pub const fn names_application(self) -> bool {
        match self {
            Self::Refusals | Self::LimiterBroken | Self::TooManyKeys => true,
            Self::Parked
            | Self::OutboxOld
            | Self::Drift
            | Self::KeysLost
            | Self::DeadChannel
            | Self::LimiterDown
            | Self::LimiterSlow
            | Self::RedisMemory
            | Self::ReceiverAway
            | Self::SetAside
            | Self::RefundFailed
            | Self::MoneyStuck => false,
        }
    }

    /// The runbook of an alarm that is stored by its kind's name. A newer version may have stored a kind that this one does
    /// not know: it has none here.
    pub fn runbook_of(kind: &str) -> Option<&'static str> {
        kind.parse::<Self>().ok().map(Self::runbook)
    }
}

/// One thing that is wrong, and its details.
#[derive(Debug, Clone, PartialEq)]
pub struct Trouble {
    pub subject: String,
    pub details: Value,
    /// Whether the trouble raises no alarm, and only keeps an open one from being cleared.
    pub slight: bool,
}

impl Trouble {
    pub fn new(subject: &str, details: Value) -> Self {
        Self { subject: subject.to_owned(), details, slight: false }
    }
}

/// How much the share of refusals must fall below the one that raises an alarm, before the alarm is cleared, in percent.
const REFUSED_HYSTERESIS: u64 = 10;

/// How the share of refusals bears on an alarm; `None`: not at all, as with fewer than 100 answers.
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
    use std::path::Path;

    use strum::VariantArray;

    use super::*;

    /// Each kind has a runbook of its own name, with the sections that every runbook has; docs/monitoring.md links to it.
    #[test]
    fn every_kind_has_its_runbook() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR"));
        let table = std::fs::read_to_string(top.join("docs/monitoring.md")).unwrap();
        for kind in AlarmKind::VARIANTS {
            let (name, runbook) = (kind.as_str(), kind.runbook());
            assert_eq!(runbook, format!("docs/runbooks/{name}.md"));
            let text = std::fs::read_to_string(top.join(runbook)).unwrap_or_default();
            for section in ["What it means", "How to see it", "What to do", "What not to do", "When it is over"] {
                assert!(text.contains(&format!("## {section}")), "{runbook} has no section {section:?}");
            }
            let link = format!("| [`{name}`](runbooks/{name}.md) |");
            assert!(table.contains(&link), "docs/monitoring.md does not link {runbook}");
            assert_eq!(AlarmKind::runbook_of(name), Some(runbook));
        }
        assert_eq!(AlarmKind::runbook_of("of-a-newer-version"), None);
    }

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
