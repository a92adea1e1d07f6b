//! A Redis Cluster: which master has a key, and connections to all masters.
//!
//! A task asks one node after the other for the map of the slots. A node that redirects a call has not carried it out, so the call is
//! sent once more. A call without an answer is never sent again (docs/scale.md). While a master does not answer, calls to it fail at
//! once. The library's own cluster client is not used: it delays calls to all nodes while it reads the map.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::{ConnectionLike, ConnectionManager, MultiplexedConnection};
use redis::{Cmd, ConnectionAddr, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::guides::{Said, first_value, note};
use super::{Timeouts, client, connected_once, reconnecting};
use crate::GateError;
use seckill_config as config;
use seckill_config::servers::Guides;
use seckill_domain::shards::slot_of_key;

/// How often a node is asked for the map. A failover lasts this much longer than in the cluster. A redirection asks at once.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// The shortest time between two questions.
const ASK_APART: Duration = Duration::from_millis(20);
/// A master that has not answered gets one call in this time. Its other calls fail at once, and leave their places to calls for other
/// masters.
const SILENT_FOR: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(crate) struct Cluster {
    nodes: Arc<ClusterNodes>,
    present: watch::Receiver<Said<SlotMap>>,
    _asking: Arc<AbortOnDropHandle<()>>,
}

struct ClusterNodes {
    redis: config::Redis,
    nodes: Guides,
    timeouts: Timeouts,
    /// Clients of the nodes that the address names.
    named: Vec<redis::Client>,
    outdated: Notify,
}

type Address = (String, u16);

pub(crate) struct SlotMap {
    masters: Vec<(Address, redis::Client)>,
    /// The first and the last slot of each range, and the place of its master. In the order of the slots.
    ranges: Vec<(u16, u16, usize)>,
}

impl SlotMap {
    /// The place of the master of this key, if it has one.
    pub(crate) fn place_of(&self, key: &str) -> Option<usize> {
        self.owner(slot_of_key(key))
    }

    pub(crate) fn clients(&self) -> impl Iterator<Item = &redis::Client> {
        self.masters.iter().map(|(_, client)| client)
    }

    fn owner(&self, slot: u16) -> Option<usize> {
        let after = self.ranges.partition_point(|(first, ..)| *first <= slot);
        let (_, last, place) = self.ranges.get(after.checked_sub(1)?)?;
        (slot <= *last).then_some(*place)
    }

    fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.masters.iter().map(|(address, _)| address)
    }

    fn is_like(&self, other: &Self) -> bool {
        self.ranges == other.ranges && self.addresses().eq(other.addresses())
    }
}

impl ClusterNodes {
    fn client_of(&self, (host, port): &Address) -> RedisResult<redis::Client> {
        let unusable = |_| RedisError::from((ErrorKind::InvalidClientConfig, "not an address"));
        client(&self.redis, &self.nodes.server_at(host, *port), self.timeouts.response).map_err(unusable)
    }
}

impl Cluster {
    pub(super) fn follow(redis: &config::Redis, nodes: Guides, timeouts: Timeouts) -> Result<Self, GateError> {
        let named = nodes.addresses.iter().map(|address| client(redis, address, timeouts.response));
        let named = named.collect::<Result<Vec<_>, _>>()?;
        let nodes = Arc::new(ClusterNodes { redis: redis.clone(), nodes, timeouts, named, outdated: Notify::new() });
        let (found, present) = watch::channel(Said::nothing());
        let asking = tokio::spawn(Asking { nodes: Arc::clone(&nodes), found }.run());
        Ok(Self { nodes, present, _asking: Arc::new(AbortOnDropHandle::new(asking)) })
    }

    pub(super) fn named(&self) -> &[redis::Client] {
        &self.nodes.named
    }

    /// The map. It waits only until the first node has answered.
    pub(crate) async fn map(&self) -> RedisResult<Arc<SlotMap>> {
        first_value(&self.present, self.nodes.timeouts.connect, "no node of the cluster has answered").await
    }
}

pub(crate) struct ToMasters {
    pub(super) cluster: Cluster,
    connected: ArcSwapOption<(Arc<SlotMap>, Vec<ConnectionManager>)>,
    /// When each master that does not answer was asked last.
    silent: Mutex<HashMap<Address, Instant>>,
}

impl ToMasters {
    pub(super) fn new(cluster: Cluster) -> Self {
        Self { cluster, connected: ArcSwapOption::empty(), silent: Mutex::default() }
    }

