//! Every number that the repository cites exists in docs/protocol.md, a test cites each rule, and every test that
//! docs/protocol.md names exists.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// The folders to read, in addition to the files of the root.
const FOLDERS: [&str; 10] =
    ["src", "crates", "tools", "lua", "migrations", "tests", "docs", "frontend-static", "deploy", "dev.d"];
const ENDINGS: [&str; 10] = ["rs", "lua", "sql", "md", "toml", "js", "html", "css", "conf", "sh"];

/// One cited number: 'R' and 13 for rule 13, 'F' and 5 for F5.
type Number = (char, u32);

/// All texts of the repository that may cite a number, by path.
fn texts() -> BTreeMap<String, String> {
    fn read(path: &Path, texts: &mut BTreeMap<String, String>) {
        if path.is_dir() {
            for entry in std::fs::read_dir(path).unwrap() {
                read(&entry.unwrap().path(), texts);
            }
        } else if path.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known)) {
            let name = path.strip_prefix(ROOT).unwrap().to_string_lossy().into_owned();
            // This file cites numbers that do not exist.
            if name != "tests/rulebook.rs" {
                texts.insert(name, std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut texts = BTreeMap::new();
    for entry in std::fs::read_dir(ROOT).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        if entry.path().is_file() || FOLDERS.iter().any(|folder| name == *folder) {
            read(&entry.path(), &mut texts);
        }
    }
    assert!(texts.len() > 200, "the sources are not where they are looked for");
    texts
}

/// A text as words and the signs between them, without the comment marks at the beginning of lines.
fn words(text: &str) -> Vec<&str> {
    let marks: [&str; 6] = ["//!", "///", "//", "--", "#", "*"];
    let mut words = Vec::new();
    for line in text.lines() {
        let line = line.trim_start();
        let mut rest = marks.iter().find_map(|mark| line.strip_prefix(mark)).unwrap_or(line);
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let end = if is_word(first) { rest.find(|c| !is_word(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
            let (word, later) = rest.split_at(end);
            if word != " " {
                words.push(word);
            }
            rest = later;
        }
    }
    words
}

/// The numbers that a text cites: `rule 13`, `rules 10 and 11`, `rules 1 to 5 and 13`, `I4`, `F12`, `A18`, `B4`.
fn cited(text: &str) -> BTreeSet<Number> {
    let words = words(text);
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u32>().ok());
    let mut cited = BTreeSet::new();
    for (at, word) in words.iter().enumerate() {
        if ["rule", "rules", "Rule", "Rules"].contains(word) {
            let (mut at, mut last) = (at + 1, None);
            loop {
                match (words.get(at).copied(), number(at), last) {
                    (Some("to"), _, Some(first)) if number(at + 1).is_some() => {
                        cited.extend((first..=number(at + 1).unwrap()).map(|rule| ('R', rule)));
                        at += 1;
                    }
                    (_, Some(rule), _) => {
                        cited.insert(('R', rule));
                        last = Some(rule);
                    }
                    (Some("," | "and" | "or"), _, Some(_)) => {}
                    _ => break,
                }
                at += 1;
            }
            continue;
        }
        let Some(letter) = word.chars().next().filter(|letter| "IFAB".contains(*letter)) else { continue };
        let digits = &word[1..];
        // %A9 is a byte in a URL, and #F5 a colour.
        let in_other_use = at > 0 && ["%", "#"].contains(&words[at - 1]);
        if (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()) && !in_other_use {
            cited.insert((letter, digits.parse().unwrap()));
        }
    }
    cited
}

/// docs/protocol.md: the definition of each number, a heading or a row of a table.
fn defined(protocol: &str) -> BTreeMap<Number, &str> {
    let mut defined = BTreeMap::new();
    for line in protocol.lines() {
        let number = match line.split_once(['|', ':']) {
            Some((heading, _)) if heading.starts_with("### Rule ") => heading[9..].parse().ok().map(|rule| ('R', rule)),
            Some(("", row)) => row.trim_start().split_once(' ').and_then(|(name, _)| cited(name).pop_first()),
            _ => None,
        };
        if let Some(number) = number {
            assert!(defined.insert(number, line).is_none(), "defined twice: {line}");
        }
    }
    defined
}

fn protocol(texts: &BTreeMap<String, String>) -> &str {
    &texts["docs/protocol.md"]
}

#[test]
fn every_cited_number_is_defined() {
    let texts = texts();
    let defined = defined(protocol(&texts));
    for (letter, last) in [('I', 9), ('R', 19), ('F', 40), ('A', 23)] {
        let numbers: Vec<u32> = defined.keys().filter(|(of, _)| *of == letter).map(|(_, number)| *number).collect();
        assert_eq!(numbers, (1..=last).collect::<Vec<_>>(), "{letter}");
    }
    let mut unknown = Vec::new();
    for (name, text) in &texts {
        let numbers = cited(text).into_iter().filter(|number| !defined.contains_key(number));
        unknown.extend(numbers.map(|(letter, number)| format!("{name}: {letter}{number}").replace(": R", ": rule ")));
    }
    assert!(unknown.is_empty(), "cited, and not in docs/protocol.md: {unknown:#?}");
}

#[test]
fn a_test_cites_each_rule() {
    let texts = texts();
    let tests = texts.iter().filter(|(name, _)| name.starts_with("tests/") || name.starts_with("crates/model/"));
    let cited: BTreeSet<Number> = tests.flat_map(|(_, text)| cited(text)).collect();
    let rules = defined(protocol(&texts)).into_iter().filter(|((letter, _), _)| *letter == 'R');
    let uncited: Vec<&str> = rules
        .filter(|(number, heading)| !heading.contains("(not yet)") && !cited.contains(number))
        .map(|(_, heading)| heading)
        .collect();
    assert!(uncited.is_empty(), "no test cites {uncited:#?}");
}

/// Whether a file has a test of this name, alone or as an entry of a macro that writes tests.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let heads = |line: &str| line.split_once(&format!("fn {name}(")).is_some_and(|(before, _)| !before.contains("//"));
    let is_test = |at: usize| {
        let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        above.into_iter().any(|line| line.starts_with("#[") && line.contains("test"))
    };
    let by_macro = (text.contains("macro_rules!") || text.contains("refuted! {"))
        && lines.iter().any(|line| line.starts_with(&format!("{name}: ")));
    by_macro || lines.iter().enumerate().any(|(at, line)| heads(line) && is_test(at))
}

#[test]
fn every_test_that_the_protocol_names_exists() {
    let texts = texts();
    let scenarios = &texts["tests/faults/main.rs"];
    let (mut named, mut missing) = (0, Vec::new());
    for reference in protocol(&texts).split('`').skip(1).step_by(2) {
        let exists = if let Some(scenario) = reference.strip_prefix("./dev test --faults --only ") {
            scenarios.contains(&format!("(\"{scenario}\", \""))
        } else if let Some((file, name)) = reference.split_once(".rs::") {
            texts.get(&format!("{file}.rs")).is_some_and(|text| has_test(text, name))
        } else {
            continue;
        };
        named += 1;
        if !exists {
            missing.push(reference);
        }
    }
    assert!(named > 80, "{named} tests are named");
    assert!(missing.is_empty(), "docs/protocol.md names tests that do not exist: {missing:#?}");
}

#[test]
fn every_definition_names_a_test_or_says_not_yet() {
    let texts = texts();
    let protocol = protocol(&texts);
    for (_, line) in defined(protocol) {
        let definition = match line.starts_with('|') {
            true => line,
            false => protocol.split_once(line).unwrap().1.split("\n### ").next().unwrap(),
        };
        let shown = definition.contains(".rs::") || definition.contains("--only ");
        let not_yet = line.to_lowercase().contains("not yet");
        assert!(shown || not_yet, "neither a test nor \"not yet\": {line}");
    }
}

/// Each variant of the model of shards names the hole that it opens, and has its test.
#[test]
fn every_hole_of_shards_is_named_and_has_its_broken_variant() {
    let texts = texts();
    let model = texts["crates/model/src/shards.rs"].as_str();
    let between = |from: &str, to: &str| model.split_once(from).unwrap().1.split_once(to).unwrap().0;
    let lines: Vec<&str> = between("enum Variant {\n", "\n}").lines().map(str::trim).collect();
    let tests = between("refuted! {\n", "\n}");
    let variants: Vec<usize> = (0..lines.len()).filter(|at| !lines[*at].starts_with("//")).collect();
    assert!(variants.len() >= 30, "{} variants", variants.len());
    for at in variants {
        let variant = lines[at].trim_end_matches(',');
        assert!(at > 0 && lines[at - 1].contains("Rule: "), "{variant} does not say which hole it opens");
        assert!(tests.contains(&format!(".with({variant});")), "{variant} has no test");
    }
}

#[test]
fn numbers_are_told_from_other_words() {
    let rules = |numbers: &[u32]| numbers.iter().map(|rule| ('R', *rule)).collect::<BTreeSet<_>>();
    assert_eq!(cited("(protocol, rules 1 to 3 and 13), 7"), rules(&[1, 2, 3, 13]));
    assert_eq!(cited("//! see rules 10\n//! and 11."), rules(&[10, 11]));
    assert_eq!(cited("rule 4: 5 rules; the rules of 1990"), rules(&[4]));
    assert_eq!(cited("F5, I4/A18 and B4"), [('A', 18), ('B', 4), ('F', 5), ('I', 4)].into());
    assert_eq!(cited("%A9 0xF1 #F5 UTF8 F100 aF1 F1a"), BTreeSet::new());
}
