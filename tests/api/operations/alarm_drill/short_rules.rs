//! deploy/prometheus/rules.yaml with shorter durations, so that the drill takes seconds and not days. Nothing else changes.
//!
//! The windows of rates, and the times that conditions must last, are divided by 20, up to a bound. The bound of the windows is longer than
//! the pause after a failed step, which grows to 5 s. The windows of the error budget are divided by a larger number.

use regex::{Captures, Regex};
use serde_json::Value;

use seckill_harness::repository::{RULES, read};

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
    let durations = Regex::new(r"\b([0-9]+)(ms|[smhd])\b").unwrap();
    let short = |found: &Captures<'_>| format!("{:.0}ms", shorter(seconds(found)) * 1000.0);
    durations.replace_all(text, short).into_owned()
}

/// The rules with shorter durations. JSON is valid YAML.
pub fn text() -> String {
    let mut file: Value = serde_saphyr::from_str(&read(RULES)).unwrap();
    for group in file["groups"].as_array_mut().unwrap() {
        for rule in group["rules"].as_array_mut().unwrap() {
            let look_back = if is_of_budget(rule) { budget_window } else { window };
            let expression = shortened(rule["expr"].as_str().unwrap(), look_back);
            rule["expr"] = expression.into();
            if let Some(lasts) = rule.get("for").and_then(Value::as_str).map(|lasts| shortened(lasts, wait)) {
                rule["for"] = lasts.into();
            }
        }
    }
    file.to_string()
}
