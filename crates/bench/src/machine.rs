//! The machine and the versions of the servers.

use std::fmt;
use std::process::Command;

use serde_json::{Value, json};
use sqlx::PgPool;

pub struct Machine {
    cores: usize,
    cpu: String,
    kernel: String,
    redis: String,
    postgres: String,
    rustc: String,
}

impl Machine {
    pub async fn read(sql: &PgPool) -> anyhow::Result<Self> {
        let cpus = std::fs::read_to_string("/proc/cpuinfo")?;
        let cpu = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let postgres: String = sqlx::query_scalar("SHOW server_version").fetch_one(sql).await?;
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            cpu: cpu.map_or("unknown processor", |(_, name)| name).to_owned(),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            redis: word(&["redis-server", "--version"], "v="),
            postgres: postgres.split(' ').next().unwrap_or_default().to_owned(),
            rustc: word(&["rustc", "--version"], "rustc "),
        })
    }

    pub fn json(&self) -> Value {
        json!({
            "cores": self.cores, "cpu": self.cpu, "kernel": self.kernel, "redis": self.redis, "postgres": self.postgres,
            "rustc": self.rustc, "seckill": env!("CARGO_PKG_VERSION"),
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, cpu, redis, postgres, rustc, .. } = self;
        write!(f, "{cores} cores of {cpu}, Redis {redis}, PostgreSQL {postgres}, Rust {rustc}")
    }
}

/// The word after a mark in the output of a command, or "unknown".
fn word(command: &[&str], mark: &str) -> String {
    let output = command.split_first().and_then(|(name, args)| Command::new(name).args(args).output().ok());
    let output = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    output.split_once(mark).and_then(|(_, rest)| rest.split_whitespace().next()).unwrap_or("unknown").to_owned()
}
