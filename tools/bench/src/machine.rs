//! The machine and the versions of the servers.

use std::fmt;
use std::process::Command;

use serde_json::{Value, json};
use sqlx::PgPool;

pub(crate) struct Machine {
    cores: usize,
    cpu: String,
    /// Whether it has instructions for SHA-256, by which buyers' tokens are signed.
    has_sha: bool,
    redis: String,
    postgres: String,
    rustc: String,
}

impl Machine {
    pub(crate) async fn read(sql: &PgPool) -> anyhow::Result<Self> {
        let cpus = std::fs::read_to_string("/proc/cpuinfo")?;
        let cpu = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        // ARM's /proc/cpuinfo has no names.
        let cpu = cpu.map_or_else(|| after(&["lscpu"], "Model name:"), |(_, name)| name.to_owned());
        let postgres: String = sqlx::query_scalar("SHOW server_version").fetch_one(sql).await?;
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            cpu,
            has_sha: has_sha(&cpus),
            redis: first_word(&after(&["redis-server", "--version"], "v=")),
            postgres: first_word(&postgres),
            rustc: first_word(&after(&["rustc", "--version"], "rustc ")),
        })
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "cores": self.cores, "cpu": self.cpu, "sha_instructions": self.has_sha,
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

/// The rest of the line after a mark in the output of a command, or "unknown".
fn after(command: &[&str], mark: &str) -> String {
    let output = command.split_first().and_then(|(name, args)| Command::new(name).args(args).output().ok());
    let output = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let rest = output.split_once(mark).and_then(|(_, rest)| rest.lines().next());
    rest.map_or("unknown", str::trim).to_owned()
}

fn first_word(text: &str) -> String {
    text.split(' ').next().unwrap_or_default().to_owned()
}
