//! The API document, compared with the route table, docs/security.md and docs/errors.md.

use std::collections::{BTreeMap, BTreeSet};

use seckill_harness::api_document::Document;
use seckill_harness::repository::read;

#[test]
fn the_document_and_the_route_table_name_the_same_addresses() {
    let document = Document::of_development_mode();
    let names: BTreeSet<_> =
        document.operations().map(|(.., operation)| operation["operationId"].as_str().unwrap()).collect();
    assert_eq!(names.len(), document.operations().count(), "two operations have the same id: {names:?}");
    // The API's routes and their part of the document have one table, the pages have two.
    let pages = document.operations().filter(|(.., operation)| operation["tags"][0] == "pages");
    // at("/path", get().to(…));
    let routes = read("crates/pages/src/lib.rs");
    let routes = routes.lines().filter_map(|line| Some(line.trim().strip_prefix("at(\"")?.split_once("\", get()")?.0));
    assert_eq!(routes.collect::<BTreeSet<_>>(), pages.map(|(_, path, _)| path).collect());
}

/// The author of a new operation states its highest cost to others, and the bound on that cost.
#[test]
fn every_operation_has_a_row_in_the_table_of_costs() {
    let document = Document::of_development_mode();
    let operations =
        document.operations().map(|(_, _, operation)| operation["operationId"].as_str().unwrap().to_owned());
    let text = read("docs/security.md");
    let (_, section) = text.split_once("## What one call costs").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let rows: Vec<Vec<&str>> =
        section.lines().filter(|line| line.starts_with("| `")).map(|line| line.split('|').collect()).collect();
    let ids = rows.iter().flat_map(|row| row[1].split(", ")).map(|id| id.trim().trim_matches('`').to_owned());
    let ids: Vec<String> = ids.collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "an operation has two rows");
    assert_eq!(ids.into_iter().collect::<BTreeSet<_>>(), operations.collect::<BTreeSet<_>>());
    for row in rows {
        assert!(row.len() == 7 && row.iter().skip(1).take(5).all(|cell| !cell.trim().is_empty()), "{row:?}");
    }
}

/// docs/errors.md lists every code with its status and the caller's next step.
#[test]
fn the_catalogue_of_errors_is_complete() {
    let document = Document::of_development_mode();
    let (text, mut catalogue) = (read("docs/errors.md"), BTreeMap::new());
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, status, code, meaning, action, _] = cells[..]
            && status.parse::<u16>().is_ok()
        {
            assert!(!meaning.is_empty() && !action.is_empty(), "{line}");
            assert_eq!(catalogue.insert(code.trim_matches('`'), status), None, "listed twice: {code}");
        }
    }
    let codes = document.0["components"]["schemas"]["Code"]["enum"].as_array().unwrap().iter();
    let codes: BTreeSet<&str> = codes.map(|code| code.as_str().unwrap()).collect();
    assert_eq!(catalogue.keys().copied().collect::<BTreeSet<_>>(), codes);
    for (method, path, operation) in document.operations() {
        for problem in Document::problems(operation) {
            let (status, code) = problem.split_once(' ').unwrap();
            assert_eq!(catalogue[code], status, "{code} of {method} {path}");
        }
    }
}

/// A reader of the document sees each error of an address as it comes, and not one example for all.
#[test]
fn every_error_has_an_example_of_its_own() {
    let document = Document::of_development_mode();
    let mut compared = 0;
    for (method, path, operation) in document.operations() {
        for (status, answer) in operation["responses"].as_object().unwrap() {
            let content = &answer["content"]["application/problem+json"];
            let Some(codes) = content["schema"]["allOf"][1]["properties"]["code"]["enum"].as_array() else { continue };
            let examples = content["examples"].as_object().unwrap();
            let named: BTreeSet<_> = examples.keys().map(String::as_str).collect();
            assert_eq!(named, codes.iter().map(|code| code.as_str().unwrap()).collect(), "{method} {path} {status}");
            let schema = serde_json::json!({ "allOf": [content["schema"]], "components": document.0["components"] });
            let validator = jsonschema::validator_for(&schema).unwrap();
            for (code, example) in examples {
                let value = &example["value"];
                assert_eq!(
                    (value["code"].as_str(), value["status"].to_string()),
                    (Some(code.as_str()), status.clone())
                );
                assert!(validator.is_valid(value), "{method} {path}: {value}");
                compared += 1;
            }
        }
    }
    assert!(compared > 300, "{compared}");
}
