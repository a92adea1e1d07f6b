//! Changes of the catalogue, and the live instances with the version that each has loaded.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::sales::terms::load_sales;
use crate::{LedgerError, Sales};
use seckill_domain::ids::DocId;
use seckill_domain::sale::Sale;

/// An instance with an older heartbeat does not count as live.
pub(crate) const ALIVE_FOR: &str = "5 seconds";

pub struct CatalogSnapshot {
    pub version: i64,
    /// The sales that Redis keeps.
    pub live: Vec<Sale>,
    /// All sales and products, if requested.
    pub ids: Option<Vec<DocId>>,
}

#[derive(Default)]
pub struct CatalogChanges {
    /// Changed documents, each with the version of its change. A changed product changes its sales too, because they show it.
    pub documents: Vec<(DocId, i64)>,
    /// The sales among them that Redis keeps.
    pub live: Vec<Sale>,
    /// Whether a document was removed.
    pub removed: bool,
    pub version: i64,
}

pub struct Heartbeat {
    /// By PostgreSQL's clock.
    pub now_ms: i64,
    pub catalog_version: i64,
}

const CHANGES_MAX: i64 = 1000;

impl Sales {
    /// The catalogue in one snapshot. `with_ids`: also the ids of all sales and products, which are far more than Redis keeps.
    pub async fn catalogue(&self, retire_after_ms: u64, with_ids: bool) -> Result<CatalogSnapshot, LedgerError> {
        let mut tx = self.0.begin_snapshot(&self.0.pool).await?;
        let version = sqlx::query_scalar!("SELECT version FROM catalog_version").fetch_one(&mut *tx).await?;
        let live = sqlx::query_scalar!(
            "SELECT id FROM sales WHERE ends_at > now() - $1::bigint * interval '1 ms'",
            retire_after_ms.cast_signed()
        )
        .fetch_all(&mut *tx)
        .await?;
        let live = load_sales(&mut tx, &live).await?;
        if !with_ids {
            return Ok(CatalogSnapshot { version, live, ids: None });
        }
        let sales = sqlx::query_scalar!("SELECT id FROM sales").fetch_all(&mut *tx).await?;
        let products = sqlx::query_scalar!("SELECT id FROM products").fetch_all(&mut *tx).await?;
        let ids = sales.into_iter().map(DocId::Sale).chain(products.into_iter().map(DocId::Product)).collect();
        Ok(CatalogSnapshot { version, live, ids: Some(ids) })
    }

    /// The changes since `version`, which must not be the newest; `None` if some were cleared.
    pub async fn changes_since(
        &self,
        version: i64,
        retire_after_ms: u64,
    ) -> Result<Option<CatalogChanges>, LedgerError> {
        let mut tx = self.0.begin_snapshot(&self.0.reserved).await?;
        let rows = sqlx::query!(
            "SELECT version, kind, id, removed FROM catalog_changes WHERE version > $1 ORDER BY version LIMIT $2",
            version,
            CHANGES_MAX
        )
        .fetch_all(&mut *tx)
        .await?;
        let Some(last) = rows.last() else { return Ok(None) };
        // Versions have no gaps. A gap before the first change means that changes were cleared.
        if rows.first().is_some_and(|first| first.version != version + 1) {
            return Ok(None);
        }
        let document = |kind: &str, id| if kind == "sale" { DocId::Sale(id) } else { DocId::Product(id) };
        let changed = |kind: &str| -> Vec<i64> {
            rows.iter().filter(|row| row.kind == kind && !row.removed).map(|row| row.id).collect()
        };
        let (mut sales, products) = (changed("sale"), changed("product"));
        let of_products = sqlx::query_scalar!("SELECT id FROM sales WHERE product_id = ANY($1)", &products)
            .fetch_all(&mut *tx)
            .await?;
        sales.extend(&of_products);
        let live = sqlx::query_scalar!(
            "SELECT id FROM sales WHERE id = ANY($2) AND ends_at > now() - $1::bigint * interval '1 ms'",
            retire_after_ms.cast_signed(),
            &sales
        )
        .fetch_all(&mut *tx)
        .await?;
        let live = load_sales(&mut tx, &live).await?;
        let listed = rows.iter().map(|row| (document(&row.kind, row.id), row.version));
        // The sales were read in this snapshot, so its newest version applies to them.
        let of_products = of_products.into_iter().map(|id| (DocId::Sale(id), last.version));
        Ok(Some(CatalogChanges {
            live,
            removed: rows.iter().any(|row| row.removed),
            version: last.version,
            documents: listed.chain(of_products).collect(),
        }))
    }

    /// Clears changes older than a day. An instance further behind loads the whole catalogue.
    pub async fn clear_changes(&self) -> Result<(), LedgerError> {
        self.0
            .run(sqlx::query!(
                "DELETE FROM catalog_changes WHERE at < now() - interval '1 day'
               AND version < (SELECT version FROM catalog_version)"
            ))
            .await
    }

    /// Records that an instance is live and has loaded `version`.
    pub async fn send_heartbeat(&self, instance: Uuid, version: i64) -> Result<Heartbeat, LedgerError> {
        let row = sqlx::query!(
            r#"WITH beat AS (
                 INSERT INTO instances (id, catalog_version, seen_at) VALUES ($1, $2, now())
                 ON CONFLICT (id) DO UPDATE SET catalog_version = excluded.catalog_version, seen_at = now())
               SELECT clock_timestamp() AS "now!", (SELECT version FROM catalog_version) AS "version!""#,
            instance,
            version
        )
        .fetch_one(&self.0.reserved)
        .await?;
        Ok(Heartbeat { now_ms: row.now.timestamp_millis(), catalog_version: row.version })
    }

    /// Removes an instance, and all instances without a heartbeat for a day.
    pub async fn leave(&self, instance: Uuid) -> Result<(), LedgerError> {
        self.0
            .run(sqlx::query!("DELETE FROM instances WHERE id = $1 OR seen_at < now() - interval '1 day'", instance))
            .await
    }

    /// Waits until every live instance has loaded `version` of the catalogue. Returns `false` if one has not within `wait_max`.
    pub async fn wait_for_instances(&self, version: i64, wait_max: Duration) -> Result<bool, LedgerError> {
        self.wait_until_loaded(version, 0, wait_max).await
    }

    /// Waits until every live instance follows `version` of the policies. Returns `false` if one does not within `wait_max`.
    pub async fn wait_until_followed(&self, version: i64, wait_max: Duration) -> Result<bool, LedgerError> {
        self.wait_until_loaded(0, version, wait_max).await
    }

    async fn wait_until_loaded(&self, catalog: i64, policies: i64, wait_max: Duration) -> Result<bool, LedgerError> {
        let deadline = Instant::now() + wait_max;
        loop {
            let behind = sqlx::query_scalar!(
                r#"SELECT count(*) AS "behind!" FROM instances
                   WHERE (catalog_version < $1 OR policy_version < $2) AND seen_at > now() - $3::text::interval"#,
                catalog,
                policies,
                ALIVE_FOR
            );
            if behind.fetch_one(&self.0.pool).await? == 0 {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}
