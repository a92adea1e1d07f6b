//! Connections to Redis: to one server, to the master that sentinels name, or to the masters of a cluster.

mod cluster;
mod guides;
mod sentinel;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, select_ok, try_join_all};
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ErrorKind, FromRedisValue, IntoConnectionInfo, Pipeline, RedisFuture,
    RedisResult, TlsCertificates, Value,
};

use super::GateError;
use cluster::{Cluster, SlotMap, ToMaster, ToMasters};
use seckill_config as config;
use seckill_config::servers::{nodes, sentinels};
use seckill_domain::memory_level::MemoryLevel;
use sentinel::{Following, Master};

#[derive(Clone, Copy)]
pub(super) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) response: Duration,
}

#[derive(Clone)]
pub(super) enum Server {
    At(redis::Client),
    /// The master that sentinels name.
    Followed(Master),
    Cluster(Cluster),
}

impl Server {
    pub(super) fn new(redis: &config::Redis, timeouts: Timeouts) -> Result<Self, GateError> {
        Ok(if let Some(watched) = sentinels(&redis.url) {
            Self::Followed(Master::follow(redis, watched, timeouts)?)
        } else if let Some(nodes) = nodes(&redis.url) {
            Self::Cluster(Cluster::follow(redis, nodes, timeouts)?)
        } else {
            Self::At(client(redis, &redis.url, timeouts.response)?)
        })
    }

    pub(super) async fn masters(&self) -> RedisResult<Masters> {
        Ok(match self {
            Self::At(client) => Masters::One(Arc::new(client.clone())),
            Self::Followed(master) => Masters::One(master.present().await?),
            Self::Cluster(cluster) => Masters::Several(cluster.map().await?),
        })
    }

    pub(super) fn connections(&self, timeouts: Timeouts) -> Result<Connections, GateError> {
        Ok(match self {
            Self::At(client) => Connections::One(Connection::To(reconnecting(client, timeouts)?)),
            Self::Followed(master) => Connections::One(Connection::Following(Following::new(master.clone(), timeouts))),
            Self::Cluster(cluster) => Connections::Several(Arc::new(ToMasters::new(cluster.clone()))),
        })
    }

    /// Clients of all servers that the address names.
    pub(super) fn named(&self) -> &[redis::Client] {
        match self {
            Self::At(client) => std::slice::from_ref(client),
            Self::Followed(master) => &master.sentinels,
            Self::Cluster(cluster) => cluster.named(),
        }
    }

    /// Sends one of the named servers the command that the service depends on.
    pub(super) async fn ask_named(&self, index: usize, timeouts: Timeouts) -> RedisResult<()> {
        let missing = || redis::RedisError::from((ErrorKind::InvalidClientConfig, "no such server"));
        let mut server = connected_once(self.named().get(index).ok_or_else(missing)?, timeouts).await?;
        let question = match self {
            Self::At(_) => redis::cmd("PING"),
            Self::Followed(master) => master.question(),
            Self::Cluster(_) => redis::cmd("CLUSTER").arg("SLOTS").to_owned(),
        };
        question.query_async(&mut server).await
    }
}

/// The masters of one moment, in a fixed order.
#[derive(Clone)]
pub(super) enum Masters {
    One(Arc<redis::Client>),
    Several(Arc<SlotMap>),
}

impl Masters {
    pub(super) fn clients(&self) -> Vec<redis::Client> {
        match self {
            Self::One(client) => vec![redis::Client::clone(client)],
            Self::Several(map) => map.clients().cloned().collect(),
        }
    }

    /// The place of the master of this key, if it has one.
    pub(super) fn place_of(&self, key: &str) -> Option<usize> {
        match self {
            Self::One(_) => Some(0),
            Self::Several(map) => map.place_of(key),
        }
    }

    /// Whether the same masters have the same slots. A connection to one server leads to no other server.
    pub(super) fn are_those_of(&self, before: &Self) -> bool {
        match (self, before) {
            (Self::Several(now), Self::Several(before)) => Arc::ptr_eq(now, before),
            _ => true,
        }
    }
}

/// The connections to the server of sales, or to all masters of a cluster; clones share them.
#[derive(Clone)]
pub(super) enum Connections {
    One(Connection),
    Several(Arc<ToMasters>),
}

impl Connections {
    pub(super) fn of(&self, key: &str) -> Connection {
        self.of_key(|| key)
    }

    /// The same, for a key that only a cluster needs.
    pub(super) fn of_key<K: AsRef<str>>(&self, key: impl FnOnce() -> K) -> Connection {
        match self {
            Self::One(only) => only.clone(),
            Self::Several(masters) => Connection::OfSlot(masters.of(key().as_ref())),
        }
    }

    async fn all(&self) -> RedisResult<Vec<Connection>> {
        Ok(match self {
            Self::One(only) => vec![only.clone()],
            Self::Several(masters) => masters.all().await?.1.iter().cloned().map(Connection::To).collect(),
        })
    }

    /// Asks all servers, and returns the first answer.
    pub(super) async fn ask_any<T: FromRedisValue + Send>(&self, ask: &Cmd) -> RedisResult<T> {
        let servers = self.all().await?.into_iter();
        Ok(select_ok(servers.map(|mut server| async move { ask.query_async(&mut server).await }.boxed())).await?.0)
    }

