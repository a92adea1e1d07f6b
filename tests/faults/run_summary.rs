//! The result of a run as one line, and the wait for a system that is complete again.

use std::time::{Duration, Instant, SystemTime};

use anyhow::bail;
use sqlx::PgPool;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::world::{connected, redis_command};

#[derive(Debug, Default, Clone)]
pub struct RunSummary {
    pub requests: usize,
    pub accepted: usize,
    pub note: String,
}

impl RunSummary {
    pub const HEAD: &'static str = "scenario seed  requests    202s  verdict  what else was seen";

    pub fn line(&self, name: &str, seed: u64) -> String {
        format!("{name:<8} {seed:>4} {:>9} {:>7}  held     {}", self.requests, self.accepted, self.note)
    }

    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.accepted += other.accepted;
    }
}

const PATIENCE: Duration = Duration::from_secs(150);

/// Reads a system's state directly from its servers.
#[derive(Clone)]
pub struct Watch {
    pub sql: PgPool,
    pub redis: redis::Client,
    /// Each sale, with the beginnings of all its Redis keys, one for each shard.
    pub sales: Vec<(i64, Vec<String>)>,
}

impl Watch {
    /// Waits until the system is complete: Redis serves the ledger's epoch of each sale, on the run of its refill, and every hold from
    /// before `moment` is committed.
    pub async fn complete_after(&self, moment: SystemTime) -> anyhow::Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Ok(Ok(true)) = timeout(Duration::from_secs(2), self.is_complete(moment)).await {
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
        bail!("never complete again")
    }

    async fn is_complete(&self, moment: SystemTime) -> anyhow::Result<bool> {
        let mut redis = connected(&self.redis).await?;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut redis).await?;
        for (sale, tags) in &self.sales {
            let (epoch, run_id): (i64, Option<String>) =
                sqlx::query_as("SELECT epoch, run_id FROM sale_epochs WHERE sale_id = $1")
                    .bind(sale)
                    .fetch_one(&self.sql)
                    .await?;
            if !run_id.is_some_and(|run_id| info.contains(&run_id)) {
                return Ok(false);
            }
            for tag in tags {
                let mut state = redis::cmd("HMGET");
                let state = state.arg(format!("{tag}:sale")).arg(&["epoch", "state"]);
                let (served, state): (Option<i64>, Option<String>) = state.query_async(&mut redis).await?;
                if served != Some(epoch) || state.as_deref() != Some("open") {
                    return Ok(false);
                }
            }
        }
        Ok(self.holds_without_row(moment).await?.is_empty())
    }

    /// The holds and loans from before `moment` that are not durable.
    pub async fn holds_without_row(&self, moment: SystemTime) -> anyhow::Result<Vec<Uuid>> {
        let moment_ms = moment.duration_since(SystemTime::UNIX_EPOCH)?.as_millis().to_string();
        let mut held: Vec<Uuid> = Vec::new();
        for tag in self.sales.iter().flat_map(|(_, tags)| tags) {
            let unconfirmed = format!("{tag}:unconfirmed");
            let of_shard: Vec<String> =
                redis_command(&self.redis, &["ZRANGEBYSCORE", &unconfirmed, "-inf", &moment_ms]).await?;
            held.extend(of_shard.iter().filter_map(|id| Uuid::try_parse(id).ok()));
        }
        let known: Vec<Uuid> = sqlx::query_scalar("SELECT order_id FROM purchase_records WHERE order_id = ANY($1)")
            .bind(&held)
            .fetch_all(&self.sql)
            .await?;
        Ok(held.into_iter().filter(|order| !known.contains(order)).collect())
    }
}
