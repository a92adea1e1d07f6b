//! The runbooks, built into the program: an operator who follows an alarm needs no repository.

mod notation;

use askama::filters::Safe;

use seckill_domain::alarm::AlarmKind;

/// All runbooks by name, as build.rs finds them in docs/runbooks.
pub(crate) const RUNBOOKS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/runbooks.rs"));

pub(crate) const LIST: &str = "README";

pub(crate) fn text_of(name: &str) -> Option<&'static str> {
    RUNBOOKS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The name of an alarm's runbook, which is a part of its address here.
pub(crate) fn name_of(kind: &str) -> Option<&'static str> {
    kind.parse().ok().map(AlarmKind::as_str)
}

/// The meaning of an alarm in a few words: the heading of its runbook.
pub(crate) fn meaning_of(kind: &str) -> Option<&'static str> {
    let heading = text_of(name_of(kind)?)?.lines().next()?.strip_prefix("# ")?;
    Some(heading.split_once(": `").map_or(heading, |(words, _)| words))
}

/// The section "What to do" of an alarm's runbook, rendered.
pub(crate) fn what_to_do(kind: &str) -> Option<Safe<String>> {
    let (_, rest) = text_of(name_of(kind)?)?.split_once("\n## What to do\n")?;
    let section = rest.split_once("\n## ").map_or(rest, |(section, _)| section);
    Some(rendered(section))
}

/// A runbook, or a part of one, as HTML. The text comes from this repository, and is escaped all the same.
pub(crate) fn rendered(text: &str) -> Safe<String> {
    Safe(notation::html(text, |name| text_of(name).is_some()))
}

#[cfg(test)]
mod tests {
    use strum::VariantArray;

    use super::*;

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