    async fn ask_all<T: FromRedisValue>(&self, ask: &Cmd) -> RedisResult<Vec<T>> {
        let servers = self.all().await?.into_iter();
        try_join_all(servers.map(async |mut server| ask.query_async(&mut server).await)).await
    }

    pub(super) async fn ping(&self) -> RedisResult<()> {
        self.ask_all::<()>(&redis::cmd("PING")).await.map(drop)
    }

    /// How much memory the fullest server has left.
    pub(super) async fn memory_level(&self) -> RedisResult<MemoryLevel> {
        let answers: Vec<String> = self.ask_all(redis::cmd("INFO").arg("memory")).await?;
        let number = |info: &str, name: &str| info_value(info, name).and_then(|value| value.parse::<u64>().ok());
        let level = |info: &String| {
            // A server that deletes keys makes room by itself.
            if info_value(info, "maxmemory_policy:").is_some_and(|policy| policy != "noeviction") {
                return MemoryLevel::Ample;
            }
            let limit = number(info, "maxmemory:").filter(|limit| *limit > 0);
            let limit = limit.or_else(|| number(info, "total_system_memory:")).unwrap_or(0);
            MemoryLevel::of(number(info, "used_memory:").unwrap_or(0), limit)
        };
        Ok(answers.iter().map(level).max().unwrap_or(MemoryLevel::Ample))
    }

    /// Sends commands, each with its key, to the servers of the keys at the same time. Returns the replies in the order of the commands.
    ///
    /// # Errors
    /// No server has answered.
    pub(super) async fn send_each<T: FromRedisValue>(
        &self,
        commands: Vec<(String, Cmd)>,
    ) -> RedisResult<Vec<RedisResult<T>>> {
        let map = match self {
            Self::One(_) => None,
            Self::Several(masters) => Some(masters.cluster.map().await?),
        };
        let mut replies: Vec<RedisResult<T>> = Vec::with_capacity(commands.len());
        let mut by_server: BTreeMap<Option<usize>, (Connection, Vec<usize>, Pipeline)> = BTreeMap::new();
        for (at, (key, command)) in commands.into_iter().enumerate() {
            let place = map.as_ref().and_then(|map| map.place_of(&key));
            let (_, places, pipeline) =
                by_server.entry(place).or_insert_with(|| (self.of(&key), Vec::new(), redis::pipe()));
            places.push(at);
            pipeline.add_command(command);
            replies.push(Err((ErrorKind::UnexpectedReturnType, "too few replies").into()));
        }
        let calls = by_server.into_values().map(|(mut server, places, mut pipeline)| async move {
            (places, pipeline.ignore_errors().query_async::<Vec<RedisResult<T>>>(&mut server).await)
        });
        let answers = join_all(calls).await;
        if let [(_, Err(error)), others @ ..] = &answers[..]
            && others.iter().all(|(_, answer)| answer.is_err())
        {
            return Err(error.clone());
        }
        for (places, answer) in answers {
            match answer {
                Ok(answer) => places.into_iter().zip(answer).for_each(|(at, reply)| replies[at] = reply),
                Err(error) => places.into_iter().for_each(|at| replies[at] = Err(error.clone())),
            }
        }
        Ok(replies)
    }
}

/// A connection that reconnects by itself; clones share it.
#[derive(Clone)]
pub(super) enum Connection {
    To(ConnectionManager),
    Following(Following),
    OfSlot(ToMaster),
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::To(server) => server.req_packed_command(cmd),
            Self::OfSlot(master) => master.send(cmd).boxed(),
            Self::Following(following) => {
                async move { following.present().await?.req_packed_command(cmd).await }.boxed()
            }
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        cmd: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::To(server) => server.req_packed_commands(cmd, offset, count),
            Self::OfSlot(master) => master.send_all(cmd, offset, count).boxed(),
            Self::Following(following) => {
                async move { following.present().await?.req_packed_commands(cmd, offset, count).await }.boxed()
            }
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::To(server) => server.get_db(),
            Self::Following(_) | Self::OfSlot(_) => 0,
        }
    }
}

pub(super) fn client(redis: &config::Redis, url: &str, response_timeout: Duration) -> Result<redis::Client, GateError> {
    // A server can vanish without closing the connection. Then unacknowledged packets end it.
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true).set_user_timeout(response_timeout * 4);
    let address = url.into_connection_info()?.set_tcp_settings(tcp);
    Ok(match &redis.ca_file {
        Some(file) => {
            redis::Client::build_with_tls(address, TlsCertificates { client_tls: None, root_cert: Some(file.pem()) })?
        }
        None => redis::Client::open(address)?,
    })
}

pub(super) fn is_tls(client: &redis::Client) -> bool {
    matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. })
}

/// A connection that does not reconnect.
pub(super) async fn connected_once(client: &redis::Client, timeouts: Timeouts) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeouts.connect))
        .set_response_timeout(Some(timeouts.response));
    client.get_multiplexed_async_connection_with_config(&config).await
}

pub(super) fn reconnecting(client: &redis::Client, timeouts: Timeouts) -> Result<ConnectionManager, redis::RedisError> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(timeouts.connect))
        .set_response_timeout(Some(timeouts.response))
        // A purchase cannot wait for a second attempt: it fails, and the next one tries again.
        .set_number_of_retries(1)
        .set_max_delay(Duration::from_millis(100));
    ConnectionManager::new_lazy_with_config(client.clone(), config)
}

/// The value of a line of INFO.
pub(super) fn info_value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
