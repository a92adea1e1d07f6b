//! deploy/prometheus and deploy/grafana: they name only metrics and labels that exist, and Debian's Prometheus loads the rules, and
//! fires and clears their alerts on the running service. tests/api/runbooks.rs has their runbooks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use regex::Regex;
use seckill::domain::alarm::AlarmKind;
use seckill::telemetry::{METRICS, Metric, MetricKind};
use seckill_harness::{System, eventually, terms};
use serde_json::Value;
use strum::VariantArray;
use tokio::process::{Child, Command};

use crate::service_killed::{Process, free_address};

pub const TOP: &str = env!("CARGO_MANIFEST_DIR");
const RULES: &str = "deploy/prometheus/rules.yaml";
const DASHBOARD: &str = "deploy/grafana/dashboards/seckill.json";
/// What Prometheus itself knows: whether a target can be scraped, the alerts that fire, and two labels.
const OWN_NAMES: [&str; 2] = ["up", "ALERTS"];
const OWN_LABELS: [&str; 3] = ["job", "instance", "le"];

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

/// What an expression names.
#[derive(Debug, Default, PartialEq)]
struct Named {
    metrics: BTreeSet<String>,
    /// Labels that are compared, with the metric that they are of.
    matched: BTreeSet<(String, String)>,
    /// Labels by which results are grouped or joined.
    grouped: BTreeSet<String>,
}