    /// Whether calls to a master fail at once. One call in each `SILENT_FOR` tries it.
    fn is_silent(&self, address: &Address) -> bool {
        let mut silent = self.silent.lock();
        let Some(asked) = silent.get_mut(address) else { return false };
        if asked.elapsed() < SILENT_FOR {
            return true;
        }
        *asked = Instant::now();
        false
    }

    fn heard<T>(&self, address: &Address, answer: &RedisResult<T>) {
        let mut silent = self.silent.lock();
        match answer {
            Err(error) if error.is_timeout() || error.is_connection_refusal() => {
                silent.insert(address.clone(), Instant::now());
            }
            // A connection that was cut may be back at once.
            Err(error) if error.kind() == ErrorKind::Io => {}
            _ => _ = silent.remove(address),
        }
    }

    pub(super) fn of(self: &Arc<Self>, key: &str) -> ToMaster {
        ToMaster { masters: Arc::clone(self), slot: slot_of_key(key) }
    }

    /// The map, and a connection to each of its masters.
    pub(super) async fn all(&self) -> RedisResult<Arc<(Arc<SlotMap>, Vec<ConnectionManager>)>> {
        let map = self.cluster.map().await?;
        let before = self.connected.load_full();
        if let Some(connected) = &before
            && Arc::ptr_eq(&connected.0, &map)
        {
            return Ok(Arc::clone(connected));
        }
        let kept = |address: &Address| {
            let (map, connections) = &**before.as_ref()?;
            map.addresses().zip(connections).find(|(known, _)| *known == address).map(|(_, kept)| kept.clone())
        };
        let connections = map.masters.iter().map(|(address, client)| match kept(address) {
            Some(connection) => Ok(connection),
            None => reconnecting(client, self.cluster.nodes.timeouts),
        });
        let connected = Arc::new((Arc::clone(&map), connections.collect::<RedisResult<_>>()?));
        self.connected.store(Some(Arc::clone(&connected)));
        Ok(connected)
    }
}

/// A connection to the current master of one slot.
#[derive(Clone)]
pub(crate) struct ToMaster {
    masters: Arc<ToMasters>,
    slot: u16,
}

impl ToMaster {
    async fn present(&self) -> RedisResult<(Address, ConnectionManager)> {
        let all = self.masters.all().await?;
        let (map, connections) = &*all;
        let owner = map.owner(self.slot).and_then(|place| Some((&map.masters.get(place)?.0, connections.get(place)?)));
        match owner {
            Some((address, _)) if self.masters.is_silent(address) => {
                Err((ErrorKind::Io, "this master of the cluster did not answer a moment ago").into())
            }
            Some((address, connection)) => Ok((address.clone(), connection.clone())),
            None => {
                self.masters.cluster.nodes.outdated.notify_one();
                Err((ErrorKind::Io, "no master of the cluster has the slot of this key").into())
            }
        }
    }

    pub(super) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        let (address, mut master) = self.present().await?;
        let reply = master.req_packed_command(cmd).await.and_then(Value::extract_error);
        self.masters.heard(&address, &reply);
        match reply {
            Err(error) if error.redirect_node().is_some() => self.send_redirected(cmd, error).await,
            reply => reply,
        }
    }

    /// A pipeline is not redirected: part of it may have been carried out.
    pub(super) async fn send_all(&self, pipeline: &Pipeline, offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        let (address, mut master) = self.present().await?;
        let replies = master.req_packed_commands(pipeline, offset, count).await;
        self.masters.heard(&address, &replies);
        replies
    }

    /// Sends a call to the node that the redirection names.
    async fn send_redirected(&self, cmd: &Cmd, redirection: RedisError) -> RedisResult<Value> {
        let nodes = &self.masters.cluster.nodes;
        let Some(address) = redirection.redirect_node().and_then(|(address, _)| parse_address(address)) else {
            return Err(redirection);
        };
        let asks = redirection.kind() == ErrorKind::Server(ServerErrorKind::Ask);
        if !asks {
            nodes.outdated.notify_one();
        }
        let all = self.masters.all().await?;
        let known = all.0.addresses().zip(&all.1).find(|(known, _)| **known == address);
        let mut node = match known {
            Some((_, connection)) => connection.clone(),
            None => reconnecting(&nodes.client_of(&address)?, nodes.timeouts)?,
        };
        if !asks {
            return node.req_packed_command(cmd).await;
        }
        let mut asking = redis::pipe();
        asking.cmd("ASKING").ignore().add_command(cmd.clone());
        let replies = node.req_packed_commands(&asking, 0, 2).await?;
        replies.into_iter().next_back().ok_or_else(|| (ErrorKind::UnexpectedReturnType, "no reply").into())
    }
}

