//! PostgreSQL: the truth. A committed row is true, whatever Redis or RabbitMQ say. The only crate that names sqlx.
//!
//! Plans must not depend on the age of PostgreSQL's statistics:
//!
//! - A statement that finds a row by its key compares the status as `status || '' = …`. With `status = …`, PostgreSQL may choose a partial
//!   index of the backlog. It does so when the statistics show an empty backlog, and then reads the whole backlog.
//! - `OFFSET 0` in an EXISTS prevents a join, which would read the whole backlog for the same reason.
//! - `ORDER BY … LIMIT 1` asks whether a backlog is empty. An EXISTS would scan the table when the statistics show a large backlog.
//!
//! `tests/api/postgres/statement_plans.rs` finds most statements that break these rules.

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
mod receivers;
pub mod sales;
mod session;
pub mod sessions;

use std::collections::HashMap;
use std::error::Error;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::query::Query;
use sqlx::{ConnectOptions, Connection, Executor, PgConnection, PgPool, Postgres, Row, Transaction};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use error::LedgerError;
use primary::Primary;
use seckill_config::{self as config, servers, tls};
use seckill_domain::ids::SaleId;

/// Time limit for the heartbeat's answer, and for the test of a returned connection.
const PING_MAX: Duration = Duration::from_secs(2);
/// How long after an interrupted `BEGIN` every returned connection is tested for an open transaction.
const DOUBTED_FOR: Duration = Duration::from_secs(600);
const ANSWERED_MAX: Duration = Duration::from_secs(900);
/// After this many lost pings in a row, all waiting for the server is given up.
const PINGS_LOST: u32 = 3;

/// The ledger: a handle for each topic. Clones share its pools.
#[derive(Debug, Clone)]
pub struct Ledger {
    pub sales: Sales,
    pub orders: Orders,
    pub payments: Payments,
    pub outbox: Outbox,
    pub outflows: Outflows,
    pub policies: Policies,
    pub alarms: Alarms,
    pub receivers: Receivers,
    pub accounts: Accounts,
    database: Arc<Database>,
}

/// Sales, their terms and stock, products, epochs and waves.
#[derive(Debug, Clone)]
pub struct Sales(Arc<Database>);

/// Purchases and orders, from the commit to their end.
#[derive(Debug, Clone)]
pub struct Orders(Arc<Database>);

/// Payments, refunds, and the books.
#[derive(Debug, Clone)]
pub struct Payments(Arc<Database>);

/// The outbox: pending work, a row each.
#[derive(Debug, Clone)]
pub struct Outbox(Arc<Database>);

/// Requests that are sent at a constant rate.
#[derive(Debug, Clone)]
pub struct Outflows(Arc<Database>);

/// Applications, their policies, and the counts of their grants.
#[derive(Debug, Clone)]
pub struct Policies(Arc<Database>);

/// Open and cleared alarms.
#[derive(Debug, Clone)]
pub struct Alarms(Arc<Database>);

/// Other people's servers that our requests go to.
#[derive(Debug, Clone)]
pub struct Receivers(Arc<Database>);

/// People's accounts and sessions, and the audit log.
#[derive(Debug, Clone)]
pub struct Accounts(Arc<Database>);

/// The connections, and questions about the whole database.
#[derive(Debug, Clone)]
pub struct Database {
    pool: PgPool,
    /// Connections reserved for the commits of purchases, the tickets of repeats, the heartbeat, the ping and notices.
    reserved: PgPool,
    timeout: Duration,
    encrypted: bool,
    /// Changes when the server has not answered for seconds.
    outages: watch::Sender<()>,
    /// When a `BEGIN` was last interrupted.
    interrupted: Arc<Mutex<Option<Instant>>>,
    /// Receivers that this process knows to fail, with the number of failures that it has logged.
    away: Arc<Mutex<HashMap<String, i32>>>,
    /// If the address names several servers: the one in use, and the task that follows the primary.
    primary: Option<(Arc<Primary>, Arc<AbortOnDropHandle<()>>)>,
}

impl Deref for Ledger {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.database
    }
}

/// Through each handle, too, a step can be limited in time.
macro_rules! deref_to_database {
    ($($handle:ident),*) => {
        $(impl Deref for $handle {
            type Target = Database;

            fn deref(&self) -> &Database {
                &self.0
            }
        })*
    };
}
deref_to_database!(Sales, Orders, Payments, Outbox, Outflows, Policies, Alarms, Receivers, Accounts);

