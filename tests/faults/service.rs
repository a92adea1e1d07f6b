//! `seckill serve` and `seckill work`, each as a separate process.

use std::collections::HashMap;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::servers::signal;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_seckill");
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Serve,
    Work,
}

/// One process, killed when it is dropped. A restart keeps its address and its log file.
pub struct Process {
    pub role: Role,
    pub address: SocketAddr,
    environment: HashMap<String, String>,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts the process, with a place where it dies, if any: `relay.published=3*off->return`.
    pub async fn start(
        role: Role,
        environment: &HashMap<String, String>,
        log: PathBuf,
        dies_at: Option<&str>,
    ) -> anyhow::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let child = spawn(role, address, environment, &log, dies_at)?;
        let mut process = Self { role, address, environment: environment.clone(), log, child };
        process.ready().await?;
        Ok(process)
    }

    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.child = spawn(self.role, self.address, &self.environment, &self.log, None)?;
        self.ready().await
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                bail!("{:?} ended by itself: {status}; see {}", self.role, self.log.display());
            }
            let ready = match self.role {
                Role::Serve => reqwest::get(format!("http://{}/readyz", self.address))
                    .await
                    .is_ok_and(|answer| answer.status().is_success()),
                // The line is logged once every loop has started. The loops connect later.
                Role::Work => self.has_logged("working"),
            };
            if ready {
                return Ok(());
            }
            sleep(Duration::from_millis(10)).await;
        }
        bail!("{:?} does not become ready; see {}", self.role, self.log.display())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn has_logged(&self, words: &str) -> bool {
        self.log().contains(words)
    }

    pub async fn kill9(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Sends SIGSTOP: the process stands still, and its connections stay open.
    pub async fn pause(&mut self) -> anyhow::Result<()> {
        signal(self.child.id().context("the process has ended")?, "STOP").await
    }

    pub async fn terminate(&mut self) -> anyhow::Result<()> {
        signal(self.child.id().context("the process has ended")?, "TERM").await
    }

    pub async fn ended(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        timeout(patience, self.child.wait())
            .await
            .with_context(|| format!("{:?} lives on", self.role))?
            .map_err(Into::into)
    }

    /// Waits until the process has died at a named place.
    pub async fn aborted(&mut self, patience: Duration) -> anyhow::Result<()> {
        let status = self.ended(patience).await?;
        ensure!(
            std::os::unix::process::ExitStatusExt::signal(&status) == Some(6),
            "the process ended in another way: {status}"
        );
        Ok(())
    }
}

fn spawn(
    role: Role,
    address: SocketAddr,
    environment: &HashMap<String, String>,
    log: &PathBuf,
    dies_at: Option<&str>,
) -> anyhow::Result<Child> {
    let log = File::options().create(true).append(true).open(log)?;
    let mut command = Command::new(PROGRAM);
    command
        .arg(match role {
            Role::Serve => "serve",
            Role::Work => "work",
        })
        .env_clear()
        .envs(environment)
        .env("SECKILL_HTTP__BIND", address.to_string())
        .env("RUST_LOG", "info")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true);
    if let Some(place) = dies_at {
        command.env("FAILPOINTS", place);
    }
    Ok(command.spawn()?)
}
