//! The machine and the versions of the servers.

use std::fmt;
use std::process::Command;

use serde_json::{Value, json};
use sqlx::PgPool;

pub struct Machine {
    cores: usize,
    cpu: String,
    /// Whether it has instructions for SHA-256, by which buyers' tokens are signed.
    has_sha: bool,
    kernel: String,
    redis: String,
    postgres: String,
    rustc: String,
}

impl Machine {
    pub async fn read(sql: &PgPool) -> anyhow::Result<Self> {
        let cpus = std::fs::read_to_string("/proc/cpuinfo")?;
        let cpu = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        // ARM's /proc/cpuinfo has no names.
        let cpu = cpu.map_or_else(|| line(&["lscpu"], "Model name:"), |(_, name)| name.to_owned());
        let postgres: String = sqlx::query_scalar("SHOW server_version").fetch_one(sql).await?;
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            cpu,
            has_sha: has_sha(&cpus),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            redis: word(&["redis-server", "--version"], "v="),
            postgres: postgres.split(' ').next().unwrap_or_default().to_owned(),
            rustc: word(&["rustc", "--version"], "rustc "),
        })
    }

    pub fn json(&self) -> Value {
        json!({
            "cores": self.cores, "cpu": self.cpu, "sha_instructions": self.has_sha, "kernel": self.kernel,
            "redis": self.redis, "postgres": self.postgres, "rustc": self.rustc, "seckill": env!("CARGO_PKG_VERSION"),
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, cpu, has_sha, redis, postgres, rustc, .. } = self;
        let sha = if *has_sha { "with" } else { "without" };
        write!(f, "{cores} cores of {cpu} {sha} SHA instructions, Redis {redis}, PostgreSQL {postgres}, Rust {rustc}")
    }
}

/// Whether the flags of the first processor name SHA-256: `sha_ni` on x86, `sha2` on ARM.
fn has_sha(cpus: &str) -> bool {
    let flags = cpus.lines().find_map(|line| line.strip_prefix("flags").or_else(|| line.strip_prefix("Features")));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "sha_ni" || flag == "sha2"))
}

/// The output of a command.
fn output(command: &[&str]) -> String {
    let output = command.split_first().and_then(|(name, args)| Command::new(name).args(args).output().ok());
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// The rest of the line that begins with a mark in the output of a command, or "unknown".
fn line(command: &[&str], mark: &str) -> String {
    let output = output(command);
    let found = output.lines().find_map(|line| line.trim_start().strip_prefix(mark));
    found.map_or("unknown", str::trim).to_owned()
}

/// The word after a mark in the output of a command, or "unknown".
fn word(command: &[&str], mark: &str) -> String {
    let output = output(command);
    output.split_once(mark).and_then(|(_, rest)| rest.split_whitespace().next()).unwrap_or("unknown").to_owned()
}
