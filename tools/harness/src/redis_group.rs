//! A Redis master with a replica, and three sentinels that watch them. The sentinels have a password.

use std::path::Path;
use std::process::{Command, Stdio};

use uuid::Uuid;

use crate::eventually;
use crate::folder::{Folder, free_address};
use crate::running::Running;

/// The name under which the sentinels know the master.
const MASTER: &str = "shop";
const SENTINELS: usize = 3;
/// How long a master may be silent: short, for a test.
const DOWN_AFTER_MS: u32 = 1000;

/// The servers. They end when the value is dropped.
pub struct RedisGroup {
    master: Server,
    _replica: Server,
    sentinels: Vec<Server>,
    password: String,
    _folder: Folder,
}

struct Server {
    process: Running,
    port: u16,
}

impl RedisGroup {
    /// Starts all of them, and waits until the sentinels could fail over.
    pub async fn start() -> Self {
        let folder = Folder::new("redis-group");
        let master = Server::redis(folder.path(), "master", &[]);
        let of = master.port.to_string();
        let replica = Server::redis(folder.path(), "replica", &["--replicaof", "127.0.0.1", &of]);
        eventually(|| async {
            let info = ask(replica.port, "", &["INFO", "replication"])?;
            info.contains("master_link_status:up").then_some(()).ok_or(info)
        })
        .await;
        let password = Uuid::new_v4().to_string();
        let sentinel = |number| Server::sentinel(folder.path(), number, master.port, &password);
        let sentinels: Vec<Server> = (0..SENTINELS).map(sentinel).collect();
        for sentinel in &sentinels {
            eventually(|| async {
                let known = ask(sentinel.port, &password, &["SENTINEL", "MASTER", MASTER])?;
                let fields: Vec<&str> = known.lines().collect();
                let has = |name: &str, value: &str| fields.windows(2).any(|pair| pair == [name, value]);
                let all = has("num-slaves", "1") && has("num-other-sentinels", "2") && has("flags", "master");
                all.then_some(()).ok_or(known)
            })
            .await;
        }
        Self { master, _replica: replica, sentinels, password, _folder: folder }
    }

    /// `REDIS_URL` for the service, with the sentinels and their password.
    pub fn url(&self) -> String {
        format!("{}?sentinel_password={}", self.url_without_password(), self.password)
    }

    pub fn url_without_password(&self) -> String {
        let sentinels: Vec<String> = self.sentinels.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("redis+sentinel://{}/{MASTER}", sentinels.join(","))
    }

    /// SIGKILL to a sentinel.
    pub fn kill_sentinel(&mut self) {
        self.sentinels[0].process.kill();
    }

    /// `host:port` of the master at the start.
    pub fn first_master(&self) -> String {
        format!("127.0.0.1:{}", self.master.port)
    }

    /// SIGKILL to the master.
    pub fn kill_master(&mut self) {
        self.master.process.kill();
    }

    /// Waits until the sentinels have promoted the replica. Returns its `host:port`.
    pub async fn failed_over(&self) -> String {
        eventually(|| async {
            let named = ask(self.sentinels[0].port, &self.password, &["SENTINEL", "get-master-addr-by-name", MASTER])?;
            let named = named.trim().replace('\n', ":");
            (named != self.first_master()).then_some(named).ok_or_else(|| "the old master is still named".to_owned())
        })
        .await
    }
}

impl Server {
    fn redis(folder: &Path, name: &str, more: &[&str]) -> Self {
        let port = free_address().port();
        Self { process: redis_server(folder, name, port, more), port }
    }

    fn sentinel(folder: &Path, number: usize, master: u16, password: &str) -> Self {
        let port = free_address().port();
        let file = folder.join(format!("sentinel-{number}.conf"));
        let terms = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nrequirepass {password}\nsentinel sentinel-pass {password}\nsentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\nsentinel failover-timeout {MASTER} 10000\n",
            folder.display()
        );
        std::fs::write(&file, terms).unwrap();
        let mut command = Command::new("redis-server");
        command.arg(file).arg("--sentinel");
        Self { process: Running(command.stdout(Stdio::null()).spawn().unwrap()), port }
    }
}

/// Starts a Redis with its file in a new folder of this name.
pub(crate) fn redis_server(folder: &Path, name: &str, port: u16, more: &[&str]) -> Running {
    let own = folder.join(name);
    std::fs::create_dir(&own).unwrap();
    let mut command = Command::new("redis-server");
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
        .args(["--repl-diskless-sync-delay", "0", "--dir"])
        .arg(own)
        .args(more);
    Running(command.stdout(Stdio::null()).spawn().unwrap())
}

/// A server's answer, a line for each value. The password may be empty.
pub(crate) fn ask(port: u16, password: &str, words: &[&str]) -> Result<String, String> {
    let mut cli = Command::new("redis-cli");
    if !password.is_empty() {
        cli.env("REDISCLI_AUTH", password);
    }
    let done = cli.args(["-h", "127.0.0.1", "-p", &port.to_string()]).args(words).output();
    let done = done.map_err(|error| error.to_string())?;
    let answer = String::from_utf8_lossy(&done.stdout).into_owned();
    if done.status.success() { Ok(answer) } else { Err(answer) }
}
