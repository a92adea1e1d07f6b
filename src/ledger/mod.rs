//! PostgreSQL: what is committed here is true. The only room that names sqlx.
//!
//! Plans must not depend on the age of PostgreSQL's statistics:
//!
//! - A statement that finds a row by its key compares the status as `status || '' = …`. With `status = …`, PostgreSQL may choose a partial
//!   index of the backlog. It does so when the statistics show an empty backlog, and then reads the whole backlog.
//! - `OFFSET 0` in an EXISTS prevents a join, which would read the whole backlog for the same reason.
//! - `ORDER BY … LIMIT 1` asks whether a backlog is empty. An EXISTS would scan the table when the statistics show a large backlog.
//!
//! `tests/api/statement_plans.rs` finds most statements that break these rules.

pub mod accounts;
pub mod audit_log;
mod error;
pub mod fences;
pub mod flow;
pub mod inspect;
mod migrate;
pub mod money;
pub mod notices;
pub mod orders;
pub mod outbox;
pub mod outflow;
pub mod overview;
mod primary;
pub mod processes;
pub mod sales;
mod session;
pub mod sessions;

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection, Executor, PgConnection, PgPool, Postgres, Row, Transaction};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::config::{self, servers, tls};
pub use error::LedgerError;
use primary::Primary;

/// How long the server may take to answer the heartbeat, or to show that a returned connection still works.
const PING_MAX: Duration = Duration::from_secs(2);
/// How long after an interrupted beginning each connection that comes back is asked whether a transaction is open. The one that matters
/// comes back at once.
const DOUBTED_FOR: Duration = Duration::from_secs(600);
/// A statement that may take long takes less.
const ANSWERED_MAX: Duration = Duration::from_secs(900);
/// Pings in a row without an answer, after which whatever waits for the server is given up.
const PINGS_LOST: u32 = 3;

/// A handle on the ledger; clones share its pools.
#[derive(Debug, Clone)]
pub struct Ledger {
    pool: PgPool,
    /// Connections that hardly any read can take: for the commits of purchases, the tickets of repeated ones, the heartbeat, the ping, and
    /// notices.
    reserved: PgPool,
    timeout: Duration,
    /// Whether there is no connection without TLS.
    encrypted: bool,
    /// Changes when the server has not answered for seconds.
    outages: watch::Sender<()>,
    /// When a transaction's beginning was interrupted last.
    interrupted: Arc<Mutex<Option<Instant>>>,
    /// The receivers that this process has reported as away.
    away: Arc<Mutex<HashSet<String>>>,
    /// Where the address names several servers: which of them is used, and the task that follows the primary.
    primary: Option<(Arc<Primary>, Arc<AbortOnDropHandle<()>>)>,
}

