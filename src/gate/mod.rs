//! Redis, the gate in front of a sale. It is fast, and PostgreSQL checks what it says. The only room that names redis.

pub mod challenges;
pub mod document_cache;
pub mod holds;
pub mod inspect;
mod keys;
pub mod limiter;
pub mod loans;
pub mod lock;
pub mod refill;
mod refill_wanted;
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
use redis::{ErrorKind, ServerErrorKind};

use crate::config::{self, tls};
use crate::domain::admission::{Limits, Window};
use crate::domain::ids::SaleId;
use crate::domain::memory_level::MemoryLevel;
use crate::domain::shards::SaleShards;
use keys::Keys;
use lock::quorum::Quorum;
use refill_wanted::RefillWanted;
use scripts::Scripts;
use servers::{Connection, Connections, Server, Timeouts, client, is_tls, reconnecting};

/// For so long a shard stays empty for a borrower, where "sold out" is not remembered (`purchase.sold_out_memory_ms`).
const EMPTY_MS: u64 = 500;

/// Why a call to Redis failed.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The server could not be reached, or did not answer in time. Whether the command was executed is unknown.
    #[error("redis: {0}")]
    Unreachable(#[from] redis::RedisError),
    /// This server does not know the sale, or the sale is being refilled. Nothing was changed.
    #[error("redis is not serving this sale")]
    NotServing,
    /// The server deletes keys when its memory is full, so that it would lose tickets and stock.
    #[error("redis must have maxmemory-policy noeviction, and has {0}: set it, or use another server (redis.url)")]
    Evicts(String),
    /// The reply has not the form that the script or command defines.
    #[error("redis: unexpected reply to {0}")]
    Malformed(&'static str),
    /// The call for a whole batch failed; the log has the reason.
    #[error("redis failed: whether anything was changed is unknown")]
    Unknown,
    /// The queue of the batcher is full.
    #[error("the queue for redis is full")]
    Overloaded,
    /// Permits below 1 or above the limit, a lease without an id, or one limiter twice in a call. Nothing was changed.
    #[error("invalid request for permits: ask each limiter once, for 1 permit up to its limit")]
    InvalidRequest,
    /// The keys of an application's limiters take all the memory that they may take. Nothing was changed.
    #[error("the limiters of this application take all the memory in Redis that they may take (flow.app_keys_mb)")]
    TooManyKeys {
        retry_ms: u64,
        /// The place in the call of the limiter whose key has no room.
        take: usize,
    },
}

impl GateError {
    /// Whether the server could not be reached, or did not answer in time.
    pub fn is_unanswered(&self) -> bool {
        match self {
            Self::Unreachable(error) => matches!(error.kind(), ErrorKind::Io | ErrorKind::AuthenticationFailed),
            Self::Unknown | Self::Overloaded => true,
            Self::NotServing
            | Self::Evicts(_)
            | Self::Malformed(_)
            | Self::InvalidRequest
            | Self::TooManyKeys { .. } => false,
        }
    }

    /// Whether the server could not be reached or cannot work, so that any other request would have failed too.
    pub fn is_outage(&self) -> bool {
        use ServerErrorKind::{
            Ask, BusyLoading, ClusterDown, ExecAbort, MasterDown, Moved, NoScript, ReadOnly, TryAgain,
        };
        match self {
            Self::Unreachable(error) => match error.kind() {
                ErrorKind::Server(kind) => matches!(
                    kind,
                    BusyLoading | ClusterDown | MasterDown | ReadOnly
                    // Slots of a cluster move, or have just moved.
                    | Ask | ExecAbort | Moved | NoScript | TryAgain
                ),
                // Full memory, a disk that fails, a script that does not end, too few replicas.
                ErrorKind::Extension => {
                    matches!(error.code(), Some("OOM" | "MISCONF" | "BUSY" | "NOREPLICAS"))
                }
                ErrorKind::UnexpectedReturnType => false,
                _ => true,
            },
            Self::Unknown | Self::Overloaded => true,
            Self::NotServing
            | Self::Evicts(_)
            | Self::Malformed(_)
            | Self::InvalidRequest
            | Self::TooManyKeys { .. } => false,
        }
    }
}

/// Why there is no TLS connection to a server that answers.
fn refused_tls(error: &redis::RedisError) -> Option<tls::TlsRefused> {
    let problem = tls::handshake_problem_below(error)?;
    let setting = "redis.ca_file";
    Some(tls::TlsRefused { server: "Redis", problem, address: "redis.url", setting })
}

/// Whether the script is missing from the server's cache.
fn is_no_script(error: &redis::RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// A handle on Redis; clones share their connections.
#[derive(Clone)]
pub struct Gate {
    server: Server,
    lock_clients: Arc<[redis::Client]>,
    connections: Connections,
    timeouts: Timeouts,
    keys: Keys,
    scripts: Arc<Scripts>,
    limits: Arc<ArcSwap<Limits>>,
    locks: Quorum,
    terms: Terms,
    refill_wanted: Arc<RefillWanted>,
}

/// The settings of every call of reserve.lua.
#[derive(Clone, Copy)]
struct Terms {
    sold_out_ms: u64,
    lapses: Window,
    batch_max: usize,
    queue_max: usize,
}

impl Gate {
    /// Prepares a handle. It connects, and reconnects, when a call needs the connection.
    ///
    /// # Errors
    ///
    /// An address of a server cannot be parsed.
    pub fn new(redis: &config::Redis, purchase: &config::Purchase) -> Result<Self, GateError> {
        let timeouts = Timeouts {
            connect: Duration::from_millis(redis.connect_timeout_ms),
            response: Duration::from_millis(redis.response_timeout_ms),
        };
        let lock_clients = redis.lock_urls.iter().map(|url| client(redis, url, timeouts.response));
        let lock_clients = lock_clients.collect::<Result<Arc<[_]>, _>>()?;
        let lock_servers = lock_clients.iter().map(|client| Ok(Connection::To(reconnecting(client, timeouts)?).into()));
        let (lock_servers, server) =
            (lock_servers.collect::<Result<Vec<Connections>, GateError>>()?, Server::new(redis, timeouts)?);
        let connections = server.connections(timeouts)?;
        let window = |max: i64, window_ms: u64| Window { max, window_ms: window_ms.cast_signed() };
        let limits = Limits {
            buyer: window(purchase.buyer_limit, purchase.buyer_window_ms),
            address: window(purchase.address_limit, purchase.address_window_ms),
            sale: window(purchase.sale_limit, purchase.sale_window_ms),
        };
        let limits = Arc::new(ArcSwap::from_pointee(limits));
        let terms = Terms {
            sold_out_ms: purchase.sold_out_memory_ms,
            lapses: window(purchase.lapses_max, purchase.lapse_wait_ms),
            batch_max: purchase.batch_max,
            queue_max: purchase.queue_max,
        };
        let (keys, scripts) = (Keys::new(&redis.prefix), Arc::new(Scripts::new()));
        let lock_servers = if lock_servers.is_empty() { vec![connections.clone()] } else { lock_servers };
        let locks = Quorum::new(lock_servers, Arc::clone(&scripts), timeouts.response);
        let refill_wanted = Arc::default();
        Ok(Self { server, lock_clients, connections, timeouts, keys, scripts, limits, locks, terms, refill_wanted })
    }

    /// Whether this is the trouble of one master, while others may be well: sales lie on several only in a cluster.
    pub fn is_of_one_master(&self, error: &GateError) -> bool {
        matches!(self.server, Server::Cluster(_)) && error.is_outage()
    }

    /// The present limits of purchases.
    pub fn limits(&self) -> Limits {
        **self.limits.load()
    }

    /// Sets the limits of purchases. The counts of the present windows are kept.
    pub fn set_limits(&self, limits: Limits) {
        self.limits.store(Arc::new(limits));
    }

    /// How many holds of a sale one buyer may let lapse, and how long one who has let as many lapse waits after the last.
    pub fn lapses(&self) -> Window {
        self.terms.lapses
    }

    /// How long an instance may remember that a sale is sold out, or that a shard of it is empty.
    pub fn sold_out_memory(&self, of: SaleShards) -> Duration {
        Duration::from_millis(if of.count.is_one() { self.terms.sold_out_ms } else { self.known_empty_ms() })
    }

    /// How long a shard that has no unit stays empty for those who borrow (protocol, rule 15).
    fn known_empty_ms(&self) -> u64 {
        if self.terms.sold_out_ms == 0 { EMPTY_MS } else { self.terms.sold_out_ms }
    }

    /// Has the supervisor look at a sale at once: this server may have lost it to another one.
    pub fn want_refill(&self, sale: SaleId) {
        self.refill_wanted.add(sale);
    }

    /// Waits until a call finds that the server does not serve a sale. Returns the sales that were found so since the last
    /// call of this function: the server may have lost its memory, and they may need a refill.
    pub async fn refill_wanted(&self) -> HashSet<SaleId> {
        self.refill_wanted.take().await
    }

    /// Checks that the server answers, or all masters of a cluster.
    /// How much memory the fullest server of sales has left.
    pub async fn memory_level(&self) -> Result<MemoryLevel, GateError> {
        Ok(self.connections.memory_level().await?)
    }

    pub async fn ping(&self) -> Result<(), GateError> {
        Ok(self.connections.ping().await?)
    }

    /// Checks that no server refuses TLS. A server that cannot be reached now is not checked.
    ///
    /// # Errors
    /// The certificate of a server is not trusted, or the server does not speak TLS.
    pub async fn check_tls(&self) -> Result<(), tls::TlsRefused> {
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeouts.connect * 10))
            .set_response_timeout(Some(self.timeouts.response * 10));
        let masters = self.server.masters().await.map_or_else(|_| Vec::new(), |masters| masters.clients());
        let named = self.server.named().iter().chain(self.lock_clients.iter());
        for client in named.chain(&masters).filter(|client| is_tls(client)) {
            let connected = client.get_multiplexed_async_connection_with_config(&config).await;
            if let Some(refused) = connected.err().as_ref().and_then(refused_tls) {
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Makes other connections, which reconnect by themselves.
    fn own_connections(&self) -> Result<Connections, GateError> {
        self.server.connections(self.timeouts)
    }
}

/// Measures how long the call of a script takes.
async fn timed<T>(script: &'static str, call: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let reply = call.await;
    metrics::histogram!("seckill_script_seconds", "script" => script).record(began.elapsed());
    reply
}
