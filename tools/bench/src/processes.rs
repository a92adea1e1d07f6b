//! The processes that the bench starts, and the CPU time of processes.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::time::sleep;

/// The `seckill` program that is measured.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
/// A process must answer within this time.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A tick of /proc; 10 ms on all common Linux kernels.
const TICK_US: u64 = 10_000;

pub(crate) fn set_program(path: &Path) -> anyhow::Result<()> {
    let path = path.canonicalize().with_context(|| format!("there is no program {}", path.display()))?;
    PROGRAM.get_or_init(|| path);
    Ok(())
}

pub(crate) fn program() -> anyhow::Result<&'static Path> {
    Ok(PROGRAM.get().context("the program is not set")?)
}

/// A process that we started, and its address. It is killed when this is dropped.
pub(crate) struct Process {
    pub address: SocketAddr,
    pub pid: u32,
    child: Child,
}

impl Process {
    /// Starts a program on a free port. `command` gives it the address, by argument or setting.
    pub(crate) fn start(
        log: &Path,
        command: impl FnOnce(SocketAddr) -> anyhow::Result<Command>,
    ) -> anyhow::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        Self::start_at(address, log, &mut command(address)?)
    }

    /// Starts a program that will answer at a given address.
    pub(crate) fn start_at(address: SocketAddr, log: &Path, command: &mut Command) -> anyhow::Result<Self> {
        let child = spawn(log, command)?;
        Ok(Self { address, pid: child.id().context("the process has ended")?, child })
    }

    /// Waits until the process answers a GET of this path with any status below 500.
    pub(crate) async fn ready(mut self, client: &reqwest::Client, path: &str) -> anyhow::Result<Self> {
        let begun = Instant::now();
        while begun.elapsed() < TIMEOUT {
            if let Some(status) = self.child.try_wait()? {
                bail!("a server ended unexpectedly: {status}; see .dev/log/bench");
            }
            let answer = client.get(format!("http://{}{path}", self.address)).send().await;
            if answer.is_ok_and(|answer| answer.status().as_u16() < 500) {
                return Ok(self);
            }
            sleep(Duration::from_millis(20)).await;
        }
        bail!("a server did not become ready; see .dev/log/bench")
    }
}

/// Starts a process that is killed when the result is dropped.
fn spawn(log: &Path, command: &mut Command) -> anyhow::Result<Child> {
    let file = File::options().create(true).append(true).open(log)?;
    Ok(command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).kill_on_drop(true).spawn()?)
}

/// Starts the background workers, all or those named. They are killed when the result is dropped.
pub(crate) fn work(log: &Path, only: Option<&str>) -> anyhow::Result<Child> {
    let mut work = Command::new(program()?);
    work.arg("work").args(only.map(|only| ["--only", only]).into_iter().flatten());
    spawn(log, &mut work)
}

/// Stops background workers by SIGTERM and waits for their end.
pub(crate) async fn stop(work: &mut Child) -> anyhow::Result<()> {
    let pid = work.id().context("the process has ended")?.to_string();
    ensure!(Command::new("kill").args(["-TERM", &pid]).status().await?.success(), "there is no process {pid}");
    let ended = work.wait().await?;
    ensure!(ended.success(), "the workers failed: {ended}");
    Ok(())
}

