//! A private Redis server, for tests that damage it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use seckill_harness::folder::{Folder, free_address};
use seckill_harness::running::Running;
use seckill_harness::{eventually, redis_at, until};

/// A server with its data in a folder of its own. Dropping the value stops the server and deletes the folder.
pub struct OwnRedis {
    pub process: Running,
    port: u16,
    folder: Folder,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// Its clock is set by `set_clock`.
    OwnClock,
    /// It cannot write files beyond this length, as if its disk was full. It writes its append-only file each second.
    SmallFiles {
        kilobytes: u32,
    },
    ClusterNode,
}

impl OwnRedis {
    pub async fn start() -> Self {
        Self::start_as(Kind::Plain).await
    }

    pub async fn start_as(kind: Kind) -> Self {
        let port = free_address().port();
        let folder = Folder::new("redis");
        if kind == Kind::OwnClock {
            folder.write("clock", 0_i64.to_ne_bytes());
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/api/redis/clock_shift.c");
            let library = folder.path().join("clock_shift.so");
            let mut compiler = Command::new("cc");
            compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(library).arg(source);
            assert!(compiler.status().unwrap().success());
        }
        let own = Self { process: spawn(port, folder.path(), kind), port, folder, kind };
        own.answers().await;
        own
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub async fn answers(&self) {
        eventually(|| async { self.query(&["PING"]).await.map(drop).map_err(|e| e.to_string()) }).await;
    }

    pub async fn query(&self, words: &[&str]) -> redis::RedisResult<redis::Value> {
        let mut connection = redis_at(&self.url()).await?;
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await
    }

    /// By a command, or by a restart.
    pub async fn lose_everything(&mut self, by_command: bool) {
        if by_command { self.ask(&["FLUSHALL"]).await.unwrap() } else { self.restart().await }
    }

    pub async fn ask(&self, words: &[&str]) -> redis::RedisResult<()> {
        self.query(words).await.map(drop)
    }

    pub async fn info(&self, section: &str, name: &str) -> String {
        let text: String =
            redis::FromRedisValue::from_redis_value(self.query(&["INFO", section]).await.unwrap()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
    }

    pub async fn follow(&self, master: &Self) {
        self.ask(&["REPLICAOF", "127.0.0.1", &master.port.to_string()]).await.unwrap();
        until("up", || self.info("replication", "master_link_status")).await;
    }

    pub async fn restart(&mut self) {
        self.process.kill();
        self.process = spawn(self.port, self.folder.path(), self.kind);
        self.answers().await;
    }

    /// Kills the server, cuts the end off its append-only file, and starts it again.
    pub async fn lose_last_writes(&mut self, share: f64) {
        self.process.kill();
        let folder = self.folder.file("appendonlydir");
        let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let log = files.find(|path| path.to_string_lossy().ends_with(".incr.aof")).unwrap();
        let length = std::fs::metadata(&log).unwrap().len();
        let file = std::fs::OpenOptions::new().write(true).open(&log).unwrap();
        file.set_len((length as f64 * share) as u64).unwrap();
        self.process = spawn(self.port, self.folder.path(), self.kind);
        self.answers().await;
    }

    /// Removes the folder of the append-only file, so that no new file can be created. The server continues to write the present one.
    pub fn take_folder_away(&self) {
        let folder = self.folder.file("appendonlydir");
        std::fs::rename(&folder, self.folder.file("away")).unwrap();
        std::fs::write(folder, "no folder").unwrap();
    }

    /// Sets the server's clock this many seconds ahead of the present; behind it if negative.
    pub async fn set_clock(&self, offset_s: i64) {
        // Not truncated, because the server has mapped the file.
        let mut file = std::fs::OpenOptions::new().write(true).open(self.folder.file("clock")).unwrap();
        file.write_all(&offset_s.to_ne_bytes()).unwrap();
        let time = self.query(&["TIME"]).await.unwrap();
        let (now_s, _): (i64, i64) = redis::FromRedisValue::from_redis_value(time).unwrap();
        let offset = now_s - chrono::Utc::now().timestamp();
        assert!((offset - offset_s).abs() < 60, "the clock is {offset} s off");
    }
}

fn spawn(port: u16, folder: &Path, kind: Kind) -> Running {
    let flush = if let Kind::SmallFiles { .. } = kind { "everysec" } else { "always" };
    let mut command = match kind {
        Kind::SmallFiles { kilobytes } => {
            // A process that ignores SIGXFSZ gets an error instead of writing too much.
            let limited = format!("trap '' XFSZ; ulimit -f {kilobytes}; exec redis-server \"$@\"");
            let mut bash = Command::new("bash");
            bash.args(["-c", &limited, "redis-server"]);
            bash
        }
        Kind::Plain | Kind::OwnClock | Kind::ClusterNode => Command::new("redis-server"),
    };
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
        .args(["--appendfsync", flush, "--repl-diskless-sync-delay", "0", "--dir"])
        .arg(folder)
        .stdout(Stdio::null());
    match kind {
        Kind::OwnClock => {
            let clock = folder.join("clock");
            command.env("LD_PRELOAD", folder.join("clock_shift.so")).env("CLOCK_SHIFT", clock);
        }
        Kind::ClusterNode => {
            // The cluster bus has a port of its own. The default may be above the highest port.
            let bus = free_address().port();
            command.args(["--cluster-enabled", "yes", "--cluster-port", &bus.to_string()]);
        }
        Kind::Plain | Kind::SmallFiles { .. } => {}
    }
    Running::start(&mut command)
}
