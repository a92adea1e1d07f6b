//! The audit log of changes, with their actors. Each line is written in the transaction of its change.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use sqlx::{Executor, PgConnection};
use utoipa::ToSchema;

use super::{Accounts, LedgerError};
use seckill_domain::log_filter::LogFilter;

/// Limit of lines per subject and minute that record no change. They show an attack as well as thousands would.
const LINES_PER_MINUTE: i64 = 30;

/// A line of the audit log.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Line)]
pub struct LogLine {
    pub id: i64,
    #[serde(rename = "at_ms", with = "chrono::serde::ts_milliseconds")]
    #[schema(value_type = i64)]
    pub at: DateTime<Utc>,
    /// An account, `command line`, or a part of the service.
    pub actor: String,
    pub action: String,
    pub subject: String,
    pub details: Value,
}

#[derive(Debug)]
pub struct NewLine<'a> {
    pub actor: &'a str,
    pub action: &'a str,
    /// A kind and a name, such as `sale 7`.
    pub subject: &'a str,
    pub details: Value,
}

impl Accounts {
    /// Appends a line for a change outside the ledger's transactions.
    pub async fn record(&self, actor: &str, action: &str, subject: &str, details: Value) -> Result<(), LedgerError> {
        append(&mut *self.0.pool.acquire().await?, actor, action, subject, details).await
    }

    /// Appends a line about an event that changed nothing, at most 30 a minute for `counted`. The next line says how many were skipped.
    pub async fn record_bounded(&self, counted: &str, line: NewLine<'_>) -> Result<(), LedgerError> {
        append_bounded(&mut *self.0.pool.acquire().await?, counted, line).await
    }

    /// The newest lines that pass a filter. Each filter has an index, `audit_log_by_…`. Without a filter, the primary key gives the order.
    pub async fn audit_log(&self, filter: &LogFilter) -> Result<Vec<LogLine>, LedgerError> {
        let mut tx = self.0.begin().await?;
        // A generic plan, for all filters, could use none of the indexes.
        (&mut *tx).execute("SET LOCAL plan_cache_mode = force_custom_plan").await?;
        // The index has only the beginnings of subjects. A policy's subject can be too long for an index page.
        let lines = sqlx::query_as!(
            LogLine,
            "SELECT id, at, actor, action, subject, details FROM audit_log
             WHERE ($1::text IS NULL OR actor = $1) AND ($2::text IS NULL OR action = $2)
               AND ($3::text IS NULL OR (left(subject, 100) = left($3, 100) AND subject = $3))
               AND ($4::bigint IS NULL OR at >= timestamptz 'epoch' + $4::bigint * interval '1 ms')
               AND ($5::bigint IS NULL OR at < timestamptz 'epoch' + $5::bigint * interval '1 ms')
               AND ($6::bigint IS NULL OR id < $6)
             ORDER BY id DESC LIMIT $7",
            filter.actor,
            filter.action,
            filter.subject,
            filter.from_ms,
            filter.to_ms,
            filter.before,
            filter.limit
        );
        let lines = lines.fetch_all(&mut *tx).await?;
        tx.commit().await?;
        Ok(lines)
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

/// As `Accounts::record_bounded`, in the caller's transaction.
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
