//! A public limiter server to compare with: throttlecrab-server, which `./dev bench` installs into .dev/tools.
//!
//! The same programs call it with as many connections, over HTTP (`POST /throttle`) and over Redis's protocol
//! (`THROTTLE`). It does less: GCRA in the memory of one process, with counters that are not shared and are lost with the
//! process, and without any authentication.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::processes::Process;

const SERVER: &str = ".dev/tools/bin/throttlecrab-server";
/// Capacity and rate of a bucket that is never empty; ours has the same.
pub const PLENTY: u64 = 1_000_000;

pub struct Throttlecrab {
    /// Its address is the one for HTTP.
    pub process: Process,
    pub resp: SocketAddr,
    client: reqwest::Client,
}

impl Throttlecrab {
    /// Returns `None` if the server is not installed.
    pub async fn start(logs: &Path) -> anyhow::Result<Option<Self>> {
        if !Path::new(SERVER).exists() {
            return Ok(None);
        }
        let client = reqwest::Client::new();
        let resp = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let start = |http: SocketAddr| {
            let mut server = Command::new(SERVER);
            server.args(["--http", "--http-host", "127.0.0.1", "--http-port", &http.port().to_string()]);
            server.args(["--redis", "--redis-host", "127.0.0.1", "--redis-port", &resp.port().to_string()]);
            Ok(server)
        };
        let process = Process::start(&logs.join("throttlecrab.log"), start)?.ready(&client, "/health").await?;
        Ok(Some(Self { process, resp, client }))
    }

    /// The body of a request over HTTP; `%s` stands for the key.
    pub fn body() -> Value {
        json!({ "key": "%s", "max_burst": PLENTY, "count_per_period": PLENTY, "period": 1, "quantity": 1 })
    }

    /// Number of requests that the server has allowed, by its own metrics.
    pub async fn allowed(&self) -> anyhow::Result<u64> {
        let url = format!("http://{}/metrics", self.process.address);
        let metrics = self.client.get(url).send().await?.text().await?;
        let line = metrics.lines().find_map(|line| line.strip_prefix("throttlecrab_requests_allowed "));
        Ok(line.context("throttlecrab-server has no metric of allowed requests")?.parse()?)
    }
}