impl Ledger {
    /// Prepares the pools. Connections are opened when they are needed. `committers` is how many commits of purchases may be
    /// in progress at the same time.
    pub fn new(config: &config::Database, committers: usize) -> Result<Self, LedgerError> {
        let options = connect_options(config)?;
        let encrypted = options.iter().any(is_encrypted);
        let first = options[0].clone();
        let primary = servers::wants_primary(&config.url).then(|| Arc::new(Primary::new(options)));
        let interrupted = Arc::new(Mutex::new(None));
        let pool = |connections: u32, reset: Option<&'static str>| {
            let pool = PgPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(Duration::from_millis(config.acquire_timeout_ms));
            let pool = match &primary {
                Some(primary) => primary.admit_only_primary(pool),
                None => pool.after_connect(|connection, _| Box::pin(session::begin(connection))),
            };
            let (primary, interrupted) = (primary.clone(), Arc::clone(&interrupted));
            // sqlx tests a connection that comes back, for as long as it takes. A server that has vanished would keep the
            // connection's place in the pool until the kernel gives up, which takes a quarter of an hour.
            pool.after_release(move |connection, released| {
                let stale = primary.as_ref().is_some_and(|primary| !primary.is_fresh(released.age));
                let doubted = interrupted.lock().is_some_and(|at: Instant| at.elapsed() < DOUBTED_FOR);
                Box::pin(async move {
                    let works = async {
                        let is_free = !doubted || is_outside_transaction(connection).await?;
                        match reset {
                            Some(statement) => _ = connection.execute(statement).await?,
                            None if !doubted => connection.ping().await?,
                            None => {}
                        }
                        Ok(is_free && !stale)
                    };
                    tokio::time::timeout(PING_MAX, works).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
                })
            })
            .connect_lazy_with(first.clone())
        };
        // Longer than the server's own limits: after this time there is no server.
        let timeout = Duration::from_millis(config.statement_timeout_ms + config.acquire_timeout_ms);
        let reserved = u32::try_from(committers).unwrap_or(u32::MAX).saturating_add(4);
        // Commits of purchases wait less for a lock than others do.
        let (pool, reserved) = (pool(config.max_connections, None), pool(reserved, Some("RESET lock_timeout")));
        let outages = watch::Sender::new(());
        let primary = primary.map(|primary| {
            let following = Arc::clone(&primary).follow(vec![pool.clone(), reserved.clone()], outages.clone());
            (primary, Arc::new(following))
        });
        Ok(Self { pool, reserved, timeout, encrypted, outages, interrupted, away: Arc::default(), primary })
    }

    /// Waits until it is known which of several servers is the primary, if any is.
    pub async fn found(&self) {
        if let Some((primary, _)) = &self.primary {
            primary.looked_at().await;
        }
    }

    /// A handle whose reads use the connections that no other read can take. They suffice for one at a time.
    #[must_use]
    pub fn with_reserved(&self) -> Self {
        Self { pool: self.reserved.clone(), ..self.clone() }
    }

    /// A number that rises when another server becomes the primary: a connection from before is not to be used again.
    fn primary_changes(&self) -> u64 {
        self.primary.as_ref().map_or(0, |(primary, _)| primary.changes())
    }

    /// A pool for the connection of one listener. A listener gives its connection back without a time-out, so that one to a server that
    /// has vanished would keep its place in another pool, and that pool from being closed, for a quarter of an hour.
    fn pool_of_listener(&self) -> PgPool {
        let options = PgConnectOptions::clone(&self.reserved.connect_options());
        self.reserved.options().clone().max_connections(1).connect_lazy_with(options)
    }

    /// A connection that belongs to no pool.
    async fn connect(&self, options: &PgConnectOptions) -> Result<PgConnection, LedgerError> {
        let mut connection = PgConnection::connect_with(options).await?;
        session::begin(&mut connection).await?;
        if let Some((primary, _)) = &self.primary {
            primary.admit(&mut connection).await?;
        }
        Ok(connection)
    }

    /// Checks that the server does not refuse TLS, where the address asks for it. A server that cannot be reached now is not
    /// checked.
    ///
    /// # Errors
    /// The server's certificate is not trusted, or the server does not speak TLS.
    pub async fn check_tls(&self) -> Result<(), tls::TlsRefused> {
        let refused = match &self.primary {
            _ if !self.encrypted => None,
            None => self.reserved.acquire().await.err().and_then(handshake_problem),
            Some((primary, _)) => primary.connect_to_each().await.into_iter().find_map(handshake_problem),
        };
        let (address, setting) = ("database.url", "database.ca_file");
        refused.map_or(Ok(()), |problem| Err(tls::TlsRefused { server: "PostgreSQL", problem, address, setting }))
    }

    /// Checks that the server is PostgreSQL itself. One that cannot be reached now is not checked.
    ///
    /// # Errors
    /// `Pooled` where a pooler stands before it.
    pub async fn check_session(&self) -> Result<(), LedgerError> {
        match Self::within(self.timeout, self.connect(&self.reserved.connect_options())).await {
            Err(error @ LedgerError::Pooled(_)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits for a step no longer than a living server can take. Without this, a connection to a server that has vanished
    /// would be waited on for ever.
    ///
    /// # Errors
    /// `Unreachable` after the time-out, else the step's own.
    pub async fn in_time<T>(&self, step: impl Future<Output = Result<T, LedgerError>>) -> Result<T, LedgerError> {
        Self::within(self.timeout, step).await
    }

    /// Waits for a step that may take long, for as long as the server answers pings.
    ///
    /// # Errors
    /// `Unreachable` when the server does not, else the step's own.
    pub async fn while_it_answers<T>(
        &self,
        step: impl Future<Output = Result<T, LedgerError>>,
    ) -> Result<T, LedgerError> {
        let mut outages = self.outages();
        tokio::select! {
            done = Self::within(ANSWERED_MAX, step) => done,
            _ = outages.changed() => Err(LedgerError::Unreachable(sqlx::Error::PoolTimedOut)),
        }
    }

    /// Waits for a step no longer than `limit`.
    ///
    /// # Errors
    /// `Unreachable` after the limit, else the step's own.
    pub async fn within<T>(
        limit: Duration,
        step: impl Future<Output = Result<T, LedgerError>>,
    ) -> Result<T, LedgerError> {
        tokio::time::timeout(limit, step).await.unwrap_or(Err(LedgerError::Unreachable(sqlx::Error::PoolTimedOut)))
    }

    /// Pings the server every second, until cancelled. When it has not answered several times, whatever waits for it is given
    /// up: a connection to a server that vanished without a word would be waited on for minutes.
    pub async fn watch(self, stop: CancellationToken) {
        let mut lost = 0;
        while stop.run_until_cancelled(tokio::time::sleep(Duration::from_secs(1))).await.is_some() {
            let ping = async { Ok(sqlx::query("SELECT 1").execute(&self.reserved).await?) };
            match Self::within(PING_MAX, ping).await {
                Ok(_) => lost = 0,
                Err(error) => {
                    lost += 1;
                    if lost >= PINGS_LOST {
                        tracing::warn!(%error, "PostgreSQL does not answer; what waits for it is given up");
                        self.outages.send_replace(());
                    }
                }
            }
        }
    }

    /// Changes each time that what waits for the server is to be given up.
    pub fn outages(&self) -> watch::Receiver<()> {
        self.outages.subscribe()
    }

    /// Begins a transaction. Nothing else in this room may: sqlx 0.9.0 returns a connection whose `BEGIN` was interrupted to the pool with
    /// the transaction open (its issue 4393, mended after that release), and the next user's statements would not be committed.
    async fn begin(&self) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        self.begin_in(&self.pool).await
    }

    /// As [`begin`](Self::begin), in one of the two pools.
    async fn begin_in(&self, pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        let mut begin = pin!(pool.begin());
        // Declared last and so dropped first: the interruption is noted before the connection goes back.
        let interruption = Interruption { noted_in: Some(&self.interrupted) };
        let begun = begin.as_mut().await;
        if begun.is_ok() {
            interruption.did_not_happen();
        }
        begun
    }

    /// Begins to read for people: one snapshot, in which nothing can be changed. A statement that takes more than 3 s is cancelled,
    /// before its caller gives up. Each is planned for its own values, because a plan for all values uses no partial index.
    async fn begin_reading(&self) -> Result<Transaction<'static, Postgres>, LedgerError> {
        let mut tx = self.begin().await?;
        (&mut *tx)
            .execute(
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = '3s';
                 SET LOCAL plan_cache_mode = force_custom_plan",
            )
            .await?;
        Ok(tx)
    }

    /// PostgreSQL's clock, in milliseconds since the epoch.
    pub async fn now_ms(&self) -> Result<i64, LedgerError> {
        let now = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(&self.pool).await?;
        Ok(now.timestamp_millis())
    }

    /// Closes the pool, and waits for the connections in use.
    pub async fn close(&self) {
        tokio::join!(self.pool.close(), self.reserved.close());
    }
}

