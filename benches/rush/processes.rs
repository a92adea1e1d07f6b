//! Processes of the bench, and the CPU time of anybody's.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::time::sleep;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_seckill");
/// How long a process may take until it answers.
const PATIENCE: Duration = Duration::from_secs(30);
/// A tick of /proc, on every Linux that we know.
const TICK_US: u64 = 10_000;

/// A process of ours with an address; killed when it is dropped.
pub struct Process {
    pub address: SocketAddr,
    pub pid: u32,
    child: Child,
}

impl Process {
    /// Starts a program that will answer at the address it is told, by argument or setting.
    pub fn start(log: &Path, command: impl FnOnce(SocketAddr) -> Command) -> anyhow::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        Self::start_at(address, log, &mut command(address))
    }

    /// Starts a program that will answer at an address of its own.
    pub fn start_at(address: SocketAddr, log: &Path, command: &mut Command) -> anyhow::Result<Self> {
        let child = spawn(log, command)?;
        Ok(Self { address, pid: child.id().context("it has ended")?, child })
    }

    /// Waits until it answers at this path, be it that it does not know it.
    pub async fn answers(mut self, client: &reqwest::Client, path: &str) -> anyhow::Result<Self> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                bail!("a server ended by itself: {status}; see .dev/log/bench");
            }
            let answer = client.get(format!("http://{}{path}", self.address)).send().await;
            if answer.is_ok_and(|answer| answer.status().as_u16() < 500) {
                return Ok(self);
            }
            sleep(Duration::from_millis(20)).await;
        }
        bail!("a server does not become ready; see .dev/log/bench")
    }

    pub async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// Killed when it is dropped.
fn spawn(log: &Path, command: &mut Command) -> anyhow::Result<Child> {
    let file = File::options().create(true).append(true).open(log)?;
    Ok(command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).kill_on_drop(true).spawn()?)
}

/// Starts background workers, all or those named; they are killed when they are dropped.
pub fn work(log: &Path, only: Option<&str>) -> anyhow::Result<Child> {
    let mut work = Command::new(PROGRAM);
    work.arg("work").args(only.map(|only| ["--only", only]).into_iter().flatten());
    spawn(log, &mut work)
}

/// Ends background workers in good order.
pub async fn end(work: &mut Child) -> anyhow::Result<()> {
    let pid = work.id().context("it has ended")?.to_string();
    ensure!(Command::new("kill").args(["-TERM", &pid]).status().await?.success(), "there is no process {pid}");
    let ended = work.wait().await?;
    ensure!(ended.success(), "the workers ended badly: {ended}");
    Ok(())
}

/// Runs `seckill` to its end; the JSON that it printed, if any.
pub async fn seckill(words: &[&str]) -> anyhow::Result<Value> {
    let done = Command::new(PROGRAM).args(words).kill_on_drop(true).output().await?;
    ensure!(done.status.success(), "seckill {words:?}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(serde_json::from_slice(&done.stdout).unwrap_or(Value::Null))
}

/// The pids of the bench's own servers, as `./dev status` tells them.
pub async fn servers() -> anyhow::Result<Vec<(&'static str, u32)>> {
    let said = Command::new("./dev").arg("status").output().await?.stdout;
    let said = String::from_utf8(said)?;
    let pid = |server| {
        let row = format!("bench/{server} pid ");
        let pid = said.lines().find_map(|line| line.strip_prefix(&row)?.split(' ').next()?.parse().ok());
        pid.with_context(|| format!("./dev status knows no bench/{server}: {said}"))
    };
    Ok(vec![("redis", pid("redis")?), ("postgres", pid("pg")?), ("rabbitmq", pid("mq")?)])
}

/// CPU time that each of these processes has used, with the children it has and had; 0 for one that has ended.
pub fn cpu_us(processes: &[(&'static str, u32)]) -> anyhow::Result<Vec<(&'static str, u64)>> {
    let mut stats = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        if let Some(stat) = pid.and_then(Stat::read) {
            stats.push(stat);
        }
    }
    let used = |pid| {
        let own = stats.iter().filter(|stat| stat.pid == pid).map(|stat| stat.ticks + stat.ticks_of_the_dead);
        let children = stats.iter().filter(|stat| stat.parent == pid).map(|stat| stat.ticks);
        own.chain(children).sum::<u64>() * TICK_US
    };
    Ok(processes.iter().map(|(name, pid)| (*name, used(*pid))).collect())
}

/// What a request costs in CPU time, by process; wrk is the one child of ours that ends meanwhile.
pub struct Meter {
    processes: Vec<(&'static str, u32)>,
    before: Vec<(&'static str, u64)>,
    own_before: Own,
}

impl Meter {
    /// Of the server that answers, and of those behind it.
    pub fn start(server: u32, behind: &[(&'static str, u32)]) -> anyhow::Result<Self> {
        let mut processes = vec![("server", server)];
        processes.extend(behind);
        let (before, own_before) = (cpu_us(&processes)?, Own::look()?);
        Ok(Self { processes, before, own_before })
    }

    /// Microseconds a request.
    pub fn read(&self, requests: u64) -> anyhow::Result<Vec<(&'static str, f64)>> {
        let (after, own) = (cpu_us(&self.processes)?, Own::look()?);
        let own = [("wrk", own.children_us - self.own_before.children_us), ("bench", own.us - self.own_before.us)];
        let used = self.before.iter().zip(after).map(|((name, from), (_, to))| (*name, to.saturating_sub(*from)));
        Ok(used.chain(own).map(|(name, us)| (name, us as f64 / requests as f64)).collect())
    }
}

/// CPU time of this process, and of its children that have ended and were waited for.
struct Own {
    us: u64,
    children_us: u64,
}

impl Own {
    fn look() -> anyhow::Result<Self> {
        let own = Stat::read(std::process::id()).context("/proc tells nothing of us")?;
        Ok(Self { us: own.ticks * TICK_US, children_us: own.ticks_of_the_dead * TICK_US })
    }
}

struct Stat {
    pid: u32,
    parent: u32,
    ticks: u64,
    ticks_of_the_dead: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may have blanks and brackets in it. proc(5) counts from 1; state is its field 3.
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
        let field = |n: usize| fields.get(n - 3)?.parse::<u64>().ok();
        Some(Self {
            pid,
            parent: u32::try_from(field(4)?).ok()?,
            ticks: field(14)? + field(15)?,
            ticks_of_the_dead: field(16)? + field(17)?,
        })
    }
}
