//! deploy/prometheus/rules.yaml with shorter durations, so that the drill takes seconds and not days.
//!
//! Expressions, metrics, labels, thresholds and annotations stay as they are, and each alert is still caused by its condition: what
//! is shorter is how long a window looks back and how long a condition must last. Most are a twentieth, up to a bound, so that what must
//! last longer than its window still does. The bound of the windows is longer than the pause after a failed step, which grows to 5 s. The
//! windows of the error budget, up to three days, have a smaller part.

use std::ops::RangeInclusive;

use regex::{Captures, Regex};
use serde_json::Value;

use crate::dashboards::{RULES, read};

/// How much shorter the durations of a rule are.
struct Scale {
    part: f64,
    windows_s: RangeInclusive<f64>,
    wait_max_s: f64,
}

const USUAL: Scale = Scale { part: 20.0, windows_s: 0.0..=6.0, wait_max_s: 7.5 };
/// Six hours become 6 s. A rate needs some scrapes, of which there are two a second.
const BUDGET: Scale = Scale { part: 3600.0, windows_s: 3.0..=f64::INFINITY, wait_max_s: 7.5 };
/// An instance leaves a sale alone for ten seconds that another one has taken from it.
const REFILLS: Scale = Scale { part: 10.0, windows_s: 0.0..=9.0, wait_max_s: 10.5 };

impl Scale {
    fn of(rule: &Value) -> &'static Self {
        let name = ["record", "alert"].iter().find_map(|kind| rule.get(*kind)?.as_str()).unwrap();
        match name {
            "seckill:answers:rate5m" => &BUDGET,
            "SeckillRefillsRepeat" => &REFILLS,
            _ if name.starts_with("seckill:unavailable:ratio") => &BUDGET,
            _ => &USUAL,
        }
    }

    /// How far a window looks back that looks back so far in production.
    fn window(&self, seconds: f64) -> f64 {
        (seconds / self.part).clamp(*self.windows_s.start(), *self.windows_s.end())
    }

    /// How long a condition must last.
    fn wait(&self, seconds: f64) -> f64 {
        (seconds / self.part).min(self.wait_max_s)
    }
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

/// A text with each duration in it made shorter.
fn shortened(text: &str, shorter: impl Fn(f64) -> f64) -> String {
    durations()
        .replace_all(text, |found: &Captures<'_>| format!("{:.0}ms", shorter(seconds(found)) * 1000.0))
        .into_owned()
}

/// The rules' file as it is, and with shorter durations. JSON is YAML, too.
fn files() -> (Value, Value) {
    let file: Value = serde_saphyr::from_str(&read(RULES)).unwrap();
    let mut short = file.clone();
    for group in short["groups"].as_array_mut().unwrap() {
        for rule in group["rules"].as_array_mut().unwrap() {
            let scale = Scale::of(rule);
            let expression = shortened(rule["expr"].as_str().unwrap(), |seconds| scale.window(seconds));
            rule["expr"] = expression.into();
            let lasts = rule.get("for").and_then(Value::as_str);
            if let Some(lasts) = lasts.map(|lasts| shortened(lasts, |seconds| scale.wait(seconds))) {
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

/// Nothing else is changed, and no duration is left that would make a world of the drill wait for long to fire or to clear.
#[test]
fn only_durations_are_shorter() {
    let (file, short) = files();
    let without = |file: &Value| durations().replace_all(&file.to_string(), "some").into_owned();
    assert_eq!(without(&file), without(&short));
    let short = short.to_string();
    let all: Vec<f64> = durations().captures_iter(&short).map(|found| seconds(&found)).collect();
    assert!(all.len() > 50, "{all:?}");
    // The longest windows of the error budget only say that it matters: their alerts clear by shorter ones.
    let long: Vec<f64> = all.into_iter().filter(|seconds| *seconds > REFILLS.wait_max_s).collect();
    assert_eq!(long, [24.0, 24.0, 72.0, 72.0], "a day and three days, each in both sums of its rule");
}

/// An alert that must not fire for what has happened once does not do so here, either.
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
                let scale = Scale::of(rule);
                assert!(scale.wait(lasts) > scale.window(back), "{}", rule["alert"]);
                compared += 1;
            }
        }
    }
    assert!(compared >= 5, "{compared} windows");
}
