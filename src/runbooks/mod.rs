//! The runbooks, built into the program: an operator who follows an alarm needs no repository.

mod notation;

use askama::filters::Safe;

use crate::domain::alarm::AlarmKind;

/// All runbooks by name. The first lists the others. A test compares this table with the folder.
pub const RUNBOOKS: [(&str, &str); 39] = [
    ("README", include_str!("../../docs/runbooks/README.md")),
    ("api-errors", include_str!("../../docs/runbooks/api-errors.md")),
    ("audit-broken", include_str!("../../docs/runbooks/audit-broken.md")),
    ("backup-and-restore", include_str!("../../docs/runbooks/backup-and-restore.md")),
    ("callbacks-not-believed", include_str!("../../docs/runbooks/callbacks-not-believed.md")),
    ("capacity", include_str!("../../docs/runbooks/capacity.md")),
    ("dead-channel", include_str!("../../docs/runbooks/dead-channel.md")),
    ("dead-letters", include_str!("../../docs/runbooks/dead-letters.md")),
    ("drift", include_str!("../../docs/runbooks/drift.md")),
    ("instance-lost", include_str!("../../docs/runbooks/instance-lost.md")),
    ("keys-lost", include_str!("../../docs/runbooks/keys-lost.md")),
    ("limiter-broken", include_str!("../../docs/runbooks/limiter-broken.md")),
    ("limiter-down", include_str!("../../docs/runbooks/limiter-down.md")),
    ("limiter-slow", include_str!("../../docs/runbooks/limiter-slow.md")),
    ("money-stuck", include_str!("../../docs/runbooks/money-stuck.md")),
    ("outbox-old", include_str!("../../docs/runbooks/outbox-old.md")),
    ("outflow-stands", include_str!("../../docs/runbooks/outflow-stands.md")),
    ("parked", include_str!("../../docs/runbooks/parked.md")),
    ("payment-channel-lost", include_str!("../../docs/runbooks/payment-channel-lost.md")),
    ("postgres-lost", include_str!("../../docs/runbooks/postgres-lost.md")),
    ("queue-stands", include_str!("../../docs/runbooks/queue-stands.md")),
    ("rabbitmq-lost", include_str!("../../docs/runbooks/rabbitmq-lost.md")),
    ("receiver-away", include_str!("../../docs/runbooks/receiver-away.md")),
    ("redis-lost", include_str!("../../docs/runbooks/redis-lost.md")),
    ("redis-memory", include_str!("../../docs/runbooks/redis-memory.md")),
    ("refill-fails", include_str!("../../docs/runbooks/refill-fails.md")),
    ("refund-failed", include_str!("../../docs/runbooks/refund-failed.md")),
    ("refusals", include_str!("../../docs/runbooks/refusals.md")),
    ("rejected-orders", include_str!("../../docs/runbooks/rejected-orders.md")),
    ("sale-day", include_str!("../../docs/runbooks/sale-day.md")),
    ("set-aside", include_str!("../../docs/runbooks/set-aside.md")),
    ("shedding", include_str!("../../docs/runbooks/shedding.md")),
    ("slow-servers", include_str!("../../docs/runbooks/slow-servers.md")),
    ("step-fails", include_str!("../../docs/runbooks/step-fails.md")),
    ("too-many-keys", include_str!("../../docs/runbooks/too-many-keys.md")),
    ("two-masters", include_str!("../../docs/runbooks/two-masters.md")),
    ("unconfirmed-holds", include_str!("../../docs/runbooks/unconfirmed-holds.md")),
    ("upgrade", include_str!("../../docs/runbooks/upgrade.md")),
    ("workers-lost", include_str!("../../docs/runbooks/workers-lost.md")),
];

/// The runbook that lists all others.
pub const LIST: &str = "README";

/// The text of a runbook.
pub fn text_of(name: &str) -> Option<&'static str> {
    RUNBOOKS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The name of an alarm's runbook, which is a part of its address here.
pub fn name_of(kind: &str) -> Option<&'static str> {
    kind.parse().ok().map(AlarmKind::as_str)
}

/// The meaning of an alarm in a few words: the heading of its runbook.
pub fn meaning_of(kind: &str) -> Option<&'static str> {
    let heading = text_of(name_of(kind)?)?.lines().next()?.strip_prefix("# ")?;
    Some(heading.split_once(": `").map_or(heading, |(words, _)| words))
}

/// The section "What to do" of an alarm's runbook, rendered.
pub fn what_to_do(kind: &str) -> Option<Safe<String>> {
    let (_, rest) = text_of(name_of(kind)?)?.split_once("\n## What to do\n")?;
    let section = rest.split_once("\n## ").map_or(rest, |(section, _)| section);
    Some(rendered(section))
}

/// A runbook, or a part of one, as HTML. The text comes from this repository, and is escaped all the same.
pub fn rendered(text: &str) -> Safe<String> {
    Safe(notation::html(text, |name| text_of(name).is_some()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use strum::VariantArray;

    use super::*;

    #[test]
    fn all_runbooks_of_the_folder_are_in_the_program() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbooks");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let files: BTreeSet<String> = files.collect();
        assert_eq!(RUNBOOKS.map(|(name, _)| format!("{name}.md")).into_iter().collect::<BTreeSet<_>>(), files);
    }

    /// Every alarm has steps to take, in its runbook.
    #[test]
    fn every_alarm_has_its_steps() {
        for kind in AlarmKind::VARIANTS {
            let Safe(steps) = what_to_do(kind.as_str()).unwrap();
            assert!(steps.contains("<li>") || steps.contains("<p>"), "{}: {steps}", kind.as_str());
            assert!(!steps.contains("What not to do"), "{}: {steps}", kind.as_str());
            let meaning = meaning_of(kind.as_str()).unwrap();
            assert!(!meaning.contains('`') && !meaning.contains("Seckill"), "{}: {meaning}", kind.as_str());
        }
        assert!(what_to_do("of-a-newer-version").is_none());
    }

    /// Every link leads to another runbook, and no notation is left unrendered.
    #[test]
    fn every_runbook_is_rendered_whole() {
        for (name, text) in RUNBOOKS {
            let text = rendered(text);
            for link in text.0.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
                let other =
                    link.strip_prefix("/admin/runbooks/").map(|rest| rest.split('#').next().unwrap_or_default());
                let known = other.is_some_and(|other| text_of(other).is_some());
                assert!(known || link.starts_with("https://"), "{name}: {link}");
            }
            for left_over in ["](", "**", "\n## ", "<p>|", "<p>- "] {
                assert!(!text.0.contains(left_over), "{name}: {left_over} in {}", text.0);
            }
        }
    }
}
