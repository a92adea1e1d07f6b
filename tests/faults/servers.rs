//! Redis, PostgreSQL and RabbitMQ: the set `faults` of `./dev`, killed by pid and started again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::process::Command;
use tokio::time::sleep;

/// One of the three, by its name in `./dev`.
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
    dev: PathBuf,
    /// What `./dev env` says of the set.
    pub environment: HashMap<String, String>,
}

impl Servers {
    /// The set that `./dev test --faults` has started.
    pub fn find() -> anyhow::Result<Self> {
        ensure!(std::env::var("DEV_SET").is_ok_and(|set| set == "faults"), "DEV_SET is not faults");
        let dev = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("dev");
        let said = bash(r#"eval "$("$0" env)"; env -0"#, &dev).output();
        let said = String::from_utf8(said.context("./dev env")?.stdout)?;
        let known = |name: &str| name.starts_with("SECKILL_") || name.ends_with("_URL");
        let environment: HashMap<String, String> = said
            .split('\0')
            .filter_map(|line| line.split_once('='))
            .filter(|(name, _)| known(name))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        ensure!(environment.contains_key("REDIS_URL"), "./dev env names no REDIS_URL");
        Ok(Self { dev, environment })
    }

    pub fn url(&self, name: &str) -> &str {
        &self.environment[name]
    }

    /// Runs `./dev` on the set; what it prints.
    pub async fn dev(&self, words: &[&str]) -> anyhow::Result<String> {
        let mut dev = Command::from(bash(r#""$0" "$@""#, &self.dev));
        let done = tokio::time::timeout(Duration::from_secs(120), dev.args(words).kill_on_drop(true).output());
        let done = done.await.with_context(|| format!("./dev {words:?} takes too long"))??;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        ensure!(done.status.success(), "./dev {words:?}: {said}{}", String::from_utf8_lossy(&done.stderr));
        Ok(said)
    }

    pub async fn start(&self, server: Server) -> anyhow::Result<()> {
        self.dev(&["up", server.name()]).await.map(drop)
    }

    /// In good order.
    pub async fn stop(&self, server: Server) -> anyhow::Result<()> {
        self.dev(&["down", server.name()]).await.map(drop)
    }

    pub async fn pid(&self, server: Server) -> anyhow::Result<u32> {
        let row = format!("faults/{} pid ", server.name());
        let status = self.dev(&["status"]).await?;
        let pid = status.lines().find_map(|line| line.strip_prefix(&row)?.split(' ').next()?.parse().ok());
        pid.with_context(|| format!("{} does not run: {status}", server.name()))
    }

    /// `rabbitmqctl` of the set's broker.
    pub async fn brokerctl(&self, words: &[&str]) -> anyhow::Result<String> {
        self.dev(&[&["mqctl"], words].concat()).await
    }

    /// After a failed run: everything up again, and nothing left that was set on the way.
    pub async fn mend(&self) {
        for attempt in [
            self.dev(&["up"]).await,
            self.brokerctl(&["set_disk_free_limit", "200MB"]).await,
            self.brokerctl(&["set_vm_memory_high_watermark", "absolute", "1GB"]).await,
        ] {
            if let Err(error) = attempt {
                eprintln!("not mended: {error:#}");
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

/// A line of shell with `./dev` as `$0`, for the set; a server of the user's is never meant.
fn bash(line: &str, dev: &Path) -> std::process::Command {
    let mut bash = std::process::Command::new("bash");
    bash.args(["-c", line]).arg(dev).env("DEV_SET", "faults").stdin(Stdio::null());
    for name in ["REDIS_URL", "DATABASE_URL", "AMQP_URL"] {
        bash.env_remove(name);
    }
    bash
}

/// SIGKILL, or whatever else, by pid.
pub async fn signal(pid: u32, signal: &str) -> anyhow::Result<()> {
    // bash's own: the program of that name is not on every machine.
    let kill = [r#"kill -s "$0" "$1""#, signal, &pid.to_string()];
    let sent = Command::new("bash").arg("-c").args(kill).status().await?;
    ensure!(sent.success(), "kill -{signal} {pid}");
    Ok(())
}

/// SIGKILL; returns when the process is gone, whoever may reap it later.
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
