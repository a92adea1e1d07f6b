//! A public limiter server to compare with: throttlecrab-server of crates.io, which `./dev bench` installs into .dev/tools.
//!
//! It is asked by the same programs with as many connections, over HTTP (`POST /throttle`) and over Redis's protocol
//! (`THROTTLE`). What it does is less: GCRA in its own memory, in one process, whose counters nobody shares and which end
//! with it; and whoever reaches it may ask, about any limit.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::processes::Process;

const PROGRAM: &str = ".dev/tools/bin/throttlecrab-server";
/// A burst that nobody uses up, and so many a second: the bucket that ours is, too.
pub const PLENTY: u64 = 1_000_000;

pub struct Throttlecrab {
    /// Its address is HTTP's.
    pub process: Process,
    pub resp: SocketAddr,
    client: reqwest::Client,
}

impl Throttlecrab {
    /// `None` where it is not installed.
    pub async fn start(logs: &Path) -> anyhow::Result<Option<Self>> {
        if !Path::new(PROGRAM).exists() {
            return Ok(None);
        }
        let client = reqwest::Client::new();
        let resp = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let start = |http: SocketAddr| {
            let mut server = Command::new(PROGRAM);
            server.args(["--http", "--http-host", "127.0.0.1", "--http-port", &http.port().to_string()]);
            server.args(["--redis", "--redis-host", "127.0.0.1", "--redis-port", &resp.port().to_string()]);
            server
        };
        let process = Process::start(&logs.join("throttlecrab.log"), start)?.answers(&client, "/health").await?;
        Ok(Some(Self { process, resp, client }))
    }

    /// What it is asked over HTTP; `%s` stands for the key.
    pub fn body() -> Value {
        json!({ "key": "%s", "max_burst": PLENTY, "count_per_period": PLENTY, "period": 1, "quantity": 1 })
    }

    /// How often it has said yes, by its own count.
    pub async fn allowed(&self) -> anyhow::Result<u64> {
        let url = format!("http://{}/metrics", self.process.address);
        let metrics = self.client.get(url).send().await?.text().await?;
        let line = metrics.lines().find_map(|line| line.strip_prefix("throttlecrab_requests_allowed "));
        Ok(line.context("throttlecrab-server does not say what it has allowed")?.parse()?)
    }
}
