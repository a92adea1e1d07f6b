//! Redis: the gate in front of the sale. Fast, not trusted. The only room that names redis.

pub mod document_cache;
pub mod holds;
pub mod id_filter;
pub mod keys;
pub mod limiter;
pub mod lock;
mod policy_counts;
mod quorum;
pub mod refill;
pub mod reserve_batcher;
mod reserve_reply;
mod scripts;
mod sold_out_cache;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{ErrorKind, IntoConnectionInfo, ServerErrorKind};
use tokio::sync::Notify;

use crate::config;
use crate::domain::admission::{Limits, Window};
use keys::Keys;
use quorum::Quorum;
use scripts::Scripts;

/// What can go wrong at the gate.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The server could not be asked, or did not answer in time: whether the command was carried out is unknown.
    #[error("redis: {0}")]
    Unreachable(#[from] redis::RedisError),
    /// This server may have forgotten something, or is being refilled: nothing was changed.
    #[error("redis is not serving this sale")]
    NotServing,
    /// A reply that no script of ours gives.
    #[error("redis: unexpected reply to {0}")]
    Malformed(&'static str),
    /// The call for many failed, for the reason that the log has.
    #[error("redis failed: whether anything was done is unknown")]
    Unknown,
    /// More callers than the gate's queue holds.
    #[error("the gate's queue is full")]
    Overloaded,
    /// Permits that no limiter can grant, or one limiter twice in a call: nothing was looked at.
    #[error("these permits cannot be asked for")]
    Impossible,
}

/// Whether the script is missing from the server's cache.
fn is_no_script(error: &redis::RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// A handle on the gate; clones share one connection.
#[derive(Clone)]
pub struct Gate {
    client: redis::Client,
    connection: ConnectionManager,
    timeouts: Timeouts,
    keys: Keys,
    scripts: Arc<Scripts>,
    limits: Arc<ArcSwap<Limits>>,
    locks: Quorum,
    terms: Terms,
    doubt: Arc<Notify>,
}

#[derive(Clone, Copy)]
struct Timeouts {
    connect: Duration,
    response: Duration,
}

/// What every call of `reserve` is made under.
#[derive(Clone, Copy)]
struct Terms {
    sold_out_ms: u64,
    batch_max: usize,
    queue_max: usize,
}

impl Gate {
    /// Prepares a handle; the connection is made, and made again, when it is needed.
    pub fn new(redis: &config::Redis, purchase: &config::Purchase) -> Result<Self, GateError> {
        let client = |url: &str| client(url, Duration::from_millis(redis.response_timeout_ms));
        let timeouts = Timeouts {
            connect: Duration::from_millis(redis.connect_timeout_ms),
            response: Duration::from_millis(redis.response_timeout_ms),
        };
        let lock_servers: Result<Vec<_>, GateError> =
            redis.lock_urls.iter().map(|url| reconnecting(&client(url)?, timeouts)).collect();
        let (lock_servers, client) = (lock_servers?, client(&redis.url)?);
        let connection = reconnecting(&client, timeouts)?;
        let window = |max: i64, window_ms: u64| Window { max, window_ms: window_ms.cast_signed() };
        let limits = Limits {
            buyer: window(purchase.buyer_limit, purchase.buyer_window_ms),
            address: window(purchase.address_limit, purchase.address_window_ms),
            sale: window(purchase.sale_limit, purchase.sale_window_ms),
        };
        let limits = Arc::new(ArcSwap::from_pointee(limits));
        let terms = Terms {
            sold_out_ms: purchase.sold_out_memory_ms,
            batch_max: purchase.batch_max,
            queue_max: purchase.queue_max,
        };
        let (keys, scripts) = (Keys::new(&redis.prefix), Arc::new(Scripts::new()));
        let lock_servers = if lock_servers.is_empty() { vec![connection.clone()] } else { lock_servers };
        let locks = Quorum::new(lock_servers, Arc::clone(&scripts), timeouts.response);
        Ok(Self { client, connection, timeouts, keys, scripts, limits, locks, terms, doubt: Arc::default() })
    }

    /// The limits that purchases are made under.
    pub fn limits(&self) -> Limits {
        **self.limits.load()
    }

    /// Makes purchases under other limits from now on; what was counted goes on counting.
    pub fn set_limits(&self, limits: Limits) {
        self.limits.store(Arc::new(limits));
    }

    /// How long "sold out" may be remembered.
    pub fn sold_out_memory(&self) -> Duration {
        Duration::from_millis(self.terms.sold_out_ms)
    }

    /// Resolves when a call has met a server that may have forgotten something.
    pub async fn doubted(&self) {
        self.doubt.notified().await;
    }

    /// Whether the server answers.
    pub async fn ping(&self) -> Result<(), GateError> {
        Ok(redis::cmd("PING").query_async::<()>(&mut self.connection.clone()).await?)
    }

    /// A connection of one's own that reconnects by itself.
    fn own_connection(&self) -> Result<ConnectionManager, GateError> {
        reconnecting(&self.client, self.timeouts)
    }
}

/// Times the way to a script and back.
async fn timed<T>(script: &'static str, call: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let reply = call.await;
    metrics::histogram!("seckill_script_seconds", "script" => script).record(began.elapsed());
    reply
}

fn client(url: &str, response_timeout: Duration) -> Result<redis::Client, GateError> {
    // A server that vanished without a word must not keep its connection: packets that nobody acknowledges end it.
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true).set_user_timeout(response_timeout * 4);
    Ok(redis::Client::open(url.into_connection_info()?.set_tcp_settings(tcp))?)
}

fn reconnecting(client: &redis::Client, timeouts: Timeouts) -> Result<ConnectionManager, GateError> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(timeouts.connect))
        .set_response_timeout(Some(timeouts.response))
        // A purchase cannot wait for a second attempt: it fails, and the next one tries afresh.
        .set_number_of_retries(1)
        .set_max_delay(Duration::from_millis(100));
    Ok(ConnectionManager::new_lazy_with_config(client.clone(), config)?)
}
