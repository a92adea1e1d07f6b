//! docs/runbooks: each alert and each panel of the dashboard names its runbook, and everything exists that a runbook tells an operator to
//! run or to check.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::Parser;
use regex::{Captures, Regex};
use seckill::cli::Cli;
use seckill_domain::alarm::AlarmKind;
use seckill_harness::repository::{TOP, read, rules};
use seckill_telemetry::described_metrics;
use serde_json::Value;
use strum::VariantArray;

use crate::dashboards::{metric_of, panels};

const FOLDER: &str = "docs/runbooks";
const SECTIONS: [&str; 5] =
    ["## What it means", "## How to see it", "## What to do", "## What not to do", "## When it is over"];
/// The placeholders of a runbook for values that the operator fills in.
const PLACEHOLDERS: [(&str, &str); 9] = [
    ("ID", "7"),
    ("$sale", "7"),
    ("NAME", "name"),
    ("APP", "shop"),
    ("POLICY", "login"),
    ("ORDER", "0197b2f0-0000-7000-8000-000000000001"),
    ("REFUND", "0197b2f0-0000-7000-8000-000000000001"),
    ("ITEM", "0197b2f0-0000-7000-8000-000000000001"),
    ("refunds-NAME", "refunds-name"),
];

fn runbooks() -> BTreeMap<String, String> {
    let files = std::fs::read_dir(Path::new(TOP).join(FOLDER)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.map(|name| (name.clone(), read(&format!("{FOLDER}/{name}")))).collect()
}

#[test]
fn every_alert_and_every_panel_names_its_runbook() {
    let alerts: Vec<Value> = rules().into_iter().filter(|rule| rule["alert"].is_string()).collect();
    assert!(alerts.len() > AlarmKind::VARIANTS.len(), "{} alerts", alerts.len());
    for alert in &alerts {
        let (name, notes) = (&alert["alert"], &alert["annotations"]);
        assert!(["page", "ticket"].contains(&alert["labels"]["severity"].as_str().unwrap()), "{name}");
        assert!(notes["summary"].as_str().is_some_and(|summary| !summary.is_empty()), "{name}");
        let runbook = read(notes["runbook"].as_str().unwrap_or_else(|| panic!("{name} has no runbook")));
        for section in SECTIONS {
            assert!(runbook.contains(section), "{} has no section {section:?}", notes["runbook"]);
        }
        // The runbook contains the alert's name.
        let named = format!("`{}`", name.as_str().unwrap());
        assert!(runbook.contains(&named), "{} does not name {named}", notes["runbook"]);
    }
    let path = Regex::new("Runbook: (docs/runbooks/[a-z-]+\\.md)$").unwrap();
    for panel in panels() {
        let description = panel["description"].as_str().unwrap_or_default();
        let found = path.captures(description).unwrap_or_else(|| panic!("{} names no runbook", panel["title"]));
        read(&found[1]);
    }
}

#[test]
fn every_runbook_is_listed_and_every_link_leads_to_a_file() {
    let (runbooks, link) = (runbooks(), Regex::new(r"\]\(([^)#]+)").unwrap());
    for name in runbooks.keys().filter(|name| *name != "README.md") {
        assert!(runbooks["README.md"].contains(&format!("({name})")), "docs/runbooks/README.md does not list {name}");
    }
    for (name, text) in &runbooks {
        for found in link.captures_iter(text).filter(|found| !found[1].starts_with("http")) {
            let there = Path::new(TOP).join(FOLDER).join(&found[1]).exists();
            assert!(there, "{name} links {}, which does not exist", &found[1]);
        }
    }
}

/// The commands of `seckill` in a text: from the program's name to the end of the command, split into words.
fn commands(text: &str) -> Vec<Vec<String>> {
    let command = Regex::new(r#"(?:^|[\s`($"])seckill ((?:"[^"\n]*"|'[^'\n]*'|[^`|;&<>)#\n])*)"#).unwrap();
    let word = Regex::new(r#""([^"]*)"|'([^']*)'|(\S+)"#).unwrap();
    let filled = |words: Captures<'_>| {
        let quoted = words.get(1).or(words.get(2)).or(words.get(3)).map_or("", |word| word.as_str());
        let text = quoted.trim_end_matches('…');
        let known = PLACEHOLDERS.iter().find(|(name, _)| *name == text);
        known.map_or(text, |(_, value)| *value).to_owned()
    };
    let words = |found: Captures<'_>| word.captures_iter(&found[1]).map(filled).collect::<Vec<_>>();
    command.captures_iter(text).map(words).collect()
}

/// Every command can be typed as it stands: `seckill` itself accepts its words.
#[test]
fn every_command_is_one_that_the_program_accepts() {
    let (mut tried, mut refused) = (BTreeSet::new(), Vec::new());
    for (name, text) in runbooks() {
        for words in commands(&text) {
            // A word of a sentence, or a command that is cut off by three dots.
            let is_command = words.first().is_some_and(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
            if !is_command || words.last().is_some_and(String::is_empty) {
                continue;
            }
            let line = std::iter::once("seckill".to_owned()).chain(words.iter().cloned());
            if let Err(error) = Cli::try_parse_from(line) {
                let first = error.to_string().lines().next().unwrap_or_default().to_owned();
                refused.push(format!("{name}: seckill {}: {first}", words.join(" ")));
            }
            tried.insert(words.join(" "));
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
    assert!(tried.len() > 40, "{tried:#?}");
}

/// In the catalogue, or recorded by a rule.
#[test]
fn every_metric_of_a_runbook_exists() {
    let metric = Regex::new(r"\b(?:[a-z]+:)?seckill(?::|_)[a-z0-9_:]+").unwrap();
    let rules = rules();
    let recorded: BTreeSet<&str> = rules.iter().filter_map(|rule| rule["record"].as_str()).collect();
    // The name of a database.
    let others = ["seckill_before"];
    let mut unknown = BTreeSet::new();
    for (name, text) in runbooks() {
        for found in metric.find_iter(&text).map(|found| found.as_str().trim_end_matches(':')) {
            let known = metric_of(found).is_some() || described_metrics().any(|metric| metric.name == found);
            if !known && !recorded.contains(found) && !others.contains(&found) {
                unknown.insert(format!("{found} in {name}"));
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}
