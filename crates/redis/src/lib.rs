//! Redis decides on purchases first. It is fast, and PostgreSQL checks its answers. Only this crate names redis.

pub mod challenges;
pub mod document_cache;
pub mod holds;
pub mod inspect;
mod keys;
pub mod limiter;
pub mod loans;
pub mod lock;
pub mod refill;
mod reply_codes;
pub mod reserve;
pub mod sale_state;
mod scripts;
pub mod server_runs;
mod servers;
pub mod thread_gate;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{ErrorKind, ServerErrorKind};
use tokio::sync::Notify;

use keys::Keys;
use lock::quorum::Quorum;
use reply_codes::SaleCode;
use seckill_config::{self as config, tls};
use seckill_domain::admission::{Limits, Window};
use seckill_domain::ids::SaleId;
use seckill_domain::memory_level::MemoryLevel;
use seckill_domain::shards::SaleShards;
use servers::{Connection, Connections, Server, Timeouts, client, connected_once, is_tls, reconnecting};

/// How long a shard stays empty for a borrower where `purchase.sold_out_memory_ms` is 0.
const EMPTY_MS: u64 = 500;

#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The server could not be reached, or did not answer in time. It may have executed the command.
    #[error("redis: {0}")]
    Unreachable(#[from] redis::RedisError),
    /// This server does not know the sale, or the sale is being refilled. Nothing was changed.
    #[error("redis is not serving this sale")]
    NotServing,
    /// The server deletes keys when its memory is full: it would lose tickets and stock.
    #[error("redis must have maxmemory-policy noeviction, and has {0}: set it, or use another server (redis.url)")]
    Evicts(String),
    #[error("redis: unexpected reply to {0}")]
    Malformed(&'static str),
    /// The call for a whole batch failed; the log has the reason.
    #[error("redis failed: whether anything was changed is unknown")]
    Unknown,
    #[error("the queue for redis is full")]
    Overloaded,
    /// Permits below 1 or above the limit, a lease without an id, or one limiter twice in a call. Nothing was changed.
    #[error("invalid request for permits: ask each limiter once, for 1 permit up to its limit")]
    InvalidRequest,
    /// The keys of an application's limiters take all their memory in Redis. Nothing was changed.
    #[error("the limiters of this application take all the memory in Redis that they may take (flow.app_keys_mb)")]
    TooManyKeys {
        retry_ms: u64,
        /// The place in the call of the limiter without room for its key.
        take: usize,
    },
}

impl GateError {
    /// Whether the server could not be reached, or did not answer in time.
    pub fn is_unanswered(&self) -> bool {
        match self {
            Self::Unreachable(error) => matches!(error.kind(), ErrorKind::Io | ErrorKind::AuthenticationFailed),
            other => matches!(other, Self::Unknown | Self::Overloaded),
        }
    }

    /// Whether the server could not be reached or cannot work: any other request would have failed too.
    pub fn is_outage(&self) -> bool {
        use ServerErrorKind::{
            Ask, BusyLoading, ClusterDown, ExecAbort, MasterDown, Moved, NoScript, ReadOnly, TryAgain,
        };
        let Self::Unreachable(error) = self else { return matches!(self, Self::Unknown | Self::Overloaded) };
        match error.kind() {
            ErrorKind::Server(kind) => matches!(
                kind,
                BusyLoading | ClusterDown | MasterDown | ReadOnly
                    // Slots of a cluster move, or have just moved.
                    | Ask | ExecAbort | Moved | NoScript | TryAgain
            ),
            // Full memory, a disk that fails, a script that does not end, too few replicas.
            ErrorKind::Extension => matches!(error.code(), Some("OOM" | "MISCONF" | "BUSY" | "NOREPLICAS")),
            kind => kind != ErrorKind::UnexpectedReturnType,
        }
    }
}

fn is_no_script(error: &redis::RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Sales that a server does not serve although it was asked: it may have lost its memory.
#[derive(Default)]
pub struct RefillWanted {
    sales: Mutex<HashSet<SaleId>>,
    added: Notify,
}

impl RefillWanted {
    pub fn add(&self, sale: SaleId) {
        self.sales.lock().insert(sale);
        self.added.notify_one();
    }

    /// Waits for a sale, and takes all.
    pub async fn take(&self) -> HashSet<SaleId> {
        loop {
            let sales = std::mem::take(&mut *self.sales.lock());
            if !sales.is_empty() {
                return sales;
            }
            self.added.notified().await;
        }
    }
}

/// A handle on Redis; clones share their connections.
#[derive(Clone)]
pub struct Gate {
    server: Server,
    lock_clients: Arc<[redis::Client]>,
    connections: Connections,
    timeouts: Timeouts,
    keys: Keys,
    limits: Arc<ArcSwap<Limits>>,
    locks: Quorum,
    sold_out_ms: u64,
    batch_max: usize,
    queue_max: usize,
    /// How many holds of a sale one buyer may let lapse, and how long the buyer then waits after the last.
    pub lapses: Window,
    pub refill_wanted: Arc<RefillWanted>,
}

impl Gate {
    /// A handle connects, and reconnects, when a call needs the connection.
    ///
    /// # Errors
    /// An address of a server cannot be parsed.
    pub fn new(redis: &config::Redis, purchase: &config::Purchase) -> Result<Self, GateError> {
        let timeouts = Timeouts {
            connect: Duration::from_millis(redis.connect_timeout_ms),
            response: Duration::from_millis(redis.response_timeout_ms),
        };
        let lock_clients = redis.lock_urls.iter().map(|url| client(redis, url, timeouts.response));
        let lock_clients = lock_clients.collect::<Result<Arc<[_]>, _>>()?;
        let server = Server::new(redis, timeouts)?;
        let connections = server.connections(timeouts)?;
        let mut lock_servers = Vec::new();
        for client in lock_clients.iter() {
            lock_servers.push(Connections::One(Connection::To(reconnecting(client, timeouts)?)));
        }
        if lock_servers.is_empty() {
            lock_servers.push(connections.clone());
        }
        let window = |max: i64, window_ms: u64| Window { max, window_ms: window_ms.cast_signed() };
        let limits = Limits {
            buyer: window(purchase.buyer_limit, purchase.buyer_window_ms),
            address: window(purchase.address_limit, purchase.address_window_ms),
            sale: window(purchase.sale_limit, purchase.sale_window_ms),
        };
        Ok(Self {
            server,
            lock_clients,
            connections,
            timeouts,
            keys: Keys::new(&redis.prefix),
            limits: Arc::new(ArcSwap::from_pointee(limits)),
            locks: Quorum { servers: lock_servers.into(), timeout: timeouts.response },
            sold_out_ms: purchase.sold_out_memory_ms,
            batch_max: purchase.batch_max,
            queue_max: purchase.queue_max,
            lapses: window(purchase.lapses_max, purchase.lapse_wait_ms),
            refill_wanted: Arc::default(),
        })
    }

    /// Whether one master of a cluster has failed, and others may work.
    pub fn is_of_one_master(&self, error: &GateError) -> bool {
        matches!(self.server, Server::Cluster(_)) && error.is_outage()
    }

    pub fn limits(&self) -> Limits {
        **self.limits.load()
    }

    /// Sets the limits of purchases, and keeps the counts of the current windows.
    pub fn set_limits(&self, limits: Limits) {
        self.limits.store(Arc::new(limits));
    }

    /// How long an instance may remember that a sale is sold out, or that a shard of it is empty.
    pub fn sold_out_memory(&self, of: SaleShards) -> Duration {
        Duration::from_millis(if of.count.is_one() { self.sold_out_ms } else { self.known_empty_ms() })
    }

    /// How long a shard without units stays empty for borrowers (protocol, rule 15).
    fn known_empty_ms(&self) -> u64 {
        if self.sold_out_ms == 0 { EMPTY_MS } else { self.sold_out_ms }
    }

    /// Reads the code of a script that does not serve a sale, and asks for a refill: the server may have lost its memory.
    fn not_serving(&self, sale: SaleId, code: i64, script: &'static str) -> Result<(), GateError> {
        SaleCode::from_repr(code).ok_or(GateError::Malformed(script))?;
        self.refill_wanted.add(sale);
        Ok(())
    }

    /// How much memory the fullest server of sales has left.
    pub async fn memory_level(&self) -> Result<MemoryLevel, GateError> {
        Ok(self.connections.memory_level().await?)
    }

    /// Checks that no server refuses TLS. A server that cannot be reached now is not checked.
    ///
    /// # Errors
    /// The certificate of a server is not trusted, or the server does not speak TLS.
    pub async fn check_tls(&self) -> Result<(), tls::TlsRefused> {
        let timeouts = Timeouts { connect: self.timeouts.connect * 10, response: self.timeouts.response * 10 };
        let masters = self.server.masters().await.map_or_else(|_| Vec::new(), |masters| masters.clients());
        let named = self.server.named().iter().chain(self.lock_clients.iter());
        for client in named.chain(&masters).filter(|client| is_tls(client)) {
            let refused = connected_once(client, timeouts).await.err();
            if let Some(problem) = refused.as_ref().and_then(|error| tls::handshake_problem_below(error)) {
                return Err(tls::TlsRefused {
                    server: "Redis",
                    problem,
                    address: "redis.url",
                    setting: "redis.ca_file",
                });
            }
        }
        Ok(())
    }
}

async fn timed<T>(script: &'static str, call: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let reply = call.await;
    metrics::histogram!("seckill_script_seconds", "script" => script).record(began.elapsed());
    reply
}
