//! A RabbitMQ broker of the test's own, to be maltreated.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use seckill_harness::eventually;
use tokio::net::TcpStream;

use crate::own_postgres::run;

/// A broker with an epmd of its own, which a killed broker would leave behind. Both end when the value is dropped; the folder is the
/// caller's.
pub struct OwnRabbitmq {
    processes: Vec<Child>,
    home: PathBuf,
    epmd: String,
}

impl OwnRabbitmq {
    /// Starts a broker in a new folder `rabbitmq`, as dev.d/rabbitmq.sh starts one, with these lines in its configuration.
    pub fn start(folder: &Path, settings: &[String], plugins: &str) -> Self {
        let home = folder.join("rabbitmq");
        std::fs::create_dir(&home).unwrap();
        let path = |name: &str| home.join(name).to_str().unwrap().to_owned();
        std::fs::write(home.join("rabbitmq.conf"), settings.join("\n") + "\n").unwrap();
        std::fs::write(home.join("advanced.config"), "[].\n").unwrap();
        std::fs::write(home.join("enabled_plugins"), format!("[{plugins}].\n")).unwrap();
        std::fs::write(home.join("rabbitmq-env.conf"), "").unwrap();
        let epmd = free_port().to_string();
        let mut names = Command::new("epmd");
        let names = spawn(names.args(["-port", &epmd, "-address", "127.0.0.1"]), &home, "epmd");
        let mut command = Command::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
        command
            .current_dir(&home)
            .envs([("HOME", path("")), ("RABBITMQ_CONF_ENV_FILE", path("rabbitmq-env.conf"))])
            .env("ERL_EPMD_PORT", &epmd)
            .envs([("RABBITMQ_NODENAME", "seckill@localhost"), ("ERL_EPMD_ADDRESS", "127.0.0.1")])
            .envs([("RABBITMQ_DIST_PORT", free_port().to_string()), ("RABBITMQ_MNESIA_BASE", path("mnesia"))])
            .envs([("RABBITMQ_LOG_BASE", path("")), ("RABBITMQ_PID_FILE", path("beam.pid"))])
            .envs([("RABBITMQ_GENERATED_CONFIG_DIR", path("config")), ("RABBITMQ_SCHEMA_DIR", path("schema"))])
            .envs([("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf"))])
            .envs([("RABBITMQ_ADVANCED_CONFIG_FILE", path("advanced.config"))])
            .envs([("RABBITMQ_ENABLED_PLUGINS_FILE", path("enabled_plugins"))])
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
            // So that the process is the broker itself, and not a shell.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env_remove("NOTIFY_SOCKET");
        let processes = vec![names, spawn(&mut command, &home, "rabbitmq")];
        Self { processes, home, epmd }
    }

    /// Runs `rabbitmqctl` on the broker.
    pub fn control(&self, arguments: &[&str]) {
        let mut command = Command::new("/usr/lib/rabbitmq/bin/rabbitmqctl");
        command
            .args(["--quiet", "--node", "seckill@localhost"])
            .args(arguments)
            .envs([("HOME", &self.home), ("RABBITMQ_CONF_ENV_FILE", &self.home.join("rabbitmq-env.conf"))])
            .envs([("ERL_EPMD_PORT", self.epmd.as_str()), ("ERL_EPMD_ADDRESS", "127.0.0.1")]);
        run(&mut command);
    }
}

impl Drop for OwnRabbitmq {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn spawn(command: &mut Command, home: &Path, name: &str) -> Child {
    let log = std::fs::File::create(home.join(format!("{name}.log"))).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap()
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until something listens at this port.
pub async fn listens(port: u16) {
    eventually(|| async { TcpStream::connect(("127.0.0.1", port)).await.map(drop).map_err(|e| e.to_string()) }).await;
}

/// A new folder, which goes when the value is dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("seckill-{name}-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
