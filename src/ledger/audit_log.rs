//! The audit log: who has changed what. Each line is written in the transaction of its change.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;

use super::{Ledger, LedgerError};

/// Lines about one subject in a minute that are no changes. They tell of an attack as well as thousands would.
const LINES_PER_MINUTE: i64 = 30;

/// A line of the audit log.
#[derive(Debug, Clone)]
pub struct LogLine {
    pub id: i64,
    pub at: DateTime<Utc>,
    pub actor: String,
    pub action: String,
    pub subject: String,
    pub details: Value,
}

/// A line that is about to be written.
#[derive(Debug)]
pub struct NewLine<'a> {
    pub actor: &'a str,
    pub action: &'a str,
    /// A kind and a name, such as `sale 7`.
    pub subject: &'a str,
    pub details: Value,
}

impl Ledger {
    /// Appends a line for a change that no transaction of the ledger makes.
    pub async fn record(&self, actor: &str, action: &str, subject: &str, details: Value) -> Result<(), LedgerError> {
        append(&mut *self.pool.acquire().await?, actor, action, subject, details).await
    }

    /// Appends a line about something that changed nothing, such as a refusal, unless `counted` has had all its lines of this
    /// minute. The next line that is written says how many were not.
    pub async fn record_bounded(&self, counted: &str, line: NewLine<'_>) -> Result<(), LedgerError> {
        append_bounded(&mut *self.pool.acquire().await?, counted, line).await
    }

    /// The newest lines.
    pub async fn audit_log(&self, limit: i64) -> Result<Vec<LogLine>, LedgerError> {
        let lines = sqlx::query_as!(
            LogLine,
            "SELECT id, at, actor, action, subject, details FROM audit_log ORDER BY id DESC LIMIT $1",
            limit
        );
        Ok(lines.fetch_all(&self.pool).await?)
    }
}

/// Appends a line in the caller's transaction. `subject` is a kind and a name, such as `sale 7`.
pub(super) async fn append(
    tx: &mut PgConnection,
    actor: &str,
    action: &str,
    subject: &str,
    details: Value,
) -> Result<(), LedgerError> {
    sqlx::query!(
        "INSERT INTO audit_log (actor, action, subject, details) VALUES ($1, $2, $3, $4)",
        actor,
        action,
        subject,
        details
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// As `Ledger::record_bounded`, in the caller's transaction.
pub(super) async fn append_bounded(tx: &mut PgConnection, counted: &str, line: NewLine<'_>) -> Result<(), LedgerError> {
    sqlx::query!(
        "WITH counted AS (
           INSERT INTO audit_counts AS c (subject, minute, attempts) VALUES ($5, date_trunc('minute', now()), 1)
           ON CONFLICT (subject) DO UPDATE SET
             minute = excluded.minute,
             attempts = CASE WHEN c.minute = excluded.minute THEN c.attempts + 1 ELSE 1 END,
             unwritten = CASE WHEN c.minute = excluded.minute THEN c.unwritten ELSE greatest(c.attempts - $6, 0) END
           RETURNING attempts, unwritten)
         INSERT INTO audit_log (actor, action, subject, details)
         SELECT $1, $2, $3, CASE WHEN attempts = 1 AND unwritten > 0
                                 THEN $4::jsonb || jsonb_build_object('unwritten', unwritten) ELSE $4 END
         FROM counted WHERE attempts <= $6",
        line.actor,
        line.action,
        line.subject,
        line.details,
        counted,
        LINES_PER_MINUTE
    )
    .execute(tx)
    .await?;
    Ok(())
}
