//! The processes that serve or work, as each of them reports itself.

use uuid::Uuid;

use crate::ledger::sales::catalog::ALIVE_FOR;
use crate::ledger::{Ledger, LedgerError};

/// A process that runs workers reports itself so often; one that has missed three reports does not count as alive.
pub const WORKERS_REPORT_S: u64 = 5;
const WORKERS_ALIVE_FOR: &str = "16 seconds";
/// Processes of one kind that are listed: those that were seen last.
const PROCESSES_MAX: i64 = 100;

/// A process that was seen within a day.
#[derive(Debug, Clone)]
pub struct SeenProcess {
    pub id: Uuid,
    pub seen_at_ms: i64,
    pub alive: bool,
    /// The workers that it runs; none of an instance that serves.
    pub workers: Vec<String>,
}

impl Ledger {
    /// The instances that serve. The table has a row for each, and drops those that were not seen for a day.
    pub async fn instances(&self) -> Result<Vec<SeenProcess>, LedgerError> {
        let rows = sqlx::query!(
            r#"SELECT id, seen_at, seen_at > now() - $1::text::interval AS "alive!" FROM instances
               ORDER BY seen_at DESC LIMIT $2"#,
            ALIVE_FOR,
            PROCESSES_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        let seen = rows.into_iter().map(|row| SeenProcess {
            id: row.id,
            seen_at_ms: row.seen_at.timestamp_millis(),
            alive: row.alive,
            workers: Vec::new(),
        });
        Ok(seen.collect())
    }

    /// The processes that run workers.
    pub async fn worker_processes(&self) -> Result<Vec<SeenProcess>, LedgerError> {
        let rows = sqlx::query!(
            r#"SELECT id, seen_at, seen_at > now() - $1::text::interval AS "alive!", workers FROM worker_processes
               ORDER BY seen_at DESC LIMIT $2"#,
            WORKERS_ALIVE_FOR,
            PROCESSES_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        let seen = rows.into_iter().map(|row| SeenProcess {
            id: row.id,
            seen_at_ms: row.seen_at.timestamp_millis(),
            alive: row.alive,
            workers: row.workers,
        });
        Ok(seen.collect())
    }

    /// Records that a process is alive and runs these workers. Forgets processes that were not seen for a day.
    pub async fn report_workers(&self, process: Uuid, workers: &[String]) -> Result<(), LedgerError> {
        sqlx::query!(
            "WITH forgotten AS (DELETE FROM worker_processes WHERE seen_at < now() - interval '1 day' AND id <> $1)
             INSERT INTO worker_processes (id, workers) VALUES ($1, $2)
             ON CONFLICT (id) DO UPDATE SET workers = excluded.workers, seen_at = now()",
            process,
            workers
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}
