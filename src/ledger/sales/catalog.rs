//! The catalogue's changes, and which instances serve and how much of it each of them has loaded.

use std::time::Duration;

use sqlx::Executor;
use uuid::Uuid;

use crate::domain::ids::DocId;
use crate::domain::sale::Sale;
use crate::ledger::sales::terms::load_sales;
use crate::ledger::{Ledger, LedgerError};

/// An instance that has not been seen for as long does not count as serving.
pub(in crate::ledger) const ALIVE_FOR: &str = "5 seconds";

/// The whole catalogue at one version: sales that are kept in Redis, and everything that there is.
pub struct CatalogSnapshot {
    pub version: i64,
    pub live: Vec<Sale>,
    pub ids: Vec<DocId>,
}

/// What has changed since a version.
pub struct CatalogChanges {
    /// Each with the version that it changed at, in order.
    pub documents: Vec<(DocId, i64)>,
    /// The sales among them that are kept in Redis, as they are now.
    pub live: Vec<Sale>,
    /// Something was removed.
    pub removed: bool,
    pub version: i64,
}

/// Changes that are read at a time.
const CHANGES_MAX: i64 = 1000;

impl Ledger {
    /// The whole catalogue, in one snapshot.
    pub async fn catalogue(&self, retire_after_ms: u64) -> Result<CatalogSnapshot, LedgerError> {
        let mut tx = self.pool.begin().await?;
        (&mut *tx).execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let version = sqlx::query_scalar!("SELECT version FROM catalog_version").fetch_one(&mut *tx).await?;
        let live = sqlx::query_scalar!(
            "SELECT id FROM sales WHERE ends_at > now() - $1::bigint * interval '1 ms'",
            retire_after_ms.cast_signed()
        )
        .fetch_all(&mut *tx)
        .await?;
        let live = load_sales(&mut tx, &live).await?;
        let sales = sqlx::query_scalar!("SELECT id FROM sales").fetch_all(&mut *tx).await?;
        let products = sqlx::query_scalar!("SELECT id FROM products").fetch_all(&mut *tx).await?;
        let ids = sales.into_iter().map(DocId::Sale).chain(products.into_iter().map(DocId::Product)).collect();
        Ok(CatalogSnapshot { version, live, ids })
    }

    /// What has changed since `version`; `None` when too much has been forgotten to say.
    pub async fn changes_since(
        &self,
        version: i64,
        retire_after_ms: u64,
    ) -> Result<Option<CatalogChanges>, LedgerError> {
        let mut tx = self.pool.begin().await?;
        (&mut *tx).execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let rows = sqlx::query!(
            "SELECT version, kind, id, removed FROM catalog_changes WHERE version > $1 ORDER BY version LIMIT $2",
            version,
            CHANGES_MAX
        )
        .fetch_all(&mut *tx)
        .await?;
        let Some(last) = rows.last() else {
            let newest = sqlx::query_scalar!("SELECT version FROM catalog_version").fetch_one(&mut *tx).await?;
            let none = CatalogChanges { documents: Vec::new(), live: Vec::new(), removed: false, version };
            return Ok((newest == version).then_some(none));
        };
        // Versions have no gaps: a first one that is not the next means that some were cleared.
        if rows.first().is_some_and(|first| first.version != version + 1) {
            return Ok(None);
        }
        let document = |kind: &str, id| if kind == "sale" { DocId::Sale(id) } else { DocId::Product(id) };
        let sales: Vec<i64> = rows.iter().filter(|row| row.kind == "sale" && !row.removed).map(|row| row.id).collect();
        let live = sqlx::query_scalar!(
            "SELECT id FROM sales WHERE id = ANY($2) AND ends_at > now() - $1::bigint * interval '1 ms'",
            retire_after_ms.cast_signed(),
            &sales
        )
        .fetch_all(&mut *tx)
        .await?;
        let live = load_sales(&mut tx, &live).await?;
        Ok(Some(CatalogChanges {
            live,
            removed: rows.iter().any(|row| row.removed),
            version: last.version,
            documents: rows.iter().map(|row| (document(&row.kind, row.id), row.version)).collect(),
        }))
    }

    /// Forgets changes that are older than a day: who is further behind loads everything.
    pub async fn clear_changes(&self) -> Result<u64, LedgerError> {
        let done = sqlx::query!(
            "DELETE FROM catalog_changes WHERE at < now() - interval '1 day'
               AND version < (SELECT version FROM catalog_version)"
        )
        .execute(&self.pool)
        .await?;
        Ok(done.rows_affected())
    }

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
