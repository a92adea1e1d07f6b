//! Unpaid orders, and the buyers who pay them.
//!
//! During a measurement the bank takes payments that were begun before and whose messages are with the broker. The relay is
//! stopped, because it would also carry the messages of the measured purchases. Meanwhile the same number of payments is begun, so
//! that the service does all the work of payments. Their messages wait in the outbox, like those of the purchases.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::json;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::bank::RATE;
use crate::cases::Stage;
use crate::service::Buyer;
use crate::wrk::CONNECTIONS;
use crate::{processes, settle};

/// Each step must finish within this time.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Purchases per second that every machine reaches.
const PURCHASES_PER_SECOND: u64 = 4_000;
/// Payments begun at the same time outside a measurement.
const IN_PARALLEL: usize = 32;
/// Number of messages that wait for the relay.
const PENDING_MESSAGES: &str = "SELECT count(*) FROM outbox WHERE sale_id = $1 AND status = 'pending'";

/// An order, and its buyer's token.
type Due = (Uuid, String);

pub(crate) struct Payers {
    pub sale: i64,
    service: String,
    client: reqwest::Client,
    sql: PgPool,
    due: Vec<Due>,
}

impl Payers {
    /// Buys this many orders, waits until the workers have created them, and begins half of their payments.
    pub(crate) async fn prepare(stage: &Stage<'_>, sql: &PgPool, log: &Path, orders: u64) -> anyhow::Result<Self> {
        eprintln!("{orders} orders to be paid are bought, and half of their payments begun");
        let sale = stage.service.sale(orders.cast_signed()).await?;
        stage.load(&stage.service.process, &sale, CONNECTIONS, orders / PURCHASES_PER_SECOND + 1).await?;
        let service = format!("http://{}", stage.service.process.address);
        let (client, sql) = (stage.service.client.clone(), sql.clone());
        let mut payers = Self { sale: sale.id, service, client, sql, due: Vec::new() };

        let mut work = processes::work(log, Some("relay,fulfil"))?;
        let made = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'pending_payment'";
        payers.wait_for(made, orders).await?;
        payers.due = payers.with_tokens(&stage.buyers).await?;
        let first = payers.take(orders / 2);
        let begun = stream::iter(first).map(|due| begin(payers.client.clone(), payers.service.clone(), due));
        begun.buffer_unordered(IN_PARALLEL).try_collect::<Vec<_>>().await?;
        let sent = "SELECT count(*) FROM outbox WHERE sale_id = $1 AND kind = 'payment_requested' AND status = 'sent'";
        payers.wait_for(sent, orders / 2).await?;
        // The audit requires that no message is left.
        payers.wait_for(PENDING_MESSAGES, 0).await?;
        work.kill().await?;
        // Autovacuum does this within a minute. Without it, statements planned for empty tables would be measured.
        sqlx::query("ANALYZE").execute(&payers.sql).await?;
        Ok(payers)
    }

    async fn with_tokens(&self, buyers: &[Buyer]) -> anyhow::Result<Vec<Due>> {
        let tokens: HashMap<&str, &str> = buyers.iter().map(|buyer| (&*buyer.user, &*buyer.token)).collect();
        let orders = sqlx::query_as("SELECT id, user_id FROM orders WHERE sale_id = $1");
        let orders: Vec<(Uuid, String)> = orders.bind(self.sale).fetch_all(&self.sql).await?;
        let due = orders.into_iter().map(|(order, user)| Some((order, (*tokens.get(user.as_str())?).to_owned())));
        due.collect::<Option<_>>().context("a buyer has no token")
    }

    /// Takes the orders that are paid next.
    pub(crate) fn take(&mut self, payers: u64) -> Vec<Due> {
        self.due.split_off(self.due.len().saturating_sub(payers as usize))
    }

    /// Begins payments at the bank's rate until `stop`. Returns when each was answered.
    pub(crate) async fn pay(&self, due: Vec<Due>, stop: &CancellationToken) -> anyhow::Result<Vec<SystemTime>> {
        let (mut ticks, mut in_progress) = (interval(Duration::from_secs(1) / RATE as u32), JoinSet::new());
        for due in due {
            if stop.run_until_cancelled(ticks.tick()).await.is_none() {
                break;
            }
            in_progress.spawn(begin(self.client.clone(), self.service.clone(), due));
        }
        in_progress.join_all().await.into_iter().collect()
    }

    /// Waits until no payment is in progress at the bank.
    pub(crate) async fn wait_for_outcomes(&self) -> anyhow::Result<()> {
        let in_progress = "SELECT count(*) FROM payments p JOIN orders o ON o.id = p.order_id
                         WHERE o.sale_id = $1 AND p.status IN ('sending', 'waiting')";
        self.wait_for(in_progress, 0).await
    }

    /// Waits until the audit can run: messages that went back to the outbox when workers ended are sent again.
    pub(crate) async fn settle(&self, log: &Path) -> anyhow::Result<()> {
        self.wait_for_outcomes().await?;
        // Otherwise the relay would first carry hundreds of thousands of messages of purchases that are no longer needed.
        sqlx::query("DELETE FROM outbox WHERE sale_id <> $1").bind(self.sale).execute(&self.sql).await?;
        let mut work = processes::work(log, Some("relay"))?;
        self.wait_for(PENDING_MESSAGES, 0).await?;
        Ok(work.kill().await?)
    }

    /// Number of payments that wait for their slot.
    pub(crate) async fn backlog(&self) -> anyhow::Result<u64> {
        self.count(
            "SELECT count(*) FROM payments p JOIN outbox b ON b.kind = 'payment_requested' AND b.order_id = p.id
             WHERE b.sale_id = $1 AND b.status = 'sent' AND p.status = 'created'",
        )
        .await
    }

    /// Number of payments that have reached the bank, or have a slot for it.
    pub(crate) async fn departed(&self) -> anyhow::Result<u64> {
        self.count(
            "SELECT count(*) FROM payments p JOIN orders o ON o.id = p.order_id
             WHERE o.sale_id = $1 AND p.status <> 'created'",
        )
        .await
    }

    async fn count(&self, sql: &'static str) -> anyhow::Result<u64> {
        Ok(settle::count(&self.sql, sql, Some(self.sale)).await?.unsigned_abs())
    }

    async fn wait_for(&self, sql: &'static str, expected: u64) -> anyhow::Result<()> {
        settle::wait_for(&self.sql, sql, Some(self.sale), expected.cast_signed(), TIMEOUT).await
    }
}

/// Begins one payment. Returns when it was answered.
async fn begin(client: reqwest::Client, service: String, (order, token): Due) -> anyhow::Result<SystemTime> {
    let pay = client.post(format!("{service}/api/v1/orders/{order}/payments")).bearer_auth(token);
    let answer = pay.json(&json!({ "channel": "sandbox" })).send().await?;
    let (status, at) = (answer.status().as_u16(), SystemTime::now());
    ensure!(status == 202, "a payment got {status}: {}", answer.text().await?);
    Ok(at)
}
