//! Reads the state of Redis servers for `seckill doctor`, and changes nothing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, cmd};

use super::server_runs::has_no_master;
use super::servers::{Timeouts, connected_once, info_value};
use super::{Gate, GateError, scripts};
use seckill_config::tls::{Protection, Route};
use seckill_domain::clock_reading::ClockReading;

/// A connection of its own to a server of sales.
pub struct RedisInspection {
    pub address: String,
    connection: MultiplexedConnection,
}

pub struct ServerInfo(String);

impl ServerInfo {
    pub fn text(&self, name: &str) -> Option<&str> {
        info_value(&self.0, &format!("{name}:"))
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}

impl From<String> for ServerInfo {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// The ids that a script sees on its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenByScript {
    /// `None` before Redis 7.0.
    pub run_id: Option<String>,
    pub replication_id: Option<String>,
}

impl Gate {
    /// How many masters there are: more than one in a cluster.
    pub async fn masters(&self) -> Result<usize, GateError> {
        Ok(self.server.masters().await?.clients().len())
    }

    /// Connects to one of the masters, within `limit`.
    pub async fn inspect(&self, index: usize, limit: Duration) -> Result<RedisInspection, GateError> {
        let masters = self.server.masters().await?.clients();
        let master = masters.get(index).ok_or_else(has_no_master)?;
        let address = master.get_connection_info().addr().to_string();
        Ok(RedisInspection { address, connection: connect(master, limit).await? })
    }

    /// The addresses of the servers that `redis.url` names: the server of sales, sentinels, or nodes of a cluster.
    pub fn named(&self) -> Vec<String> {
        self.server.named().iter().map(|client| client.get_connection_info().addr().to_string()).collect()
    }

    /// Whether one of these servers answers, within `limit`.
    pub async fn ask_named(&self, index: usize, limit: Duration) -> Result<(), GateError> {
        Ok(self.server.ask_named(index, Timeouts { connect: limit, response: limit }).await?)
    }

    /// The answer to INFO of one of the servers of `redis.lock_urls`.
    pub async fn lock_server_info(&self, index: usize, limit: Duration) -> Result<ServerInfo, GateError> {
        let client = self.lock_clients.get(index).ok_or(GateError::Malformed("redis.lock_urls"))?;
        info(&mut connect(client, limit).await?).await
    }

    /// The ways to the server of sales or its sentinels, and to those of locks.
    pub fn routes(&self) -> (Vec<Route>, Vec<Route>) {
        (self.server.named().iter().map(route).collect(), self.lock_clients.iter().map(route).collect())
    }
}

fn route(client: &redis::Client) -> Route {
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, _) => Route { host: Some(host.clone()), protection: Protection::Nothing },
        ConnectionAddr::TcpTls { host, insecure, .. } => {
            let protection = if *insecure { Protection::AnyCertificate } else { Protection::CheckedCertificate };
            Route { host: Some(host.clone()), protection }
        }
        // A socket of this machine.
        _ => Route { host: None, protection: Protection::Nothing },
    }
}

async fn connect(client: &redis::Client, limit: Duration) -> Result<MultiplexedConnection, GateError> {
    Ok(connected_once(client, Timeouts { connect: limit, response: limit }).await?)
}

async fn info(connection: &mut MultiplexedConnection) -> Result<ServerInfo, GateError> {
    Ok(ServerInfo::from(cmd("INFO").query_async::<String>(connection).await?))
}

impl RedisInspection {
    pub async fn info(&self) -> Result<ServerInfo, GateError> {
        info(&mut self.connection.clone()).await
    }

    pub async fn setting(&self, name: &str) -> Result<String, GateError> {
        let mut ask = cmd("CONFIG");
        let mut found: HashMap<String, String> =
            ask.arg("GET").arg(name).query_async(&mut self.connection.clone()).await?;
        found.remove(name).ok_or(GateError::Malformed("CONFIG GET"))
    }

    /// The ids that a script sees. The inner error is the server's: it ran no script, or the script failed.
    pub async fn seen_by_script(&self) -> Result<Result<SeenByScript, String>, GateError> {
        let call = scripts::READ_SERVER.prepare_invoke();
        let reply: Result<(String, String), _> = call.invoke_async(&mut self.connection.clone()).await;
        match reply.map_err(GateError::from) {
            Ok((server, replication_id)) => {
                let run_id = server.split_once('|').map(|(run_id, _)| run_id.to_owned());
                let replication_id = Some(replication_id).filter(|id| !id.is_empty());
                Ok(Ok(SeenByScript { run_id, replication_id }))
            }
            Err(error) if error.is_outage() => Err(error),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    pub async fn clock(&self) -> Result<ClockReading, GateError> {
        let asked_at = Instant::now();
        let (seconds, micros): (i64, i64) = cmd("TIME").query_async(&mut self.connection.clone()).await?;
        Ok(ClockReading { ms: seconds * 1000 + micros / 1000, asked_at, answered_at: Instant::now() })
    }
}