impl Ledger {
    /// Prepares the pools. Connections are opened on demand. `committers`: how many commits of purchases may run at once.
    pub fn new(config: &config::Database, committers: usize) -> Result<Self, LedgerError> {
        Ok(Self::of(Database::new(config, committers)?))
    }

    fn of(database: Database) -> Self {
        let database = Arc::new(database);
        let of = || Arc::clone(&database);
        Self {
            sales: Sales(of()),
            orders: Orders(of()),
            payments: Payments(of()),
            outbox: Outbox(of()),
            outflows: Outflows(of()),
            policies: Policies(of()),
            alarms: Alarms(of()),
            receivers: Receivers(of()),
            accounts: Accounts(of()),
            database,
        }
    }

    /// A handle with reads on the reserved connections. They suffice for one read at a time.
    #[must_use]
    pub fn with_reserved(&self) -> Self {
        Self::of(Database { pool: self.reserved.clone(), ..Database::clone(self) })
    }
}

impl Database {
    fn new(config: &config::Database, committers: usize) -> Result<Self, LedgerError> {
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
            // sqlx tests a returned connection without a time limit. If the server has vanished, the connection would keep its place in the
            // pool until the kernel gives up, after a quarter of an hour.
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
        // Longer than the server's own limits. After this time, the server must be away.
        let timeout = Duration::from_millis(config.statement_timeout_ms + config.acquire_timeout_ms);
        let reserved = u32::try_from(committers).unwrap_or(u32::MAX).saturating_add(4);
        // Commits of purchases wait for locks for a shorter time than others.
        let (pool, reserved) = (pool(config.max_connections, None), pool(reserved, Some("RESET lock_timeout")));
        let outages = watch::Sender::new(());
        let primary = primary.map(|primary| {
            let following = Arc::clone(&primary).follow(vec![pool.clone(), reserved.clone()], outages.clone());
            (primary, Arc::new(following))
        });
        Ok(Self { pool, reserved, timeout, encrypted, outages, interrupted, away: Arc::default(), primary })
    }

    /// Waits until the primary among several servers was searched for. There may be none.
    pub async fn found(&self) {
        if let Some((primary, _)) = &self.primary {
            primary.looked_at().await;
        }
    }

    /// A number that rises when another server becomes the primary. Connections from before must not be used again.
    fn primary_changes(&self) -> u64 {
        self.primary.as_ref().map_or(0, |(primary, _)| primary.changes())
    }

    /// A pool for one listener's connection. A listener returns its connection without a time-out. In another pool, a connection to a
    /// vanished server would keep its place, and would delay the pool's closing for a quarter of an hour.
    fn pool_of_listener(&self) -> PgPool {
        let options = PgConnectOptions::clone(&self.reserved.connect_options());
        self.reserved.options().clone().max_connections(1).connect_lazy_with(options)
    }

    async fn connect(&self, options: &PgConnectOptions) -> Result<PgConnection, LedgerError> {
        let mut connection = PgConnection::connect_with(options).await?;
        session::begin(&mut connection).await?;
        if let Some((primary, _)) = &self.primary {
            primary.admit(&mut connection).await?;
        }
        Ok(connection)
    }

    /// If the address asks for TLS: checks that the server speaks it, with a trusted certificate. Skips a server that is unreachable now.
    pub async fn check_tls(&self) -> Result<(), tls::TlsRefused> {
        let refused = match &self.primary {
            _ if !self.encrypted => None,
            None => self.reserved.acquire().await.err().and_then(handshake_problem),
            Some((primary, _)) => primary.connect_to_each().await.into_iter().find_map(handshake_problem),
        };
        let (address, setting) = ("database.url", "database.ca_file");
        refused.map_or(Ok(()), |problem| Err(tls::TlsRefused { server: "PostgreSQL", problem, address, setting }))
    }

