//! deploy/prometheus and deploy/grafana name only metrics and labels that exist, and the unit tests of the rules pass.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

use futures_util::future::join_all;
use regex::Regex;
use seckill_domain::alarm::AlarmKind;
use seckill_harness::repository::{RULES, TOP, read, rules};
use seckill_telemetry::{Metric, MetricKind, described_metrics};
use serde_json::Value;
use strum::VariantArray;
use tokio::process::Command;

const DASHBOARD: &str = "deploy/grafana/dashboards/seckill.json";
/// Labels that Prometheus adds.
const OWN_LABELS: [&str; 3] = ["job", "instance", "le"];

/// The dashboard's panels without the headings.
pub fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels.filter(|panel| panel["type"] != "row").cloned().collect()
}

/// Every expression of the rules and of the dashboard.
fn expressions() -> Vec<String> {
    let text = |rule: &Value| rule["expr"].as_str().expect("an expression").to_owned();
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let annotations = dashboard["annotations"]["list"].as_array().unwrap();
    let panels = panels();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    rules().iter().chain(targets).chain(annotations).map(text).collect()
}

/// The names in an expression.
#[derive(Default)]
struct Named {
    metrics: BTreeSet<String>,
    /// Compared labels, each with its metric.
    matched: BTreeSet<(String, String)>,
    /// Labels by which results are grouped or joined.
    grouped: BTreeSet<String>,
}

fn named(expression: &str) -> Named {
    static PATTERNS: LazyLock<[Regex; 5]> = LazyLock::new(|| {
        [
            r#""[^"]*""#,
            r"(\bseckill_\w+)?\{([^}]*)\}",
            r"([a-zA-Z_]+)\s*(?:=|!)",
            r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)",
            r"[\w:]*\bseckill[_:][\w:]+",
        ]
        .map(|text| Regex::new(text).unwrap())
    });
    let [quoted, selector, label, grouping, metric] = &*PATTERNS;
    let mut named = Named::default();
    for found in selector.captures_iter(expression) {
        let metric = found.get(1).map_or("", |name| name.as_str());
        for label in label.captures_iter(&quoted.replace_all(&found[2], "")) {
            named.matched.insert((metric.to_owned(), label[1].to_owned()));
        }
    }
    for list in grouping.captures_iter(expression) {
        named.grouped.extend(list[1].split(',').map(str::trim).filter(|label| !label.is_empty()).map(str::to_owned));
    }
    named.metrics.extend(metric.find_iter(expression).map(|name| name.as_str().to_owned()));
    named
}

pub fn metric_of(series: &str) -> Option<Metric> {
    described_metrics().find(|metric| match metric.kind {
        MetricKind::Counter | MetricKind::Gauge => series == metric.name,
        MetricKind::Histogram => {
            ["_bucket", "_sum", "_count"].iter().any(|end| series.strip_suffix(end) == Some(metric.name))
        }
    })
}

fn labels_of(metric: Metric) -> impl Iterator<Item = &'static str> {
    metric.labels.split(", ").filter(|label| !label.is_empty()).chain(OWN_LABELS)
}

