//! PostgreSQL: what is committed here is true. The only room that names sqlx.

pub mod accounts;
mod audit_log;
pub mod fences;
pub mod flow;
pub mod money;
pub mod notices;
pub mod orders;
pub mod outbox;
pub mod outflow;
pub mod sales;

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, PgPool};

use crate::config;
use crate::domain::ids::FenceToken;

/// Why the ledger has refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The server could not be reached, or did not answer: whether a commit took effect is unknown.
    #[error("postgres unreachable: {0}")]
    Unreachable(#[source] sqlx::Error),
    /// A constraint of the schema refused the change, which had no effect.
    #[error("constraint {0} refused the change")]
    Refused(String),
    /// Any other error of the server.
    #[error("postgres: {0}")]
    Failed(#[source] sqlx::Error),
    #[error("migrations: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// Another holder has written under a newer fencing token: the lock was lost. The transaction is to be rolled back.
    #[error("fencing token {0} is older than the newest seen")]
    Overtaken(FenceToken),
    /// A row that this version of the program does not write.
    #[error("unreadable row: {0}")]
    Unreadable(&'static str),
}

impl From<sqlx::Error> for LedgerError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(ref db) => match (db.constraint(), db.code().as_deref()) {
                (Some(constraint), _) => Self::Refused(constraint.to_owned()),
                // 57P0x: shutting down or starting; 08: connection; 53: out of resources, 57014: too slow.
                (None, Some(code)) if code.starts_with("57") || code.starts_with("08") || code.starts_with("53") => {
                    Self::Unreachable(error)
                }
                _ => Self::Failed(error),
            },
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_) => Self::Unreachable(error),
            _ => Self::Failed(error),
        }
    }
}

impl LedgerError {
    /// Whether the server could not be reached, so that any other request would have failed too.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }
}

/// A handle on the ledger; clones share one pool.
#[derive(Debug, Clone)]
pub struct Ledger {
    pool: PgPool,
    timeout: Duration,
}

impl Ledger {
    /// Prepares a pool. Connections are opened when they are needed.
    pub fn new(config: &config::Database) -> Result<Self, LedgerError> {
        let options: PgConnectOptions = config.url.parse().map_err(LedgerError::Failed)?;
        let statement_timeout = config.statement_timeout_ms.to_string();
        let options = options
            .application_name("seckill")
            .options([
                ("statement_timeout", statement_timeout.as_str()),
                ("idle_in_transaction_session_timeout", "30000"),
            ])
            .log_slow_statements(tracing::log::LevelFilter::Warn, Duration::from_secs(1));
        let pool = PgPoolOptions::new()
            .max_connections(config.max_connections)
            .acquire_timeout(Duration::from_millis(config.acquire_timeout_ms))
            .connect_lazy_with(options);
        // Longer than the server's own limits: after this time there is no server.
        let timeout = Duration::from_millis(config.statement_timeout_ms + config.acquire_timeout_ms);
        Ok(Self { pool, timeout })
    }

    /// Brings the schema up to date. May run at any time, and in several processes at once.
    pub async fn migrate(&self) -> Result<(), LedgerError> {
        Ok(sqlx::migrate!("./migrations").run(&self.pool).await?)
    }

    /// Waits for a step no longer than a living server can take. Without this, a connection to a server that has vanished
    /// would be waited on for ever.
    ///
    /// # Errors
    /// `Unreachable` after the time-out, else the step's own.
    pub async fn in_time<T>(&self, step: impl Future<Output = Result<T, LedgerError>>) -> Result<T, LedgerError> {
        let in_time = tokio::time::timeout(self.timeout, step).await;
        in_time.unwrap_or(Err(LedgerError::Unreachable(sqlx::Error::PoolTimedOut)))
    }

    /// PostgreSQL's clock, in milliseconds since the epoch.
    pub async fn now_ms(&self) -> Result<i64, LedgerError> {
        let now = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(&self.pool).await?;
        Ok(now.timestamp_millis())
    }

    /// Closes the pool, and waits for the connections in use.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// A duration in microseconds, for intervals in statements.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
