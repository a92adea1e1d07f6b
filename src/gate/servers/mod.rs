//! Connections to Redis: to one server, to the master that sentinels name, or to the masters of a cluster.

mod cluster;
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
use crate::config;
use crate::config::servers::{nodes, sentinels};
use crate::domain::memory_level::MemoryLevel;
use cluster::{Cluster, SlotMap, ToMaster, ToMasters};
use sentinel::{Following, Master};

/// How long a server may take.
#[derive(Clone, Copy)]
pub(super) struct Timeouts {
    pub connect: Duration,
    pub response: Duration,
}

/// Where the server of sales is, or the servers.
#[derive(Clone)]
pub(super) enum Server {
    At(redis::Client),
    /// Where sentinels say that it is.
    Followed(Master),
    Cluster(Cluster),
}

impl Server {
    /// # Errors
    ///
    /// The address cannot be parsed.
    pub(super) fn new(redis: &config::Redis, timeouts: Timeouts) -> Result<Self, GateError> {
        Ok(if let Some(watched) = sentinels(&redis.url) {
            Self::Followed(Master::follow(redis, watched, timeouts)?)
        } else if let Some(nodes) = nodes(&redis.url) {
            Self::Cluster(Cluster::follow(redis, nodes, timeouts)?)
        } else {
            Self::At(client(redis, &redis.url, timeouts.response)?)
        })
    }

    /// The masters of this moment.
    pub(super) async fn masters(&self) -> RedisResult<Masters> {
        Ok(match self {
            Self::At(client) => Masters::One(Arc::new(client.clone())),
            Self::Followed(master) => Masters::One(Arc::new(master.client().await?)),
            Self::Cluster(cluster) => Masters::Several(cluster.map().await?),
        })
    }

    /// Connections that reconnect by themselves.
    pub(super) fn connections(&self, timeouts: Timeouts) -> Result<Connections, GateError> {
        Ok(match self {
            Self::At(client) => Connection::To(reconnecting(client, timeouts)?).into(),
            Self::Followed(master) => Connection::Following(Following::new(master.clone(), timeouts)).into(),
            Self::Cluster(cluster) => Connections::Several(Arc::new(ToMasters::new(cluster.clone()))),
        })
    }

    /// Clients of all servers that the address names.
    pub(super) fn named(&self) -> &[redis::Client] {
        match self {
            Self::At(client) => std::slice::from_ref(client),
            Self::Followed(master) => master.sentinels(),
            Self::Cluster(cluster) => cluster.named(),
        }
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

    /// The place of the master that has this key, if any has.
    pub(super) fn place_of(&self, key: &str) -> Option<usize> {
        match self {
            Self::One(_) => Some(0),
            Self::Several(map) => map.place_of(key),
        }
    }

    /// Whether the same masters have the same slots. One server that a connection leads to does not change while the connection lives.
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

impl From<Connection> for Connections {
    fn from(only: Connection) -> Self {
        Self::One(only)
    }
}

impl Connections {
    /// The connection to the server that has a key.
    pub(super) fn of(&self, key: &str) -> Connection {
        self.of_key(|| key)
    }

    /// Likewise. The key is made only where it is needed.
    pub(super) fn of_key<K: AsRef<str>>(&self, key: impl FnOnce() -> K) -> Connection {
        match self {
            Self::One(only) => only.clone(),
            Self::Several(masters) => Connection::OfSlot(masters.of(key().as_ref())),
        }
    }

    /// What the first server says that answers.
    pub(super) async fn ask_any<T: FromRedisValue + Send>(&self, ask: &Cmd) -> RedisResult<T> {
        let masters = match self {
            Self::One(only) => return ask.query_async(&mut only.clone()).await,
            Self::Several(masters) => masters.all().await?,
        };
        let answers =
            masters.1.iter().cloned().map(|mut master| async move { ask.query_async(&mut master).await }.boxed());
        Ok(select_ok(answers).await?.0)
    }

    /// Checks that all servers answer.
    pub(super) async fn ping(&self) -> RedisResult<()> {
        let ping = redis::cmd("PING");
        let masters = match self {
            Self::One(only) => return ping.query_async(&mut only.clone()).await,
            Self::Several(masters) => masters.all().await?,
        };
        let answers = masters.1.iter().map(async |master| ping.query_async::<()>(&mut master.clone()).await);
        try_join_all(answers).await.map(drop)
    }

    /// How much memory the fullest server has left.
    pub(super) async fn memory_level(&self) -> RedisResult<MemoryLevel> {
        let mut info = redis::cmd("INFO");
        info.arg("memory");
        let answers: Vec<String> = match self {
            Self::One(only) => vec![info.query_async(&mut only.clone()).await?],
            Self::Several(masters) => {
                let masters = masters.all().await?;
                try_join_all(masters.1.iter().map(async |master| info.query_async(&mut master.clone()).await)).await?
            }
        };
        let number = |info: &str, name: &str| info_value(info, name).and_then(|value| value.parse::<u64>().ok());
        let level = |info: &String| {
            // One that deletes keys makes room by itself.
            if info_value(info, "maxmemory_policy:").is_some_and(|policy| policy != "noeviction") {
                return MemoryLevel::Ample;
            }
            let limit = number(info, "maxmemory:").filter(|limit| *limit > 0);
            let limit = limit.or_else(|| number(info, "total_system_memory:")).unwrap_or(0);
            MemoryLevel::of(number(info, "used_memory:").unwrap_or(0), limit)
        };
        Ok(answers.iter().map(level).max().unwrap_or(MemoryLevel::Ample))
    }

    /// Sends commands, each with the key that it is about, to the servers that have the keys, to all at once. Returns the replies in the
    /// order of the commands.
    ///
    /// # Errors
    ///
    /// No server has answered. If some have not, the replies of the others are there.
    pub(super) async fn send_each<T: FromRedisValue>(
        &self,
        commands: Vec<(String, Cmd)>,
    ) -> RedisResult<Vec<RedisResult<T>>> {
        let map = match self {
            Self::One(_) => None,
            Self::Several(masters) => Some(masters.map().await?),
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
            Self::OfSlot(master) => master.req_packed_command(cmd),
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
            Self::OfSlot(master) => master.req_packed_commands(cmd, offset, count),
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
    // A server can vanish without closing the connection. Unacknowledged packets end the connection.
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true).set_user_timeout(response_timeout * 4);
    let address = url.into_connection_info()?.set_tcp_settings(tcp);
    Ok(match &redis.ca_file {
        Some(file) => {
            let authorities = TlsCertificates { client_tls: None, root_cert: Some(file.pem()) };
            redis::Client::build_with_tls(address, authorities)?
        }
        None => redis::Client::open(address)?,
    })
}

pub(super) fn is_tls(client: &redis::Client) -> bool {
    matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. })
}

/// A connection that does not reconnect.
async fn connected_once(client: &redis::Client, timeouts: Timeouts) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeouts.connect))
        .set_response_timeout(Some(timeouts.response));
    client.get_multiplexed_async_connection_with_config(&config).await
}

pub(super) fn reconnecting(client: &redis::Client, timeouts: Timeouts) -> Result<ConnectionManager, redis::RedisError> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(timeouts.connect))
        .set_response_timeout(Some(timeouts.response))
        // A purchase cannot wait for a second attempt: it fails, and the next purchase tries again.
        .set_number_of_retries(1)
        .set_max_delay(Duration::from_millis(100));
    ConnectionManager::new_lazy_with_config(client.clone(), config)
}

/// The value of a line of INFO.
pub(super) fn info_value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
