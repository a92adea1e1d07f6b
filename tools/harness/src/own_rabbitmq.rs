//! A RabbitMQ broker of the test's own, which it may kill.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tokio::net::TcpStream;

use crate::eventually;
use crate::folder::free_address;
use crate::own_postgres::run;
use crate::running::Running;

/// A broker with an epmd of its own, which a killed broker would leave behind. Both end when the value is dropped; the folder belongs
/// to the caller.
pub struct OwnRabbitmq {
    process: Running,
    /// The daemon that knows the nodes' ports.
    _epmd: Option<Running>,
    node: String,
    home: PathBuf,
    epmd_port: String,
    /// Where it listens, if it is a node of a cluster; else its settings say so.
    pub port: u16,
}

impl OwnRabbitmq {
    /// Starts a broker in a new folder `rabbitmq`, as dev.d/rabbitmq.sh starts one, with these lines in its configuration.
    pub fn start(folder: &Path, settings: &[String], plugins: &str) -> Self {
        let (home, epmd_port) = (folder.join("rabbitmq"), free_port().to_string());
        std::fs::create_dir(&home).unwrap();
        let epmd = epmd(&home, &epmd_port);
        Self::start_node("seckill", (home, epmd_port, Some(epmd)), 0, settings, plugins)
    }

    /// Starts a cluster of this many nodes, and waits until each knows all others. The first one has the epmd.
    pub async fn cluster(folder: &Path, nodes: usize) -> Vec<Self> {
        let epmd_port = free_port().to_string();
        let names: Vec<String> = (1..=nodes).map(|number| format!("seckill{number}")).collect();
        let mut cluster: Vec<Self> = Vec::new();
        for name in &names {
            let (home, port) = (folder.join(name), free_port());
            std::fs::create_dir(&home).unwrap();
            // Nodes talk to each other only if they have the same cookie.
            let cookie = home.join(".erlang.cookie");
            std::fs::write(&cookie, "SECKILLTESTS").unwrap();
            run(Command::new("chmod").arg("400").arg(cookie));
            let mut settings = vec![
                format!("listeners.tcp.1 = 127.0.0.1:{port}"),
                "cluster_formation.peer_discovery_backend = classic_config".to_owned(),
                "cluster_formation.randomized_startup_delay_range.min = 0".to_owned(),
                "cluster_formation.randomized_startup_delay_range.max = 1".to_owned(),
                "cluster_partition_handling = pause_minority".to_owned(),
                "vm_memory_high_watermark.absolute = 1GB".to_owned(),
                "disk_free_limit.absolute = 10MB".to_owned(),
                // By default each node reserves half a gigabyte.
                "raft.wal_max_size_bytes = 16777216".to_owned(),
            ];
            let peers = names.iter().enumerate();
            settings.extend(
                peers.map(|(at, peer)| format!("cluster_formation.classic_config.nodes.{} = {peer}@localhost", at + 1)),
            );
            let epmd = cluster.is_empty().then(|| epmd(&home, &epmd_port));
            cluster.push(Self::start_node(name, (home, epmd_port.clone(), epmd), port, &settings, ""));
            listens(port).await;
        }
        for node in &cluster {
            node.control(&["await_online_nodes", &nodes.to_string()]);
        }
        cluster
    }

    /// SIGKILL: the broker tells no client.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    fn start_node(
        name: &str,
        (home, epmd_port, epmd): (PathBuf, String, Option<Running>),
        port: u16,
        settings: &[String],
        plugins: &str,
    ) -> Self {
        let path = |name: &str| home.join(name).to_str().unwrap().to_owned();
        std::fs::write(home.join("rabbitmq.conf"), settings.join("\n") + "\n").unwrap();
        std::fs::write(home.join("advanced.config"), "[].\n").unwrap();
        std::fs::write(home.join("enabled_plugins"), format!("[{plugins}].\n")).unwrap();
        std::fs::write(home.join("rabbitmq-env.conf"), "").unwrap();
        let node = format!("{name}@localhost");
        let mut command = Command::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
        command
            .current_dir(&home)
            .envs([("HOME", path("")), ("RABBITMQ_CONF_ENV_FILE", path("rabbitmq-env.conf"))])
            .env("ERL_EPMD_PORT", &epmd_port)
            .envs([("RABBITMQ_NODENAME", node.as_str()), ("ERL_EPMD_ADDRESS", "127.0.0.1")])
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
        let process = spawn(&mut command, &home, "rabbitmq");
        Self { process, _epmd: epmd, node, home, epmd_port, port }
    }

    /// Runs `rabbitmqctl` on the broker.
    pub fn control(&self, arguments: &[&str]) {
        let mut command = Command::new("/usr/lib/rabbitmq/bin/rabbitmqctl");
        command
            .args(["--quiet", "--node", &self.node])
            .args(arguments)
            .envs([("HOME", &self.home), ("RABBITMQ_CONF_ENV_FILE", &self.home.join("rabbitmq-env.conf"))])
            .envs([("ERL_EPMD_PORT", self.epmd_port.as_str()), ("ERL_EPMD_ADDRESS", "127.0.0.1")]);
        run(&mut command);
    }
}

fn epmd(home: &Path, port: &str) -> Running {
    spawn(Command::new("epmd").args(["-port", port, "-address", "127.0.0.1"]), home, "epmd")
}

fn spawn(command: &mut Command, home: &Path, name: &str) -> Running {
    let log = std::fs::File::create(home.join(format!("{name}.log"))).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Running(command.spawn().unwrap())
}

pub fn free_port() -> u16 {
    free_address().port()
}

/// Waits until something listens at this port.
pub async fn listens(port: u16) {
    eventually(|| async { TcpStream::connect(("127.0.0.1", port)).await.map(drop).map_err(|e| e.to_string()) }).await;
}
