//! The live processes, by their own reports.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::sales::catalog::ALIVE_FOR;
use crate::{Database, LedgerError};

/// How often a process of workers reports. After three missed reports, it does not count as live.
pub const WORKERS_REPORT_S: u64 = 5;
const WORKERS_ALIVE_FOR: &str = "16 seconds";
/// How many processes of a kind are listed, the latest reports first.
const PROCESSES_MAX: i64 = 100;

/// A process that was seen within a day.
#[derive(Debug, Clone, serde::Serialize, utoipa::ToSchema)]
pub struct SeenProcess {
    #[schema(value_type = String)]
    pub id: Uuid,
    #[serde(rename = "seen_at_ms", with = "chrono::serde::ts_milliseconds")]
    #[schema(value_type = i64)]
    pub seen_at: DateTime<Utc>,
    /// Whether the process has reported itself in the last seconds.
    pub alive: bool,
    /// The workers that it runs.
    pub workers: Vec<String>,
}

impl Database {
    /// The serving instances. The table drops those without a report for a day.
    pub async fn instances(&self) -> Result<Vec<SeenProcess>, LedgerError> {
        let seen = sqlx::query_as!(
            SeenProcess,
            r#"SELECT id, seen_at, seen_at > now() - $1::text::interval AS "alive!", '{}'::text[] AS "workers!" FROM instances
               ORDER BY seen_at DESC LIMIT $2"#,
            ALIVE_FOR,
            PROCESSES_MAX
        );
        Ok(seen.fetch_all(&self.pool).await?)
    }

    pub async fn worker_processes(&self) -> Result<Vec<SeenProcess>, LedgerError> {
        let seen = sqlx::query_as!(
            SeenProcess,
            r#"SELECT id, seen_at, seen_at > now() - $1::text::interval AS "alive!", workers FROM worker_processes
               ORDER BY seen_at DESC LIMIT $2"#,
            WORKERS_ALIVE_FOR,
            PROCESSES_MAX
        );
        Ok(seen.fetch_all(&self.pool).await?)
    }

    /// Records that a process is live and runs these workers. Removes processes without a report for a day.
    pub async fn report_workers(&self, process: Uuid, workers: &[String]) -> Result<(), LedgerError> {
        self.run(sqlx::query!(
            "WITH forgotten AS (DELETE FROM worker_processes WHERE seen_at < now() - interval '1 day' AND id <> $1)
             INSERT INTO worker_processes (id, workers) VALUES ($1, $2)
             ON CONFLICT (id) DO UPDATE SET workers = excluded.workers, seen_at = now()",
            process,
            workers
        ))
        .await
    }
}
