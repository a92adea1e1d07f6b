//! A Redis Cluster of three masters, each with a replica.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::eventually;
use crate::folder::{Folder, free_address};
use crate::redis_group::{ask, redis_server};
use crate::running::Running;

const MASTERS: usize = 3;

/// The servers. They end when the value is dropped.
pub struct RedisCluster {
    nodes: Vec<Node>,
    _folder: Folder,
}

struct Node {
    process: Running,
    port: u16,
    /// The port at which the other nodes talk to it.
    bus: u16,
}

impl RedisCluster {
    /// Starts all of them, and waits until any master could be failed over. A node counts as dead when it has been silent for this long.
    pub async fn start(dead_after: Duration) -> Self {
        let folder = Folder::new("redis-cluster");
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create", "--cluster-replicas", "1", "--cluster-yes"]);
        let mut nodes = Vec::new();
        for number in 0..2 * MASTERS {
            let node = Node::start(folder.path(), number, dead_after);
            create.arg(format!("127.0.0.1:{}@{}", node.port, node.bus));
            nodes.push(node);
        }
        for node in &nodes {
            eventually(|| async { ask(node.port, "", &["PING"]).map(drop) }).await;
        }
        let created = create.output().unwrap();
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stdout));
        let cluster = Self { nodes, _folder: folder };
        cluster.is_complete().await;
        cluster
    }

    /// Waits until each node knows all others, and each replica has what its master has.
    async fn is_complete(&self) {
        for node in &self.nodes {
            eventually(|| async {
                let (info, nodes) =
                    (ask(node.port, "", &["CLUSTER", "INFO"])?, ask(node.port, "", &["CLUSTER", "NODES"])?);
                // The last line may be empty.
                let known = nodes.lines().filter(|line| !line.is_empty()).count();
                let replicas = nodes.lines().filter(|line| line.contains("slave") && line.ends_with(" connected"));
                let follows = ask(node.port, "", &["INFO", "replication"])?;
                let has_all = follows.contains("role:master") || follows.contains("master_link_status:up");
                if known < 2 * MASTERS {
                    self.introduce_all(node)?;
                }
                let is_ok = info.contains("cluster_state:ok") && replicas.count() == MASTERS && has_all;
                is_ok.then_some(()).ok_or(nodes)
            })
            .await;
        }
    }

    /// Tells a node of all others. On a slow machine the first introduction may outlast a handshake. Then only one side
    /// knows the other, for ever.
    fn introduce_all(&self, to: &Node) -> Result<(), String> {
        for other in self.nodes.iter().filter(|other| other.port != to.port) {
            let (port, bus) = (other.port.to_string(), other.bus.to_string());
            ask(to.port, "", &["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
        }
        Ok(())
    }

    /// `REDIS_URL` for the service, with all nodes.
    pub fn url(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// Which node has this key now, as the first node that answers says.
    pub fn owner(&self, key: &str) -> usize {
        let said = |node: &Node| Some((node.port, ask(node.port, "", &["EXISTS", key]).ok()?));
        let (asked, answer) = self.nodes.iter().find_map(said).expect("no node answers");
        let moved = answer.strip_prefix("MOVED ").and_then(|moved| moved.trim().rsplit_once(':'));
        let port = moved.map_or(asked, |(_, port)| port.parse().unwrap());
        self.nodes.iter().position(|node| node.port == port).unwrap()
    }

    /// SIGKILL to a node.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].process.kill();
    }

    /// Stops a node without closing its connections, or lets it go on.
    pub fn halt(&self, node: usize, halt: bool) {
        self.nodes[node].process.signal(if halt { "STOP" } else { "CONT" });
    }

    /// A node's answer, a line for each value.
    pub fn ask(&self, node: usize, words: &[&str]) -> String {
        ask(self.nodes[node].port, "", words).unwrap()
    }
}

impl Node {
    fn start(folder: &Path, number: usize, dead_after: Duration) -> Self {
        let (port, bus) = (free_address().port(), free_address().port());
        let (bus_port, silent_ms) = (bus.to_string(), dead_after.as_millis().to_string());
        let own = ["--cluster-enabled", "yes", "--cluster-port", &bus_port, "--cluster-node-timeout", &silent_ms];
        let more = [&own[..], &["--cluster-require-full-coverage", "no"]].concat();
        Self { process: redis_server(folder, &number.to_string(), port, &more), port, bus }
    }
}
