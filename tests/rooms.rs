//! Who may import whom: the table of docs/ARCHITECTURE.md, read off the `use` lines.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

use std::collections::BTreeSet;
use std::path::Path;

/// What each room may name of ours. A room may always name itself.
const MAY_IMPORT: [(&str, &[&str]); 17] = [
    ("domain", &[]),
    ("config", &["domain"]),
    ("telemetry", &[]),
    ("failpoint", &[]),
    ("gate", &["domain", "config"]),
    ("ledger", &["domain", "config"]),
    ("queue", &["domain", "config"]),
    ("channel", &["domain", "config"]),
    ("sale", &["domain", "gate", "ledger", "queue"]),
    ("flow", &["domain", "gate", "ledger", "queue", "channel"]),
    ("pay", &["domain", "ledger", "queue", "channel"]),
    ("admin", &["domain", "gate", "ledger", "flow"]),
    ("http", &["domain", "sale", "flow", "pay", "admin"]),
    ("pages", &["domain", "sale"]),
    ("worker", &["domain", "sale"]),
    (
        "app",
        &[
            "domain",
            "config",
            "gate",
            "ledger",
            "queue",
            "channel",
            "sale",
            "flow",
            "pay",
            "admin",
            "http",
            "pages",
            "worker",
            "telemetry",
        ],
    ),
    ("cli", &["domain", "config", "gate", "ledger", "sale", "flow", "pay", "admin", "http", "app"]),
];

/// Crates that only one room may name.
const BELONGS_TO: [(&str, &[&str]); 3] = [("redis", &["gate"]), ("sqlx", &["ledger"]), ("lapin", &["queue"])];

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let name = path.strip_prefix(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap();
            let room = name.components().next().unwrap().as_os_str().to_string_lossy().replace(".rs", "");
            found.push((room, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The code of a file, without comments and strings' worth of noise.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| line.split("//").next().unwrap_or_default())
}

fn words_after<'a>(line: &'a str, marker: &'a str) -> impl Iterator<Item = &'a str> {
    line.split(marker)
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default())
}

#[test]
fn the_import_table_holds() {
    let mut found = Vec::new();
    sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut found);
    assert!(found.len() > 40, "the sources are where they are looked for");
    let rooms: BTreeSet<&str> = MAY_IMPORT.iter().map(|(room, _)| *room).collect();
    let mut broken = BTreeSet::new();
    for (room, text) in &found {
        if room == "lib" || room == "main" {
            continue;
        }
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| name == room) else {
            broken.insert(format!("{room} is not in the table"));
            continue;
        };
        for line in code(text) {
            for other in words_after(line, "crate::").filter(|word| rooms.contains(word)) {
                if other != room && !allowed.contains(&other) {
                    broken.insert(format!("{room} imports {other}"));
                }
            }
            for (name, owners) in BELONGS_TO {
                let named = line.contains(&format!("{name}::")) && !line.contains(&format!("_{name}::"));
                if named && !owners.contains(&room.as_str()) {
                    broken.insert(format!("{room} names {name}"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
