//! The programs of a world: instances, workers and the sandbox bank, each a process of its own, as in production. Metrics belong to a
//! process, so Prometheus scrapes this world alone.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use seckill_harness::{System, eventually};

use crate::service_killed::Process;

/// A system without a service in this process, and the folder of its world.
pub struct Programs {
    pub system: System,
    records: Records,
}

impl Programs {
    pub async fn prepare(settings: &[(&str, &str)]) -> Self {
        let own = [
            // All buyers come from one address, and repeat unanswered requests.
            ("SECKILL_PURCHASE__ADDRESS_LIMIT", "-1"),
            ("SECKILL_PURCHASE__BUYER_LIMIT", "-1"),
            ("SECKILL_ALARMS__INTERVAL_MS", "200"),
        ];
        Self { system: System::prepare(&[&own, settings].concat()).await, records: Records::new() }
    }

    pub fn folder(&self) -> &Path {
        &self.records.0
    }

    /// Starts a program that listens at this address, with these settings added to the system's, and waits until it is ready. Its log is
    /// appended to the log of an earlier program with this name.
    pub async fn start(&self, name: &str, at: SocketAddr, command: &[&str], more: &[(&str, &str)]) -> Process {
        let bind = at.to_string();
        let own = [
            ("SECKILL_HTTP__BIND", bind.as_str()),
            ("SECKILL_WORK__METRICS_BIND", bind.as_str()),
            ("SECKILL_SANDBOX__BIND", bind.as_str()),
            ("RUST_LOG", "info"),
        ];
        let process = Process::run(&self.system, command, &[&own, more].concat(), self.records.log(name));
        let ready = format!("http://{at}/{}", if command[0] == "serve" { "readyz" } else { "healthz" });
        eventually(|| async {
            let answer = reqwest::get(&ready).await.map_err(|error| error.to_string())?;
            answer.status().is_success().then_some(()).ok_or_else(|| format!("{name}: {}", answer.status()))
        })
        .await;
        process
    }

    /// Deletes the world's data on shared servers. Its programs have ended.
    pub async fn finish(self) {
        self.system.finish().await;
    }
}

/// The folder of a world: logs, and Prometheus's files. A world that fails leaves it behind.
struct Records(PathBuf);

impl Records {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("seckill-drill-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn log(&self, name: &str) -> Stdio {
        let file = self.0.join(format!("{name}.log"));
        OpenOptions::new().create(true).append(true).open(file).unwrap().into()
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the logs of this world are in {}", self.0.display());
        } else {
            _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