fn named(expression: &str) -> Named {
    let regex = |text: &str| Regex::new(text).unwrap();
    let (identifier, selector) = (regex(r"[a-zA-Z_:][a-zA-Z0-9_:]*"), regex(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?\{([^}]*)\}"));
    let lists = regex(r"\b(by|without|on|ignoring)\s*\(([^)]*)\)");
    let mut named = Named::default();
    for found in selector.captures_iter(expression) {
        let metric = found.get(1).map_or("", |name| name.as_str());
        for label in regex(r"([a-zA-Z_]+)\s*(=|!)").captures_iter(&regex(r#""[^"]*""#).replace_all(&found[2], "")) {
            named.matched.insert((metric.to_owned(), label[1].to_owned()));
        }
    }
    for list in lists.captures_iter(expression) {
        named.grouped.extend(identifier.find_iter(&list[2]).map(|label| label.as_str().to_owned()));
    }
    let bare = regex(r"\{[^}]*\}").replace_all(expression, " ");
    let bare = lists.replace_all(&bare, " ");
    let bare = regex(r"\b[0-9]+[smhd]\b").replace_all(&bare, " ");
    for name in identifier.find_iter(&bare) {
        let is_function = bare[name.end()..].trim_start().starts_with('(');
        if !is_function && !["and", "or", "unless", "offset"].contains(&name.as_str()) {
            named.metrics.insert(name.as_str().to_owned());
        }
    }
    named
}

/// The metric of the catalogue that a series belongs to.
pub fn metric_of(series: &str) -> Option<Metric> {
    METRICS.into_iter().find(|metric| match metric.kind {
        MetricKind::Counter | MetricKind::Gauge => series == metric.name,
        MetricKind::Histogram => {
            ["_bucket", "_sum", "_count"].iter().any(|end| series.strip_suffix(end) == Some(metric.name))
        }
    })
}

fn labels_of(metric: Metric) -> impl Iterator<Item = &'static str> {
    metric.labels.split(", ").filter(|label| !label.is_empty()).chain(OWN_LABELS)
}

#[test]
fn an_expression_is_taken_apart() {
    let expression =
        r#"sum by (step) (rate(a_total{step!~"b|c", job="d"}[2m])) > 8 unless on () x:y offset 5m or up == 1"#;
    let found = named(expression);
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(found.metrics, set(&["a_total", "x:y", "up"]));
    assert_eq!(found.grouped, set(&["step"]));
    let of_a = |label: &str| ("a_total".to_owned(), label.to_owned());
    assert_eq!(found.matched, [of_a("step"), of_a("job")].into());
}

/// A metric or label that was renamed makes an alert silent for ever: nothing else would say so.
#[test]
fn rules_and_dashboard_name_only_metrics_and_labels_that_exist() {
    let rules = rules();
    let recorded: BTreeSet<&str> = rules.iter().filter_map(|rule| rule["record"].as_str()).collect();
    let grouping: BTreeSet<&str> = METRICS.into_iter().flat_map(labels_of).collect();
    let (mut unknown, mut used) = (BTreeSet::new(), BTreeSet::new());
    for expression in expressions() {
        let Named { metrics, matched, grouped } = named(&expression);
        for name in metrics.iter().map(String::as_str) {
            match metric_of(name) {
                Some(metric) => _ = used.insert(metric.name),
                None if recorded.contains(name) || OWN_NAMES.contains(&name) => {}
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
    let unseen: Vec<_> = METRICS.into_iter().map(|metric| metric.name).filter(|name| !used.contains(name)).collect();
    assert!(unseen.is_empty(), "neither a rule nor the dashboard shows {unseen:?}");
}

/// Each kind of alarm has an alert, which leads to the same runbook as the alarm.
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

/// promtool finds the configuration and the rules correct, and its unit tests make each alert fire and clear.
#[tokio::test]
async fn promtool_accepts_the_rules_and_their_tests_pass() {
    for arguments in [
        ["check", "config", "deploy/prometheus/prometheus.yaml"],
        ["check", "rules", RULES],
        ["test", "rules", "deploy/prometheus/rules.test.yaml"],
    ] {
        let mut command = Command::new("promtool");
        let output = command.args(arguments).current_dir(TOP).output().await.expect("./dev test installs promtool");
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success(), "{arguments:?}: {}", said.concat());
    }
    let tests = read("deploy/prometheus/rules.test.yaml");
    let fires = Regex::new(r"alertname: (\w+)\n +exp_alerts:\n").unwrap();
    let fires: BTreeSet<String> = fires.captures_iter(&tests).map(|found| found[1].to_owned()).collect();
    let alerts = rules();
    let alerts: BTreeSet<String> = alerts.iter().filter_map(|rule| Some(rule["alert"].as_str()?.to_owned())).collect();
    assert_eq!(fires, alerts, "the alerts that the unit tests make fire");
}

/// Debian's Prometheus with our configuration, which scrapes one process and waits before no alert. It ends with the value.
struct Prometheus {
    address: SocketAddr,
    folder: PathBuf,
    _server: Child,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Prometheus {
    async fn start(target: SocketAddr) -> Self {
        let address = free_address();
        let folder = std::env::temp_dir().join(format!("seckill-prometheus-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        let at_once = Regex::new(r"(?m)^ +for: .*\n").unwrap();
        std::fs::write(folder.join("rules.yaml"), at_once.replace_all(&read(RULES), "").as_ref()).unwrap();
        let mut config = read("deploy/prometheus/prometheus.yaml");
        for (from, to) in [
            ("scrape_interval: 5s", "scrape_interval: 2s"),
            ("scrape_timeout: 4s", "scrape_timeout: 2s"),
            ("evaluation_interval: 5s", "evaluation_interval: 1s"),
            ("serve-1:8080, serve-2:8080", target.to_string().as_str()),
            ("work-1:9100, work-2:9100", ""),
        ] {
            assert!(config.contains(from), "{from}");
            config = config.replace(from, to);
        }
        std::fs::write(folder.join("prometheus.yaml"), config).unwrap();
        let server = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.join("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("./dev test installs prometheus");
        Self { address, folder, _server: server }
    }

    async fn ask(&self, path: &str) -> Result<Value, String> {
        let answer = reqwest::get(format!("http://{}/api/v1/{path}", self.address)).await.map_err(|e| e.to_string())?;
        let mut document: Value = answer.json().await.map_err(|error| error.to_string())?;
        Ok(document["data"].take())
    }

    /// The alerts that fire, by name.
    async fn firing(&self) -> Result<BTreeMap<String, Value>, String> {
        let alerts = self.ask("alerts").await?;
        let firing = alerts["alerts"].as_array().ok_or("no alerts")?.iter().filter(|alert| alert["state"] == "firing");
        Ok(firing.map(|alert| (alert["labels"]["alertname"].as_str().unwrap().to_owned(), alert.clone())).collect())
    }

    /// Waits until an alert fires, or fires no more.
    async fn await_alert(&self, name: &str, fires: bool) -> Option<Value> {
        eventually(|| async {
            let found = self.firing().await?.remove(name);
            if found.is_some() == fires { Ok(found) } else { Err(format!("{name} fires: {}", !fires)) }
        })
        .await
    }
}

/// The rules are loaded and evaluated without an error on the real metrics. An alert fires when its condition is caused, names its
/// runbook, and clears when the condition is over; a dead instance is an alert.
#[tokio::test(flavor = "multi_thread")]
async fn prometheus_fires_and_clears_alerts_on_the_running_service() {
    let system = System::prepare(&[]).await;
    let address = free_address();
    let log = [("RUST_LOG", "error")];
    let process = Process::start_with(&system, address, &log, Stdio::inherit()).ready(address).await;
    let prometheus = Prometheus::start(address).await;
    let expected = rules().len();
    eventually(|| async {
        let groups = prometheus.ask("rules").await?;
        let groups = groups["groups"].as_array().ok_or("no groups")?;
        let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
        let sick: Vec<_> = rules.iter().filter(|rule| rule["health"] != "ok").map(|rule| &rule["lastError"]).collect();
        let all = rules.len() == expected && sick.is_empty();
        all.then_some(()).ok_or(format!("{} rules of {expected}, not evaluated: {sick:?}", rules.len()))
    })
    .await;
    // A service at rest is no alarm.
    eventually(|| async {
        let firing = prometheus.firing().await?;
        firing.is_empty().then_some(()).ok_or(format!("{firing:?}"))
    })
    .await;
    let sale = system.create_sale(terms(1)).await;
    system.buy_at(address, &sale, "ann").send().await.order_id();
    system.settled(&sale).await;
    let park = "UPDATE outbox SET status = 'parked', last_error = 'test' WHERE kind = 'order_placed'";
    let mend = "UPDATE outbox SET status = 'processed', last_error = NULL WHERE kind = 'order_placed'";
    sqlx::query(park).execute(&system.sql).await.unwrap();
    let alert = prometheus.await_alert("SeckillParked", true).await.unwrap();
    assert_eq!(alert["annotations"]["runbook"], "docs/runbooks/parked.md");
    sqlx::query(mend).execute(&system.sql).await.unwrap();
    prometheus.await_alert("SeckillParked", false).await;
    process.end();
    prometheus.await_alert("SeckillInstanceLost", true).await;
    prometheus.await_alert("SeckillWorkersLost", true).await;
    system.finish().await;
}
