//! deploy/prometheus/rules.yaml with shorter durations, so that the drill takes seconds and not days.
//!
//! Expressions, metrics, labels, thresholds and annotations stay the same, and each alert is still caused by its condition. Two durations
//! are shorter: the window of a rate, and the time that a condition must last. Both are divided by 20, up to a bound, so that a condition
//! that must last longer than its window still does. The bound of the windows is longer than the pause after a failed step, which grows to
//! 5 s. The windows of the error budget, up to three days, are divided by a larger number.

use regex::{Captures, Regex};
use serde_json::Value;

use crate::dashboards::{RULES, read};

const PART: f64 = 20.0;
const WINDOW_MAX_S: f64 = 6.0;
const WAIT_MAX_S: f64 = 7.5;

/// Six hours become 4 s. A rate needs several scrapes, and there are two a second.
const BUDGET_PART: f64 = 5400.0;
const BUDGET_WINDOW_MIN_S: f64 = 3.0;

/// The short window in place of this window of production.
fn window(seconds: f64) -> f64 {
    (seconds / PART).min(WINDOW_MAX_S)
}

/// How long a condition must last.
fn wait(seconds: f64) -> f64 {
    (seconds / PART).min(WAIT_MAX_S)
}

fn budget_window(seconds: f64) -> f64 {
    (seconds / BUDGET_PART).max(BUDGET_WINDOW_MIN_S)
}

/// Whether a rule records a value for the alerts about the error budget.
fn is_of_budget(rule: &Value) -> bool {
    let name = rule.get("record").and_then(Value::as_str).unwrap_or_default();
    name.starts_with("seckill:unavailable:ratio") || name == "seckill:answers:rate5m"
}

fn durations() -> Regex {
    Regex::new(r"\b([0-9]+)(ms|[smhd])\b").unwrap()
}

fn seconds(found: &Captures<'_>) -> f64 {
    let number: f64 = found[1].parse().unwrap();
    match &found[2] {
        "ms" => number / 1000.0,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3_600.0,
        _ => number * 86_400.0,
    }
}

fn shortened(text: &str, shorter: fn(f64) -> f64) -> String {
    durations()
        .replace_all(text, |found: &Captures<'_>| format!("{:.0}ms", shorter(seconds(found)) * 1000.0))
        .into_owned()
}

/// The file of rules as it is, and with shorter durations. JSON is valid YAML.
fn files() -> (Value, Value) {
    let file: Value = serde_saphyr::from_str(&read(RULES)).unwrap();
    let mut short = file.clone();
    for group in short["groups"].as_array_mut().unwrap() {
        for rule in group["rules"].as_array_mut().unwrap() {
            let look_back = if is_of_budget(rule) { budget_window } else { window };
            let expression = shortened(rule["expr"].as_str().unwrap(), look_back);
            rule["expr"] = expression.into();
            if let Some(lasts) = rule.get("for").and_then(Value::as_str).map(|lasts| shortened(lasts, wait)) {
                rule["for"] = lasts.into();
            }
        }
    }
    (file, short)
}

/// The rules with shorter durations.
pub fn text() -> String {
    files().1.to_string()
}

/// Nothing else changes, and no remaining duration makes a world of the drill wait long for an alert to fire or clear.
#[test]
fn only_durations_are_shorter() {
    let (file, short) = files();
    let without = |file: &Value| durations().replace_all(&file.to_string(), "some").into_owned();
    assert_eq!(without(&file), without(&short));
    let short = short.to_string();
    let all: Vec<f64> = durations().captures_iter(&short).map(|found| seconds(&found)).collect();
    assert!(all.len() > 50, "{all:?}");
    // The longest windows of the error budget only show that the error matters. Their alerts clear by shorter windows.
    let long: Vec<f64> = all.into_iter().filter(|seconds| *seconds > WAIT_MAX_S).collect();
    assert_eq!(long, [16.0, 16.0, 48.0, 48.0], "a day and three days, each in both sums of its rule");
}

/// An alert that must ignore a single event ignores it here too.
#[test]
fn what_must_last_longer_than_its_window_still_must() {
    let mut compared = 0;
    let (file, _) = files();
    for rule in file["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap()) {
        let Some(lasts) = rule.get("for").and_then(Value::as_str) else { continue };
        let lasts = seconds(&durations().captures(lasts).unwrap());
        for found in durations().captures_iter(rule["expr"].as_str().unwrap()) {
            let back = seconds(&found);
            if lasts > back {
                assert!(wait(lasts) > window(back), "{}", rule["alert"]);
                compared += 1;
            }
        }
    }
    assert!(compared >= 5, "{compared} windows");
}
