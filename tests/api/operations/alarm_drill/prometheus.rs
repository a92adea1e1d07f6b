//! Debian's Prometheus with our configuration, which scrapes the programs of a world.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use reqwest::Client;
use seckill_harness::eventually;
use serde_json::Value;
use tokio::process::{Child, Command};

use seckill_harness::folder::free_address;
use seckill_harness::repository::read;

/// Rules are evaluated twice a second. A shorter interval would take processor time from the drilled service.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The server, which stops when the value is dropped.
pub struct Prometheus {
    address: SocketAddr,
    http: Client,
    targets: usize,
    _server: Child,
}

impl Prometheus {
    /// Starts the server in this folder, with these rules, for these instances and workers.
    pub fn start(folder: &Path, rules: &str, serve: &[SocketAddr], work: &[SocketAddr]) -> Self {
        let address = free_address();
        let listed = |targets: &[SocketAddr]| targets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (serving, working) = (listed(serve), listed(work));
        let mut config = read("deploy/prometheus/prometheus.yaml");
        for (from, to) in [
            ("scrape_interval: 5s", "scrape_interval: 500ms"),
            ("scrape_timeout: 4s", "scrape_timeout: 500ms"),
            ("evaluation_interval: 5s", "evaluation_interval: 500ms"),
            ("serve-1:8080, serve-2:8080", serving.as_str()),
            ("work-1:9100, work-2:9100", working.as_str()),
        ] {
            assert!(config.contains(from), "{from}");
            config = config.replace(from, to);
        }
        let file = |name: &str| folder.join(name);
        std::fs::write(file("rules.yaml"), rules).unwrap();
        std::fs::write(file("prometheus.yaml"), config).unwrap();
        let server = Command::new("prometheus")
            .arg(format!("--config.file={}", file("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", file("prometheus").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=warn")
            .stdout(Stdio::null())
            .stderr(File::create(file("prometheus.log")).unwrap())
            .kill_on_drop(true)
            .spawn()
            .expect("./dev test installs prometheus");
        Self { address, http: Client::new(), targets: serve.len() + work.len(), _server: server }
    }

    async fn ask(&self, path: &str) -> Result<Value, String> {
        tokio::time::sleep(LOOK_EVERY).await;
        let request = self.http.get(format!("http://{}/api/v1/{path}", self.address));
        let answer = request.send().await.map_err(|error| error.to_string())?;
        let mut document: Value = answer.json().await.map_err(|error| error.to_string())?;
        Ok(document["data"].take())
    }

    /// Waits until every target is scraped, and this number of rules is evaluated without an error.
    pub async fn is_ready(&self, rules: usize) {
        eventually(|| async {
            let targets = self.ask("targets?state=active").await?;
            let targets = targets["activeTargets"].as_array().ok_or("no targets")?;
            let up = targets.iter().filter(|target| target["health"] == "up").count();
            (up == self.targets).then_some(()).ok_or(format!("{up} targets of {} are up", self.targets))
        })
        .await;
        eventually(|| async {
            let groups = self.ask("rules").await?;
            let groups = groups["groups"].as_array().ok_or("no groups")?;
            let all: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
            let sick = all.iter().filter(|rule| rule["health"] != "ok");
            let errors: Vec<_> = sick.map(|rule| &rule["lastError"]).collect();
            let good = all.len() == rules && errors.is_empty();
            good.then_some(()).ok_or(format!("{} rules of {rules}, not evaluated: {errors:?}", all.len()))
        })
        .await;
    }

    /// The names of the firing alerts.
    pub async fn firing(&self) -> Result<BTreeSet<String>, String> {
        let alerts = self.ask("alerts").await?;
        let firing = alerts["alerts"].as_array().ok_or("no alerts")?.iter().filter(|alert| alert["state"] == "firing");
        Ok(firing.filter_map(|alert| Some(alert["labels"]["alertname"].as_str()?.to_owned())).collect())
    }
}