/// How to connect to each server that the address names.
fn connect_options(config: &config::Database) -> Result<Vec<PgConnectOptions>, LedgerError> {
    let server = |address: String| {
        let mut options: PgConnectOptions = address.parse().map_err(LedgerError::Failed)?;
        if let Some(file) = &config.ca_file {
            options = options.ssl_root_cert_from_pem(file.pem());
        }
        let options = session::set(options.application_name("seckill"), config.statement_timeout_ms);
        Ok(options.log_slow_statements(tracing::log::LevelFilter::Warn, Duration::from_secs(1)))
    };
    servers::each_postgres(&config.url).into_iter().map(server).collect()
}

/// Notes when it is dropped before [`did_not_happen`](Self::did_not_happen) is called.
struct Interruption<'a> {
    noted_in: Option<&'a Mutex<Option<Instant>>>,
}

impl Interruption<'_> {
    fn did_not_happen(mut self) {
        self.noted_in = None;
    }
}

impl Drop for Interruption<'_> {
    fn drop(&mut self) {
        if let Some(noted) = self.noted_in {
            *noted.lock() = Some(Instant::now());
        }
    }
}

/// Whether no transaction is open on a connection that comes back to its pool: in an open one, `now()` is the time of its `BEGIN`.
async fn is_outside_transaction(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::raw_sql("SELECT now() = statement_timestamp()").fetch_one(connection).await?.try_get(0)
}

/// Why TLS failed, if this is the error of a handshake.
fn handshake_problem(error: sqlx::Error) -> Option<String> {
    match error {
        sqlx::Error::Io(error) => tls::handshake_problem(&error),
        sqlx::Error::Tls(error) => Some(error.to_string()),
        _ => None,
    }
}

/// The address with the server named first that is the primary now, so that nobody waits for another one.
pub async fn with_primary_first(config: &config::Database) -> String {
    match connect_options(config) {
        Ok(servers) if servers.len() > 1 => servers::with_first(&config.url, primary::find(&servers).await),
        _ => config.url.clone(),
    }
}

/// Whether there is no connection to this server without TLS.
fn is_encrypted(server: &PgConnectOptions) -> bool {
    matches!(server.get_ssl_mode(), PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull)
}

/// A duration in microseconds, for intervals in statements.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