/// A renamed metric or label would make an alert silent for ever, without any other sign.
#[test]
fn rules_and_dashboard_name_only_metrics_and_labels_that_exist() {
    let rules = rules();
    let recorded: BTreeSet<&str> = rules.iter().filter_map(|rule| rule["record"].as_str()).collect();
    let grouping: BTreeSet<&str> = described_metrics().flat_map(labels_of).collect();
    let (mut unknown, mut used) = (BTreeSet::new(), BTreeSet::new());
    for expression in expressions() {
        let Named { metrics, matched, grouped } = named(&expression);
        for name in metrics.iter().map(String::as_str) {
            match metric_of(name) {
                Some(metric) => _ = used.insert(metric.name),
                None if recorded.contains(name) => {}
                None => _ = unknown.insert(format!("metric {name} in {expression}")),
            }
        }
        for (name, label) in &matched {
            let known = metric_of(name).is_none_or(|metric| labels_of(metric).any(|known| known == label));
            if !known {
                unknown.insert(format!("label {label} of {name} in {expression}"));
            }
        }
        for label in grouped.iter().filter(|label| !grouping.contains(label.as_str())) {
            unknown.insert(format!("label {label} in {expression}"));
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
    let unseen: Vec<_> = described_metrics().map(|metric| metric.name).filter(|name| !used.contains(name)).collect();
    assert!(unseen.is_empty(), "neither a rule nor the dashboard shows {unseen:?}");
}

/// The alarm and its alert have the same runbook.
#[test]
fn every_kind_of_alarm_has_an_alert() {
    let alerts = rules();
    for kind in AlarmKind::VARIANTS {
        let selector = format!("seckill_alarms{{kind=\"{}\"}}", kind.as_str());
        let of_kind: Vec<&Value> =
            alerts.iter().filter(|alert| alert["expr"].as_str().unwrap().contains(&selector)).collect();
        assert_eq!(of_kind.len(), 1, "{selector}");
        assert_eq!(of_kind[0]["annotations"]["runbook"], kind.runbook());
    }
}

/// The files of unit tests of the rules.
fn rule_tests() -> Vec<String> {
    let folder = Path::new(RULES).parent().unwrap();
    let entries = std::fs::read_dir(Path::new(TOP).join(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".test.yaml")).map(|name| folder.join(name).display().to_string()).collect()
}

async fn promtool(arguments: [&str; 3]) {
    let mut command = Command::new("promtool");
    let output = command.args(arguments).current_dir(TOP).output().await.expect("./dev test installs promtool");
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{arguments:?}: {}", said.concat());
}

/// promtool accepts the configuration and the rules, and its unit tests make each alert fire and clear.
#[tokio::test]
async fn promtool_accepts_the_rules_and_their_tests_pass() {
    let tests = rule_tests();
    let checks = [["check", "config", "deploy/prometheus/prometheus.yaml"], ["check", "rules", RULES]];
    let tested = tests.iter().map(|file| ["test", "rules", file.as_str()]);
    join_all(checks.into_iter().chain(tested).map(promtool)).await;
    let tests: String = tests.iter().map(|file| read(file)).collect();
    let fires = Regex::new(r"alertname: (\w+)\n +exp_alerts:\n").unwrap();
    let fires: BTreeSet<String> = fires.captures_iter(&tests).map(|found| found[1].to_owned()).collect();
    let alerts = rules();
    let alerts: BTreeSet<String> = alerts.iter().filter_map(|rule| Some(rule["alert"].as_str()?.to_owned())).collect();
    assert_eq!(fires, alerts, "the alerts that the unit tests make fire");
}

/// The modules of tests/api/operations/alarm_drill that cause alerts.
const CAUSES: [&str; 6] = ["crowd", "lost_servers", "messages", "money", "sales", "two_masters"];

/// `thresholds_and_alarms`, `lost_keys` and `callers_apart` raise the alarms that these alerts look at.
const RAISED_ELSEWHERE: [&str; 4] = ["SeckillParked", "SeckillRefusals", "SeckillKeysLost", "SeckillLimiterBroken"];

/// Each other alert has a cause, and a cause names existing alerts. Each world checks that the alerts it waits for fire and clear.
#[test]
fn every_alert_has_its_cause() {
    let alerts = rules();
    let alerts: BTreeSet<&str> = alerts.iter().filter_map(|rule| rule["alert"].as_str()).collect();
    let causes = CAUSES.map(|module| read(&format!("tests/api/operations/alarm_drill/{module}.rs"))).concat();
    let named = Regex::new(r#""(Seckill\w+)""#).unwrap();
    let named = named.captures_iter(&causes).map(|found| found.get(1).unwrap().as_str());
    assert_eq!(named.chain(RAISED_ELSEWHERE).collect::<BTreeSet<_>>(), alerts);
}