/// Runs a `seckill` command. Returns the JSON that it printed, or null.
pub(crate) async fn seckill(words: &[&str]) -> anyhow::Result<Value> {
    let done = Command::new(program()?).args(words).kill_on_drop(true).output().await?;
    ensure!(done.status.success(), "seckill {words:?}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(serde_json::from_slice(&done.stdout).unwrap_or(Value::Null))
}

/// The pids of the bench's Redis, PostgreSQL and RabbitMQ, from `./dev status`.
pub(crate) async fn servers() -> anyhow::Result<Vec<(&'static str, u32)>> {
    let output = Command::new("./dev").arg("status").output().await?.stdout;
    let output = String::from_utf8(output)?;
    let pid = |server| {
        let row = format!("bench/{server} pid ");
        let pid = output.lines().find_map(|line| line.strip_prefix(&row)?.split(' ').next()?.parse().ok());
        pid.with_context(|| format!("./dev status has no bench/{server}: {output}"))
    };
    Ok(vec![("redis", pid("redis")?), ("postgres", pid("pg")?), ("rabbitmq", pid("mq")?)])
}

/// Moves processes and their children to these processors.
pub(crate) async fn keep_on(processors: &str, processes: &[(&'static str, u32)]) -> anyhow::Result<()> {
    let of_ours = |stat: &Stat| processes.iter().any(|(_, pid)| stat.pid == *pid || stat.parent == *pid);
    for stat in all_stats()?.iter().filter(|stat| of_ours(stat)) {
        // A process may have ended meanwhile.
        Command::new("taskset").args(["-a", "-c", "-p", processors, &stat.pid.to_string()]).output().await?;
    }
    Ok(())
}

fn all_stats() -> anyhow::Result<Vec<Stat>> {
    let mut stats = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        stats.extend(pid.and_then(Stat::read));
    }
    Ok(stats)
}

/// CPU time that each of these processes has used, in microseconds, with its children; 0 if it has ended.
pub(crate) fn cpu_us(processes: &[(&'static str, u32)]) -> anyhow::Result<Vec<(&'static str, u64)>> {
    let stats = all_stats()?;
    let used = |pid| {
        let own = stats.iter().filter(|stat| stat.pid == pid).map(|stat| stat.ticks + stat.ticks_of_ended_children);
        let children = stats.iter().filter(|stat| stat.parent == pid).map(|stat| stat.ticks);
        own.chain(children).sum::<u64>() * TICK_US
    };
    Ok(processes.iter().map(|(name, pid)| (*name, used(*pid))).collect())
}

/// Microseconds of CPU per request, by process.
pub(crate) struct Cpu(Vec<(&'static str, f64)>);

impl Cpu {
    /// The CPU time between two readings of the same processes, divided by the number of requests.
    pub(crate) fn between(before: &[(&'static str, u64)], after: &[(&'static str, u64)], requests: u64) -> Self {
        let used = |from: u64, to: u64| to.saturating_sub(from) as f64 / requests as f64;
        Self(before.iter().zip(after).map(|((name, from), (_, to))| (*name, used(*from, *to))).collect())
    }

    pub(crate) fn of(&self, process: &str) -> f64 {
        self.0.iter().find(|(name, _)| *name == process).map_or(f64::NAN, |(_, us)| *us)
    }

    pub(crate) fn sum(&self) -> f64 {
        self.0.iter().map(|(_, us)| us).sum()
    }

    /// All processes, such as `server 7.6, redis 0.0`.
    pub(crate) fn list(&self) -> String {
        self.0.iter().map(|(name, us)| format!("{name} {us:.1}")).collect::<Vec<_>>().join(", ")
    }
}

/// Measures the CPU time per request, by process. wrk is the only child of the bench that ends meanwhile.
pub(crate) struct Meter {
    processes: Vec<(&'static str, u32)>,
    before: Vec<(&'static str, u64)>,
}

impl Meter {
    /// Starts measuring the server that answers and the servers behind it.
    pub(crate) fn start(server: u32, behind: &[(&'static str, u32)]) -> anyhow::Result<Self> {
        let processes = [&[("server", server)], behind].concat();
        let before = Self::used(&processes)?;
        Ok(Self { processes, before })
    }

    pub(crate) fn read(&self, requests: u64) -> anyhow::Result<Cpu> {
        Ok(Cpu::between(&self.before, &Self::used(&self.processes)?, requests))
    }

    /// In microseconds, with the bench itself and its ended children.
    fn used(processes: &[(&'static str, u32)]) -> anyhow::Result<Vec<(&'static str, u64)>> {
        let own = Stat::read(std::process::id()).context("/proc has no entry for this process")?;
        let own = [("wrk", own.ticks_of_ended_children * TICK_US), ("bench", own.ticks * TICK_US)];
        Ok([cpu_us(processes)?, own.to_vec()].concat())
    }
}

struct Stat {
    pid: u32,
    parent: u32,
    ticks: u64,
    ticks_of_ended_children: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may contain blanks and brackets. proc(5) counts fields from 1; the state is field 3.
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
        let field = |n: usize| fields.get(n - 3)?.parse::<u64>().ok();
        Some(Self {
            pid,
            parent: u32::try_from(field(4)?).ok()?,
            ticks: field(14)? + field(15)?,
            ticks_of_ended_children: field(16)? + field(17)?,
        })
    }
}
