//! Redis, PostgreSQL and RabbitMQ: the server set `faults` of `./dev`, killed by pid and started again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::process::Command;
use tokio::time::sleep;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    Redis,
    Postgres,
    Broker,
}

impl Server {
    pub const ALL: [Self; 3] = [Self::Redis, Self::Postgres, Self::Broker];

    fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Postgres => "pg",
            Self::Broker => "mq",
        }
    }
}

pub struct Servers {
    run_dev: PathBuf,
    /// The variables that `./dev env` prints for the set.
    pub environment: HashMap<String, String>,
}

impl Servers {
    pub fn find() -> anyhow::Result<Self> {
        ensure!(std::env::var("DEV_SET").is_ok_and(|set| set == "faults"), "DEV_SET is not faults");
        let run_dev = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("dev");
        let output = bash(r#"eval "$("$0" env)"; env -0"#, &run_dev).output();
        let output = String::from_utf8(output.context("./dev env")?.stdout)?;
        let known = |name: &str| name.starts_with("SECKILL_") || name.ends_with("_URL");
        let environment: HashMap<String, String> = output
            .split('\0')
            .filter_map(|line| line.split_once('='))
            .filter(|(name, _)| known(name))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        ensure!(environment.contains_key("REDIS_URL"), "./dev env names no REDIS_URL");
        Ok(Self { run_dev, environment })
    }

    pub fn url(&self, name: &str) -> &str {
        &self.environment[name]
    }

    /// Runs `./dev` on the set, and returns its output.
    pub async fn run_dev(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut run_dev = Command::from(bash(r#""$0" "$@""#, &self.run_dev));
        let done = tokio::time::timeout(Duration::from_secs(120), run_dev.args(arguments).kill_on_drop(true).output());
        let done = done.await.with_context(|| format!("./dev {arguments:?} takes too long"))??;
        let output = String::from_utf8_lossy(&done.stdout).into_owned();
        ensure!(done.status.success(), "./dev {arguments:?}: {output}{}", String::from_utf8_lossy(&done.stderr));
        Ok(output)
    }

    pub async fn start(&self, server: Server) -> anyhow::Result<()> {
        self.run_dev(&["up", server.name()]).await.map(drop)
    }

    pub async fn stop(&self, server: Server) -> anyhow::Result<()> {
        self.run_dev(&["down", server.name()]).await.map(drop)
    }

    pub async fn pid(&self, server: Server) -> anyhow::Result<u32> {
        let row = format!("faults/{} pid ", server.name());
        let status = self.run_dev(&["status"]).await?;
        let pid = status.lines().find_map(|line| line.strip_prefix(&row)?.split(' ').next()?.parse().ok());
        pid.with_context(|| format!("{} does not run: {status}", server.name()))
    }

    pub async fn brokerctl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.run_dev(&[&["mqctl"], arguments].concat()).await
    }

    /// Starts every server again after a failed run, and resets the run's changes.
    pub async fn repair(&self) {
        for attempt in [
            self.run_dev(&["up"]).await,
            self.brokerctl(&["set_disk_free_limit", "200MB"]).await,
            self.brokerctl(&["set_vm_memory_high_watermark", "absolute", "1GB"]).await,
        ] {
            if let Err(error) = attempt {
                eprintln!("not repaired: {error:#}");
            }
        }
        if let Ok(client) = redis::Client::open(self.url("REDIS_URL"))
            && let Ok(mut connection) = client.get_multiplexed_async_connection().await
        {
            let mut config = redis::cmd("CONFIG");
            let _ = config.arg("SET").arg("maxmemory").arg("1gb").query_async::<()>(&mut connection).await;
        }
    }
}

/// A line of shell with `./dev` as `$0`, on the set. The user's servers are never touched.
fn bash(line: &str, run_dev: &Path) -> std::process::Command {
    let mut bash = std::process::Command::new("bash");
    bash.args(["-c", line]).arg(run_dev).env("DEV_SET", "faults").stdin(Stdio::null());
    for name in ["REDIS_URL", "DATABASE_URL", "AMQP_URL"] {
        bash.env_remove(name);
    }
    bash
}

pub async fn signal(pid: u32, signal: &str) -> anyhow::Result<()> {
    // The kill of bash: not every machine has the program.
    let kill = [r#"kill -s "$0" "$1""#, signal, &pid.to_string()];
    let sent = Command::new("bash").arg("-c").args(kill).status().await?;
    ensure!(sent.success(), "kill -{signal} {pid}");
    Ok(())
}

/// Sends SIGKILL, and returns when the process has ended, reaped or not.
pub async fn kill9(pid: u32) -> anyhow::Result<()> {
    signal(pid, "KILL").await?;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return Ok(()) };
        if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')) {
            return Ok(());
        }
        sleep(Duration::from_millis(2)).await;
    }
    bail!("process {pid} survives SIGKILL")
}
