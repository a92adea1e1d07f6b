//! Instances, workers and the sandbox bank, each a process of its own with its own metrics, as in production.

use std::fs::OpenOptions;
use std::net::SocketAddr;

use seckill_harness::folder::Folder;
use seckill_harness::{System, eventually};

use crate::network::service_killed::Process;

/// A system without a service in this process, and a folder for logs and Prometheus's files.
pub struct Programs {
    pub system: System,
    pub folder: Folder,
}

impl Programs {
    pub async fn prepare(settings: &[(&str, &str)]) -> Self {
        let own = [
            // All buyers come from one address, and repeat unanswered requests.
            ("SECKILL_PURCHASE__ADDRESS_LIMIT", "-1"),
            ("SECKILL_PURCHASE__BUYER_LIMIT", "-1"),
            ("SECKILL_ALARMS__INTERVAL_MS", "200"),
        ];
        Self { system: System::prepare(&[&own, settings].concat()).await, folder: Folder::new("drill") }
    }

    /// Starts a program at this address with these further settings, and waits until it is ready. It appends to its log.
    pub async fn start(&self, name: &str, at: SocketAddr, command: &[&str], more: &[(&str, &str)]) -> Process {
        let bind = at.to_string();
        let own = [
            ("SECKILL_HTTP__BIND", bind.as_str()),
            ("SECKILL_WORK__METRICS_BIND", bind.as_str()),
            ("SECKILL_SANDBOX__BIND", bind.as_str()),
            ("RUST_LOG", "info"),
        ];
        let log = self.folder.path().join(format!("{name}.log"));
        let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        let process = Process::run(&self.system, command, &[&own, more].concat(), log.into());
        let ready = format!("http://{at}/{}", if command[0] == "serve" { "readyz" } else { "healthz" });
        eventually(|| async {
            let answer = reqwest::get(&ready).await.map_err(|error| error.to_string())?;
            answer.status().is_success().then_some(()).ok_or_else(|| format!("{name}: {}", answer.status()))
        })
        .await;
        process
    }
}
