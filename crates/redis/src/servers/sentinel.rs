//! The master that sentinels name. A task asks the sentinels in turn. When they name another master, each connection is replaced. Lost
//! memory is found as on any server (protocol, rules 10 and 11).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::{ConnectionManager, MultiplexedConnection};
use redis::{Cmd, ErrorKind, RedisResult, cmd};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::guides::{Said, first_value, note};
use super::{Timeouts, client, connected_once, reconnecting};
use crate::GateError;
use seckill_config as config;
use seckill_config::servers::Guides;

/// How often a sentinel is asked. A failover lasts this much longer than for the sentinels.
const ASK_EVERY: Duration = Duration::from_millis(250);

#[derive(Clone)]
pub(crate) struct Master {
    pub(super) sentinels: Arc<[redis::Client]>,
    /// The master's name at the sentinels.
    name: String,
    present: watch::Receiver<Said<redis::Client>>,
    /// How long a caller waits for the first answer of a sentinel.
    wait_max: Duration,
    _asking: Arc<AbortOnDropHandle<()>>,
}

impl Master {
    pub(super) fn follow(redis: &config::Redis, watched: Guides, timeouts: Timeouts) -> Result<Self, GateError> {
        let sentinels = watched.addresses.iter().map(|address| client(redis, address, timeouts.response));
        let sentinels = sentinels.collect::<Result<Arc<[_]>, _>>()?;
        // An address that cannot be parsed fails now.
        client(redis, &watched.server_at("localhost", 6379), timeouts.response)?;
        let (named, present) = watch::channel(Said::nothing());
        let name = watched.master.clone();
        let asking = Asking { redis: redis.clone(), watched, timeouts, sentinels: Arc::clone(&sentinels), named };
        let asking = Arc::new(AbortOnDropHandle::new(tokio::spawn(asking.run())));
        Ok(Self { sentinels, name, present, wait_max: timeouts.connect, _asking: asking })
    }

    pub(super) async fn present(&self) -> RedisResult<Arc<redis::Client>> {
        first_value(&self.present, self.wait_max, "no sentinel has named a master").await
    }

    /// The question that a sentinel answers if it knows the master.
    pub(super) fn question(&self) -> Cmd {
        about_master(&self.name)
    }
}

fn about_master(name: &str) -> Cmd {
    let mut ask = cmd("SENTINEL");
    ask.arg("MASTER").arg(name);
    ask
}

/// A connection to the present master; clones share it.
#[derive(Clone)]
pub(crate) struct Following {
    master: Master,
    timeouts: Timeouts,
    connected: Arc<ArcSwapOption<(Arc<redis::Client>, ConnectionManager)>>,
}

impl Following {
    pub(super) fn new(master: Master, timeouts: Timeouts) -> Self {
        Self { master, timeouts, connected: Arc::default() }
    }

    pub(super) async fn present(&self) -> RedisResult<ConnectionManager> {
        let present = self.master.present().await?;
        if let Some(connected) = &*self.connected.load()
            && Arc::ptr_eq(&connected.0, &present)
        {
            return Ok(connected.1.clone());
        }
        let connection = reconnecting(&present, self.timeouts)?;
        self.connected.store(Some(Arc::new((present, connection.clone()))));
        Ok(connection)
    }
}

/// A sentinel's answer. Each promotion raises the epoch.
#[derive(PartialEq, Eq)]
struct Named {
    address: (String, u16),
    epoch: u64,
}

struct Asking {
    redis: config::Redis,
    watched: Guides,
    timeouts: Timeouts,
    sentinels: Arc<[redis::Client]>,
    named: watch::Sender<Said<redis::Client>>,
}

impl Asking {
    async fn run(self) {
        let mut connections: Vec<Option<MultiplexedConnection>> = self.sentinels.iter().map(|_| None).collect();
        let mut last: Option<Named> = None;
        for turn in (0..connections.len()).cycle() {
            let sentinel = self.sentinels[turn].get_connection_info().addr().to_string();
            let asked = self.ask(turn, &mut connections[turn]).await;
            note(&self.named, &sentinel, asked.as_ref().map(drop));
            match asked {
                // Nothing has changed, or this sentinel is cut off and does not know the last promotion.
                Ok(named) if last.as_ref().is_some_and(|last| named.epoch < last.epoch || named == *last) => {}
                Ok(named) => {
                    let led = self.lead_to(&named.address).await;
                    let (host, port) = &named.address;
                    note(&self.named, &format!("{host}:{port}"), led.as_ref().map(drop));
                    if led.is_ok() {
                        last = Some(named);
                    }
                }
                Err(_) => connections[turn] = None,
            }
            sleep(ASK_EVERY).await;
        }
    }

    async fn ask(&self, turn: usize, connection: &mut Option<MultiplexedConnection>) -> RedisResult<Named> {
        let sentinel = match connection {
            Some(sentinel) => sentinel,
            None => connection.insert(connected_once(&self.sentinels[turn], self.timeouts).await?),
        };
        let about: HashMap<String, String> = about_master(&self.watched.master).query_async(sentinel).await?;
        let read = || {
            let address = (about.get("ip")?.clone(), about.get("port")?.parse().ok()?);
            Some(Named { address, epoch: about.get("config-epoch")?.parse().ok()? })
        };
        read().ok_or_else(|| (ErrorKind::UnexpectedReturnType, "unexpected reply to SENTINEL MASTER").into())
    }

    /// Leads all connections there, if that server is a master: a sentinel may name a server before its promotion.
    async fn lead_to(&self, (host, port): &(String, u16)) -> RedisResult<()> {
        let unusable = |_| redis::RedisError::from((ErrorKind::InvalidClientConfig, "not an address"));
        let master =
            client(&self.redis, &self.watched.server_at(host, *port), self.timeouts.response).map_err(unusable)?;
        let role: Vec<redis::Value> =
            cmd("ROLE").query_async(&mut connected_once(&master, self.timeouts).await?).await?;
        let role: Option<String> = role.into_iter().next().and_then(|role| redis::from_redis_value(role).ok());
        if role.as_deref() != Some("master") {
            return Err((ErrorKind::Io, "the server is no master").into());
        }
        let mut is_other = false;
        self.named.send_modify(|said| {
            is_other = said.value.is_some();
            *said = Said::value(master);
        });
        if is_other {
            tracing::warn!(%host, port, "another Redis server is the master now");
        }
        Ok(())
    }
}
