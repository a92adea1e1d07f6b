//! Which instances serve, and how much of the catalogue each of them has loaded.

use std::time::Duration;

use uuid::Uuid;

use super::{Ledger, LedgerError};

/// An instance that has not been seen for as long does not count as serving.
const ALIVE_FOR: &str = "5 seconds";

impl Ledger {
    /// Says that an instance is alive and has loaded the catalogue up to `version`. Returns PostgreSQL's clock in
    /// milliseconds, and the catalogue's version now.
    pub async fn beat(&self, instance: Uuid, version: i64) -> Result<(i64, i64), LedgerError> {
        let row = sqlx::query!(
            r#"WITH beat AS (
                 INSERT INTO instances (id, catalog_version, seen_at) VALUES ($1, $2, now())
                 ON CONFLICT (id) DO UPDATE SET catalog_version = excluded.catalog_version, seen_at = now())
               SELECT clock_timestamp() AS "now!", (SELECT version FROM catalog_version) AS "version!""#,
            instance,
            version
        )
        .fetch_one(&self.pool)
        .await?;
        Ok((row.now.timestamp_millis(), row.version))
    }

    /// Takes an instance off the list, and those with it that went without a word a day ago.
    pub async fn leave(&self, instance: Uuid) -> Result<(), LedgerError> {
        sqlx::query!("DELETE FROM instances WHERE id = $1 OR seen_at < now() - interval '1 day'", instance)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Waits until every instance that is alive has loaded `version`; `false` when one has not by then.
    pub async fn everyone_has(&self, version: i64, patience: Duration) -> Result<bool, LedgerError> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let behind = sqlx::query_scalar!(
                r#"SELECT count(*) AS "behind!" FROM instances
                   WHERE catalog_version < $1 AND seen_at > now() - $2::text::interval"#,
                version,
                ALIVE_FOR
            )
            .fetch_one(&self.pool)
            .await?;
            if behind == 0 {
                return Ok(true);
            }
            if tokio::time::Instant::now() >= deadline {
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