    /// Fails with `Pooled` if a pooler stands before PostgreSQL. Skips a server that is unreachable now.
    pub async fn check_session(&self) -> Result<(), LedgerError> {
        match Self::within(self.timeout, self.connect(&self.reserved.connect_options())).await {
            Err(error @ LedgerError::Pooled(_)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Limits a step to the time that a live server needs at most. Without this, a connection to a vanished server would wait for ever.
    pub async fn in_time<T>(&self, step: impl Future<Output = Result<T, LedgerError>>) -> Result<T, LedgerError> {
        Self::within(self.timeout, step).await
    }

    /// Waits for a long step while the server answers pings.
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

    /// Fails with `NoAnswer` if the step takes longer than `limit`.
    pub async fn within<T>(
        limit: Duration,
        step: impl Future<Output = Result<T, LedgerError>>,
    ) -> Result<T, LedgerError> {
        tokio::time::timeout(limit, step).await.unwrap_or(Err(LedgerError::NoAnswer(limit)))
    }

    /// Pings the server every second. After several lost pings, all waiting for the server is given up: it would last for minutes.
    pub async fn watch(&self, stop: CancellationToken) {
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

    /// Changes when all waiting for the server must be given up.
    pub fn outages(&self) -> watch::Receiver<()> {
        self.outages.subscribe()
    }

    /// Begins a transaction. Other code must not (clippy.toml): sqlx 0.9.0 returns a connection with an interrupted `BEGIN` to the pool,
    /// with the transaction open (its issue 4393, fixed after that release). The next user's statements would not be committed.
    async fn begin(&self) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        self.begin_in(&self.pool).await
    }

    async fn begin_in(&self, pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        #[expect(clippy::disallowed_methods, reason = "all transactions begin here")]
        let mut begin = pin!(pool.begin());
        // Declared last, so dropped first: the interruption is noted before the connection returns.
        let mut interruption = Interruption(Some(&self.interrupted));
        let begun = begin.as_mut().await;
        if begun.is_ok() {
            interruption.0 = None;
        }
        begun
    }

    /// Runs one statement as its own transaction.
    async fn run(&self, statement: Query<'_, Postgres, PgArguments>) -> Result<(), LedgerError> {
        statement.execute(&self.pool).await?;
        Ok(())
    }

    async fn begin_snapshot(&self, pool: &PgPool) -> Result<Transaction<'static, Postgres>, LedgerError> {
        let mut tx = self.begin_in(pool).await?;
        (&mut *tx).execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        Ok(tx)
    }

    /// Begins a read for people: one read-only snapshot. Statements are cancelled after 3 s, before the caller gives up. Each is planned
    /// for its own values, because a generic plan uses no partial index.
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

    pub async fn close(&self) {
        tokio::join!(self.pool.close(), self.reserved.close());
    }
}

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

/// Records the time at which it is dropped.
struct Interruption<'a>(Option<&'a Mutex<Option<Instant>>>);

impl Drop for Interruption<'_> {
    fn drop(&mut self) {
        if let Some(noted) = self.0 {
            *noted.lock() = Some(Instant::now());
        }
    }
}

/// Whether a returned connection has no open transaction. In an open one, `now()` is the time of its `BEGIN`.
async fn is_outside_transaction(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::raw_sql("SELECT now() = statement_timestamp()").fetch_one(connection).await?.try_get(0)
}

fn handshake_problem(error: sqlx::Error) -> Option<String> {
    match error {
        sqlx::Error::Io(error) => tls::handshake_problem(&error),
        sqlx::Error::Tls(error) => Some(error.to_string()),
        _ => None,
    }
}

/// The address with the current primary first, so that its user does not wait for another server.
pub async fn with_primary_first(config: &config::Database) -> String {
    match connect_options(config) {
        Ok(servers) if servers.len() > 1 => servers::with_first(&config.url, primary::find(&servers).await),
        _ => config.url.clone(),
    }
}

/// Whether an error means that a pool had no connection to give.
pub fn lacks_connection(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.any(|cause| matches!(cause.downcast_ref(), Some(sqlx::Error::PoolTimedOut)))
}

/// Why no connection can be opened. A pool waits while the reason may pass, and then says only that it has waited.
pub async fn connection_problem(config: &config::Database) -> Option<LedgerError> {
    let server = connect_options(config).ok()?.into_iter().next()?;
    let connect = async { Ok(PgConnection::connect_with(&server).await?) };
    Database::within(Duration::from_millis(config.acquire_timeout_ms), connect).await.err()
}

fn is_encrypted(server: &PgConnectOptions) -> bool {
    matches!(server.get_ssl_mode(), PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull)
}

fn numbers(sales: &[SaleId]) -> Vec<i64> {
    sales.iter().map(|sale| sale.get()).collect()
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
