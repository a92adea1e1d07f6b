//! A Redis Cluster: which master has a key, and connections to all of them.
//!
//! A task asks one node after the other for the map of the slots. A call that a node has redirected was not carried out: it is sent
//! once more, to where the answer points. A call that was not answered is never sent again (docs/scale.md), and while a master does not
//! answer, calls to it fail at once. The library's own client
//! of clusters is not used, because it lets calls to all nodes wait while it reads the map anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use futures_util::FutureExt;
use parking_lot::Mutex;
use redis::aio::{ConnectionLike, ConnectionManager, MultiplexedConnection};
use redis::{Cmd, ConnectionAddr, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, ServerErrorKind, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{Timeouts, client, connected_once, reconnecting};
use crate::config;
use crate::config::servers::Nodes;
use crate::domain::shards::slot_of_key;
use crate::gate::GateError;

/// How often a node is asked for the map: what a failover costs beyond what the cluster takes. A redirection is a reason to ask at once.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// The shortest time between two questions, however many calls are redirected.
const ASK_APART: Duration = Duration::from_millis(20);
/// A master that has not answered is asked again after this time, by one call. All others fail at once meanwhile, so that they hold no place
/// for which calls to other masters wait.
const SILENT_FOR: Duration = Duration::from_millis(100);

/// A cluster, as far as it is known; clones share it.
#[derive(Clone)]
pub(in crate::gate) struct Cluster {
    named: Arc<[redis::Client]>,
    present: watch::Receiver<Option<Arc<SlotMap>>>,
    outdated: Arc<Notify>,
    way: Way,
    _asking: Arc<AbortOnDropHandle<()>>,
}

/// How a node is reached.
#[derive(Clone)]
struct Way {
    redis: Arc<config::Redis>,
    nodes: Arc<Nodes>,
    timeouts: Timeouts,
}

type Address = (String, u16);

/// Which master has which slots.
pub(in crate::gate) struct SlotMap {
    masters: Vec<(Address, redis::Client)>,
    /// The first and the last slot of each range, and its master's place in the list; in the order of the slots.
    ranges: Vec<(u16, u16, usize)>,
}

impl SlotMap {
    /// The place of the master that has this key, if any has.
    pub(in crate::gate) fn place_of(&self, key: &str) -> Option<usize> {
        self.owner(slot_of_key(key))
    }

    pub(in crate::gate) fn clients(&self) -> impl Iterator<Item = &redis::Client> {
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

impl Way {
    fn to(&self, (host, port): &Address) -> RedisResult<redis::Client> {
        let unusable = |_| RedisError::from((ErrorKind::InvalidClientConfig, "not an address"));
        client(&self.redis, &self.nodes.server_at(host, *port), self.timeouts.response).map_err(unusable)
    }
}

impl Cluster {
    /// Begins to ask the nodes.
    ///
    /// # Errors
    ///
    /// An address cannot be parsed.
    pub(super) fn follow(redis: &config::Redis, nodes: Nodes, timeouts: Timeouts) -> Result<Self, GateError> {
        let named = nodes.addresses.iter().map(|address| client(redis, address, timeouts.response));
        let named = named.collect::<Result<Arc<[_]>, _>>()?;
        let way = Way { redis: Arc::new(redis.clone()), nodes: Arc::new(nodes), timeouts };
        let (found, present) = watch::channel(None);
        let outdated = Arc::new(Notify::new());
        let asking = Asking { named: Arc::clone(&named), way: way.clone(), outdated: Arc::clone(&outdated), found };
        let asking = Arc::new(AbortOnDropHandle::new(tokio::spawn(asking.run())));
        Ok(Self { named, present, outdated, way, _asking: asking })
    }

    /// The nodes that the address names.
    pub(super) fn named(&self) -> &[redis::Client] {
        &self.named
    }

    /// The map. Only until the first node has answered does this wait.
    pub(in crate::gate) async fn map(&self) -> RedisResult<Arc<SlotMap>> {
        let mut present = self.present.clone();
        let found = timeout(self.way.timeouts.connect, present.wait_for(Option::is_some)).await;
        let found = found.ok().and_then(Result::ok).and_then(|found| found.clone());
        found.ok_or_else(|| (ErrorKind::Io, "no node of the cluster has answered").into())
    }

    /// Has the map read again soon.
    fn is_outdated(&self) {
        self.outdated.notify_one();
    }
}

/// A connection to each master.
pub(in crate::gate) struct ToMasters {
    cluster: Cluster,
    connected: ArcSwapOption<(Arc<SlotMap>, Vec<ConnectionManager>)>,
    /// The masters that do not answer, and when each was asked last.
    silent: Mutex<HashMap<Address, Instant>>,
}

impl ToMasters {
    pub(super) fn new(cluster: Cluster) -> Self {
        Self { cluster, connected: ArcSwapOption::empty(), silent: Mutex::default() }
    }

    /// Whether calls to a master are to fail at once, because it has not answered. After each `SILENT_FOR` one call is let through, to try it.
    fn is_silent(&self, address: &Address) -> bool {
        let mut silent = self.silent.lock();
        let Some(asked) = silent.get_mut(address) else { return false };
        if asked.elapsed() < SILENT_FOR {
            return true;
        }
        *asked = Instant::now();
        false
    }

    /// Remembers whether a master has answered.
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

    /// The connection to the master of a key.
    pub(super) fn of(self: &Arc<Self>, key: &str) -> ToMaster {
        ToMaster { masters: Arc::clone(self), slot: slot_of_key(key) }
    }

    pub(super) async fn map(&self) -> RedisResult<Arc<SlotMap>> {
        self.cluster.map().await
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
            None => reconnecting(client, self.cluster.way.timeouts),
        });
        let connected = Arc::new((Arc::clone(&map), connections.collect::<RedisResult<_>>()?));
        self.connected.store(Some(Arc::clone(&connected)));
        Ok(connected)
    }
}

/// A connection to the master of one slot, whichever it is.
#[derive(Clone)]
pub(in crate::gate) struct ToMaster {
    masters: Arc<ToMasters>,
    slot: u16,
}

impl ToMaster {
    /// The master of the slot, and the connection to it.
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
                self.masters.cluster.is_outdated();
                Err((ErrorKind::Io, "no master of the cluster has the slot of this key").into())
            }
        }
    }

    async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        let (address, mut master) = self.present().await?;
        let reply = master.req_packed_command(cmd).await.and_then(Value::extract_error);
        self.masters.heard(&address, &reply);
        match reply {
            Err(error) if error.redirect_node().is_some() => self.send_redirected(cmd, error).await,
            reply => reply,
        }
    }

    /// Sends a call, which was not carried out, to where the answer points.
    async fn send_redirected(&self, cmd: &Cmd, redirection: RedisError) -> RedisResult<Value> {
        let cluster = &self.masters.cluster;
        let Some(address) = redirection.redirect_node().and_then(|(address, _)| parse_address(address)) else {
            return Err(redirection);
        };
        let asks = redirection.kind() == ErrorKind::Server(ServerErrorKind::Ask);
        if !asks {
            cluster.is_outdated();
        }
        let all = self.masters.all().await?;
        let known = all.0.addresses().zip(&all.1).find(|(known, _)| **known == address);
        let mut node = match known {
            Some((_, connection)) => connection.clone(),
            None => reconnecting(&cluster.way.to(&address)?, cluster.way.timeouts)?,
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

impl ConnectionLike for ToMaster {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.send(cmd).boxed()
    }

    /// Not redirected: part of it may have been carried out.
    fn req_packed_commands<'a>(
        &'a mut self,
        cmd: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        async move {
            let (address, mut master) = self.present().await?;
            let replies = master.req_packed_commands(cmd, offset, count).await;
            self.masters.heard(&address, &replies);
            replies
        }
        .boxed()
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// What asks the nodes.
struct Asking {
    named: Arc<[redis::Client]>,
    way: Way,
    outdated: Arc<Notify>,
    found: watch::Sender<Option<Arc<SlotMap>>>,
}

impl Asking {
    async fn run(self) {
        let (mut turn, mut connection, mut newest) = (0, None, 0);
        loop {
            match self.ask(turn, &mut connection).await {
                // A node that was cut off or has just started may have an old map: it says that it is not in order, or has an older epoch.
                Ok((map, is_ok, epoch)) if epoch >= newest && (is_ok || self.found.borrow().is_none()) => {
                    newest = epoch;
                    self.take(map);
                }
                Ok(_) => (turn, connection) = (turn + 1, None),
                Err(error) => {
                    tracing::debug!(%error, "a node of the cluster does not say which master has which slots; asking the next");
                    (turn, connection) = (turn + 1, None);
                }
            }
            sleep(ASK_APART).await;
            _ = timeout(ASK_EVERY, self.outdated.notified()).await;
        }
    }

    fn take(&self, map: SlotMap) {
        let is_news = self.found.borrow().as_ref().is_none_or(|known| !known.is_like(&map));
        if is_news && self.found.send_replace(Some(Arc::new(map))).is_some() {
            tracing::warn!("the slots of the Redis Cluster have other masters now");
        }
    }

    /// The node whose turn it is: one of those that are named, or one of the masters.
    fn node(&self, turn: usize) -> redis::Client {
        let found = self.found.borrow().clone();
        let masters = found.iter().flat_map(|map| map.clients());
        let nodes: Vec<&redis::Client> = self.named.iter().chain(masters).collect();
        nodes[turn % nodes.len()].clone()
    }

    /// The map of a node, whether the node is in order, and the epoch of the cluster.
    async fn ask(
        &self,
        turn: usize,
        connection: &mut Option<(String, MultiplexedConnection)>,
    ) -> RedisResult<(SlotMap, bool, u64)> {
        if connection.is_none() {
            let node = self.node(turn);
            let host = match node.get_connection_info().addr() {
                ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
                _ => "localhost".to_owned(),
            };
            *connection = Some((host, connected_once(&node, self.way.timeouts).await?));
        }
        let Some((host, node)) = connection else { return Err(malformed()) };
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
                    let client = self.way.to(&address)?;
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

/// The reply to CLUSTER SLOTS: first slot, last slot, and address of the master of each range. A node without a host has that of the node
/// that was asked.
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

/// `host:port`, where an address of IPv6 is not in brackets.
fn parse_address(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    (!host.is_empty()).then_some((host.to_owned(), port.parse().ok()?))
}