fn address_of(node: &redis::Client) -> ConnectionAddr {
    node.get_connection_info().addr().clone()
}

struct Asking {
    nodes: Arc<ClusterNodes>,
    found: watch::Sender<Said<SlotMap>>,
}

impl Asking {
    async fn run(self) {
        let (mut turn, mut connection, mut newest) = (0, None, 0);
        loop {
            let asked = self.ask(turn, &mut connection).await;
            let node = connection.as_ref().map_or_else(|| address_of(&self.node(turn)), |(node, _)| node.clone());
            note(&self.found, &node.to_string(), asked.as_ref().map(drop));
            match asked {
                // A node that was cut off or has just started may have an old map. Then its state is not ok, or its epoch is older.
                Ok((map, is_ok, epoch)) if epoch >= newest && (is_ok || self.found.borrow().value.is_none()) => {
                    newest = epoch;
                    self.take(map);
                }
                _ => (turn, connection) = (turn + 1, None),
            }
            sleep(ASK_APART).await;
            _ = timeout(ASK_EVERY, self.nodes.outdated.notified()).await;
        }
    }

    fn take(&self, map: SlotMap) {
        let known = self.found.borrow().value.clone();
        if known.as_ref().is_some_and(|known| known.is_like(&map)) {
            return;
        }
        self.found.send_modify(|said| said.value = Some(Arc::new(map)));
        if known.is_some() {
            tracing::warn!("the slots of the Redis Cluster have other masters now");
        }
    }

    /// Round robin over the named nodes and the masters.
    fn node(&self, turn: usize) -> redis::Client {
        let found = self.found.borrow().value.clone();
        let masters = found.iter().flat_map(|map| map.clients());
        let nodes: Vec<&redis::Client> = self.nodes.named.iter().chain(masters).collect();
        nodes[turn % nodes.len()].clone()
    }

    /// The map of a node, whether the node's state is ok, and the epoch of the cluster.
    async fn ask(
        &self,
        turn: usize,
        connection: &mut Option<(ConnectionAddr, MultiplexedConnection)>,
    ) -> RedisResult<(SlotMap, bool, u64)> {
        if connection.is_none() {
            let node = self.node(turn);
            *connection = Some((address_of(&node), connected_once(&node, self.nodes.timeouts).await?));
        }
        let Some((address, node)) = connection else { return Err(malformed()) };
        let host = match address {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
            _ => "localhost",
        };
        let mut ask = redis::pipe();
        ask.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
        let (info, slots): (String, Value) = ask.query_async(node).await?;
        let line = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let epoch = line("cluster_current_epoch:").and_then(|epoch| epoch.parse().ok()).ok_or_else(malformed)?;
        Ok((self.read(slots, host)?, line("cluster_state:") == Some("ok"), epoch))
    }

    fn read(&self, slots: Value, asked: &str) -> RedisResult<SlotMap> {
        let mut map = SlotMap { masters: Vec::new(), ranges: Vec::new() };
        for (first, last, address) in read_ranges(&slots, asked).ok_or_else(malformed)? {
            let known = map.addresses().position(|known| *known == address);
            let place = match known {
                Some(place) => place,
                None => {
                    let client = self.nodes.client_of(&address)?;
                    map.masters.push((address, client));
                    map.masters.len() - 1
                }
            };
            map.ranges.push((first, last, place));
        }
        if map.masters.is_empty() {
            return Err((ErrorKind::Io, "no slot of the cluster has a master yet").into());
        }
        map.ranges.sort_unstable();
        Ok(map)
    }
}

fn malformed() -> RedisError {
    (ErrorKind::UnexpectedReturnType, "unexpected reply to CLUSTER SLOTS").into()
}

/// The reply to CLUSTER SLOTS: first slot, last slot, and address of the master of each range. A node without a host has the host of
/// the asked node.
fn read_ranges(slots: &Value, asked: &str) -> Option<Vec<(u16, u16, Address)>> {
    let Value::Array(rows) = slots else { return None };
    let range = |row: &Value| {
        let Value::Array(row) = row else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &row[..] else { return None };
        let [host, Value::Int(port), ..] = &master[..] else { return None };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() && host != b"?" => String::from_utf8(host.clone()).ok()?,
            Value::BulkString(_) | Value::Nil => asked.to_owned(),
            _ => return None,
        };
        Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, (host, u16::try_from(*port).ok()?)))
    };
    rows.iter().map(range).collect()
}

/// `host:port`. An IPv6 address has no brackets here.
fn parse_address(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    (!host.is_empty()).then_some((host.to_owned(), port.parse().ok()?))
}
