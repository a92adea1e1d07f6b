//! PostgreSQL: the truth. The only room that names sqlx.

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

/// What can go wrong in the ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The server could not be asked, or did not answer: whether a commit under way took effect is unknown.
    #[error("postgres unreachable: {0}")]
    Unreachable(#[source] sqlx::Error),
    /// A constraint of the schema refused a change, which had no effect.
    #[error("constraint {0} refused the change")]
    Refused(String),
    /// Anything else that the server said no to.
    #[error("postgres: {0}")]
    Failed(#[source] sqlx::Error),
    #[error("migrations: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// Somebody with a newer fencing token has written: the lock had been lost. The transaction is to be given up.
    #[error("fencing token {0} is older than the newest seen")]
    Overtaken(FenceToken),
    /// A row that this program cannot have written.
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
    /// Whether it is the server that is at fault, and not what it was asked to do.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }
}

/// A handle on the ledger; clones share one pool.
#[derive(Debug, Clone)]
pub struct Ledger {
    pool: PgPool,
    patience: Duration,
}

impl Ledger {
    /// Prepares a pool; connections are made when they are needed.
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
        // The server gives up on a statement first; beyond, there is no server.
        let patience = Duration::from_millis(config.statement_timeout_ms + config.acquire_timeout_ms);
        Ok(Self { pool, patience })
    }

    /// Brings the schema up to date; safe to run at any time, and from several places at once.
    pub async fn migrate(&self) -> Result<(), LedgerError> {
        Ok(sqlx::migrate!("./migrations").run(&self.pool).await?)
    }

    /// Waits for a step no longer than a server that is there can take: one that vanished without a word says nothing,
    /// and its connection would be waited on for ever.
    pub async fn in_time<T>(&self, step: impl Future<Output = Result<T, LedgerError>>) -> Result<T, LedgerError> {
        let in_time = tokio::time::timeout(self.patience, step).await;
        in_time.unwrap_or(Err(LedgerError::Unreachable(sqlx::Error::PoolTimedOut)))
    }

    /// PostgreSQL's clock, in milliseconds since the epoch.
    pub async fn now_ms(&self) -> Result<i64, LedgerError> {
        let now = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(&self.pool).await?;
        Ok(now.timestamp_millis())
    }

    /// Returns connections and waits for those in use.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}
