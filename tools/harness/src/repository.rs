//! The files of the repository.

use std::path::Path;

use serde_json::Value;

pub const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
pub const RULES: &str = "deploy/prometheus/rules.yaml";

/// A file of the repository.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(TOP).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All rules, recording and alerting.
pub fn rules() -> Vec<Value> {
    let file: Value = serde_saphyr::from_str(&read(RULES)).unwrap();
    let groups = file["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}
