//! Thousands of sales, made and removed by few statements: as many commands would take an hour.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::ensure;
use redis::cmd;
use sqlx::PgPool;
use tokio::time::sleep;

use crate::service::{Sale, Service};

/// Sales in one statement. Each changes the catalogue's version, whose row grows within a transaction.
const AT_ONCE: usize = 1000;
/// A refill waits for half a second, and an instance makes some tens at a time: ten thousand take minutes.
const TO_FILL: Duration = Duration::from_secs(1200);
/// An instance that has not been seen for so long is gone, in seconds.
const GONE_AFTER_S: f64 = 5.0;

/// Sales that are copies of one.
pub struct Sales {
    sql: PgPool,
    /// The sale that they are copies of, which is of no use otherwise.
    pattern: i64,
    stock: i64,
    starts_in_s: f64,
    pub made: Vec<Sale>,
}

impl Sales {
    /// No sales yet. Those to come have this stock, and begin so much later. A buyer may come often.
    pub async fn begin(service: &Service, sql: &PgPool, stock: i64, starts_in_s: f64) -> anyhow::Result<Self> {
        let pattern = service.sale_with(stock, &["--per-user", "1000", "--starts-in", "3600", "--ends-in", "86400"]);
        let pattern = pattern.await?.id;
        Ok(Self { sql: sql.clone(), pattern, stock, starts_in_s, made: Vec::new() })
    }

    /// Makes more, until there are so many; then waits until Redis has them and all instances know them.
    pub async fn grow_to(&mut self, count: usize) -> anyhow::Result<()> {
        while self.made.len() < count {
            let more = (count - self.made.len()).min(AT_ONCE);
            let rows: Vec<(i64, String)> = sqlx::query_as(
                "WITH made AS (
                   INSERT INTO sales (product_id, price_cents, total_stock, stock, per_user, min_level, starts_at, ends_at,
                                      pay_within_ms, purchase_key, waiting_key, refund_returns_stock)
                   SELECT product_id, price_cents, $3, $3, per_user, min_level, now() + make_interval(secs => $4),
                          now() + make_interval(secs => $4) + interval '1 day', pay_within_ms,
                          md5('p' || n || random()), md5('w' || n || random()), refund_returns_stock
                   FROM sales, generate_series(1, $2::bigint) AS n WHERE id = $1
                   RETURNING id, purchase_key),
                 asked AS (INSERT INTO sale_epochs (sale_id) SELECT id FROM made)
                 SELECT id, purchase_key FROM made ORDER BY id",
            )
            .bind(self.pattern)
            .bind(i64::try_from(more)?)
            .bind(self.stock)
            .bind(self.starts_in_s)
            .fetch_all(&self.sql)
            .await?;
            self.made.extend(rows.into_iter().map(|(id, key)| Sale::new(id, &key)));
        }
        wait_until_known(&self.sql).await
    }

    /// Writes the first `count` into a file for sales.lua.
    pub fn write(&self, count: usize, name: &str) -> anyhow::Result<PathBuf> {
        ensure!(self.made.len() >= count, "{} sales were made", self.made.len());
        write(&self.made[..count], name)
    }

    /// Removes all, in which nobody has bought.
    pub async fn remove(self) -> anyhow::Result<()> {
        let mut ids: Vec<i64> = self.made.iter().map(|sale| sale.id).collect();
        ids.push(self.pattern);
        for ids in ids.chunks(AT_ONCE) {
            let mut tx = self.sql.begin().await?;
            sqlx::query("DELETE FROM sale_epochs WHERE sale_id = ANY($1)").bind(ids).execute(&mut *tx).await?;
            sqlx::query("DELETE FROM sales WHERE id = ANY($1)").bind(ids).execute(&mut *tx).await?;
            tx.commit().await?;
        }
        // A sale in which nobody has bought has one key.
        let prefix = std::env::var("SECKILL_REDIS__PREFIX").unwrap_or_else(|_| "sk:".into());
        let mut redis = redis::Client::open(std::env::var("REDIS_URL")?)?.get_connection()?;
        for ids in ids.chunks(AT_ONCE) {
            let keys: Vec<String> = ids.iter().map(|id| format!("{prefix}{{{id}}}:sale")).collect();
            cmd("UNLINK").arg(keys).query::<()>(&mut redis)?;
        }
        wait_until_known(&self.sql).await
    }
}

/// Writes sales into a file for sales.lua.
pub fn write(sales: &[Sale], name: &str) -> anyhow::Result<PathBuf> {
    let mut text = String::new();
    for sale in sales {
        writeln!(text, "{}\t{}", sale.path, sale.body)?;
    }
    let file = Path::new(".dev/bench").join(name);
    std::fs::write(&file, text)?;
    Ok(file)
}

/// Waits until all sales are in Redis, and every instance has the newest catalogue.
async fn wait_until_known(sql: &PgPool) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let (unfilled, behind): (i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM sale_epochs WHERE run_id IS NULL),
                    (SELECT count(*) FROM instances
                     WHERE seen_at > now() - make_interval(secs => $1)
                       AND catalog_version < (SELECT version FROM catalog_version))",
        )
        .bind(GONE_AFTER_S)
        .fetch_one(sql)
        .await?;
        if unfilled == 0 && behind == 0 {
            return Ok(());
        }
        ensure!(begun.elapsed() < TO_FILL, "{unfilled} sales are not in Redis, {behind} instances do not know all");
        sleep(Duration::from_millis(200)).await;
    }
}
