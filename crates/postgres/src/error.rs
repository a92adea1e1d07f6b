//! Why a transaction was refused or failed, and whether to try again.

use std::time::Duration;

use super::session;
use seckill_domain::ids::FenceToken;

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The server was unreachable, or the connection broke. It is unknown whether a commit took effect.
    #[error("postgres unreachable: {0}")]
    Unreachable(#[source] sqlx::Error),
    /// A step exceeded our own time limit. It is unknown whether a commit took effect.
    #[error("postgres did not answer within {} ms", .0.as_millis())]
    NoAnswer(Duration),
    /// The server answers, but cannot work now: it is read-only, starts or stops, or lacks connections, disk or memory.
    #[error("postgres cannot work: {0}")]
    Unable(#[source] sqlx::Error),
    /// Another transaction held a needed lock for too long. Nothing was changed.
    #[error("another transaction keeps a row locked")]
    Locked,
    /// The server cancelled the statement at `statement_timeout`, or an operator did. Nothing was changed.
    #[error("postgres cancelled a statement: {0}")]
    TooSlow(#[source] sqlx::Error),
    /// A deadlock or a serialization failure. Nothing was changed. A retry may succeed at once.
    #[error("conflict with another transaction: {0}")]
    Conflict(#[source] sqlx::Error),
    /// A constraint of the schema refused the change. Nothing was changed.
    #[error("constraint {0} refused the change")]
    Refused(String),
    #[error("postgres: {0}")]
    Failed(#[source] sqlx::Error),
    #[error("migrations: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// A migration could not get its lock, because transactions held it.
    #[error(
        "migration {0} was given up: for a minute, transactions have used what it changes; docs/runbooks/postgres-lost.md says how to find them"
    )]
    InUse(i64),
    /// Another holder has written under a newer fencing token: the lock was lost. The caller must roll back.
    #[error("fencing token {0} is older than the newest seen")]
    Overtaken(FenceToken),
    /// A pooler in front of the server drops our session settings, or shares sessions between clients.
    #[error(
        "database.url leads to a pooler that does not pass on the settings of a session; name PostgreSQL itself: {0}"
    )]
    Pooled(String),
    /// A row with values that this version does not write.
    #[error("unreadable row: {0}")]
    Unreadable(&'static str),
}

impl From<sqlx::Error> for LedgerError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Configuration(ref cause) if cause.is::<session::Unset>() => Self::Pooled(cause.to_string()),
            sqlx::Error::Database(ref db) if session::is_refused(&**db) => Self::Pooled(db.to_string()),
            sqlx::Error::Database(ref db) => match (db.constraint(), db.code().as_deref()) {
                (Some(constraint), _) => Self::Refused(constraint.to_owned()),
                (None, Some("55P03")) => Self::Locked,
                (None, Some("57014")) => Self::TooSlow(error),
                (None, Some("40001" | "40P01")) => Self::Conflict(error),
                (None, Some(code)) if code.starts_with("08") => Self::Unreachable(error),
                (None, Some(code)) if OUTAGES.iter().any(|outage| code.starts_with(outage)) => Self::Unable(error),
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

/// Codes of errors that would also hit any other row. They are: read-only, as in a failover; a missing table, column or right;
/// out of resources; shutdown or start; disk; internal. Class 57 is without cancelled statements.
const OUTAGES: [&str; 6] = ["25006", "42", "53", "57", "58", "XX"];

impl LedgerError {
    /// Whether the same batch may succeed later. After a time-out, the caller tries smaller batches instead.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::NoAnswer(_) | Self::Unable(_) | Self::Locked | Self::Conflict(_))
    }

    /// Whether the same single item may succeed later. A time-out counts here, because there is no smaller batch.
    pub fn is_temporary(&self) -> bool {
        self.is_outage() || matches!(self, Self::TooSlow(_))
    }
}
