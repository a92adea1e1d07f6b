//! Orders that wait for payment, and those who pay them.
//!
//! What is to leave for the bank while something is measured was begun before, and its messages are with the broker: the
//! relay would carry the purchases' messages too, which the case that is measured has stopped. As much is begun meanwhile,
//! so that the service has all the work that payments are; those wait in the outbox, as the purchases do.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::json;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::TOKENS;
use crate::bank::RATE;
use crate::cases::Stage;
use crate::processes;

/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Purchases a second that any machine has, for so many orders.
const BOUGHT_A_SECOND: u64 = 4_000;
/// Payments that begin at once where nobody is measuring.
const CROWD: usize = 32;
/// Messages that wait for the relay.
const LEFT: &str = "SELECT count(*) FROM outbox WHERE sale_id = $1 AND status = 'pending'";

/// An order, and its buyer's token.
type Due = (Uuid, String);

pub struct Payers {
    pub sale: i64,
    service: String,
    client: reqwest::Client,
    sql: PgPool,
    due: Vec<Due>,
}

impl Payers {
    /// Buys so many orders, has them made, and begins half of their payments.
    pub async fn prepare(stage: &Stage<'_>, sql: &PgPool, log: &Path, orders: u64) -> anyhow::Result<Self> {
        eprintln!("{orders} orders to be paid are bought, and half of their payments begun");
        let sale = stage.service.sale(orders.cast_signed()).await?;
        stage.load(&stage.service.process, &sale, orders / BOUGHT_A_SECOND + 1).await?;
        let service = format!("http://{}", stage.service.process.address);
        let (client, sql) = (stage.service.client.clone(), sql.clone());
        let mut payers = Self { sale: sale.id, service, client, sql, due: Vec::new() };

        let mut work = processes::work(log, Some("relay,fulfil"))?;
        let made = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'pending_payment'";
        payers.wait_for(made, orders, "orders are made").await?;
        payers.due = payers.with_tokens().await?;
        let first = payers.take(orders / 2);
        let begun = stream::iter(first).map(|due| begin(payers.client.clone(), payers.service.clone(), due));
        begun.buffer_unordered(CROWD).try_collect::<Vec<_>>().await?;
        let sent = "SELECT count(*) FROM outbox WHERE sale_id = $1 AND kind = 'payment_requested' AND status = 'sent'";
        payers.wait_for(sent, orders / 2, "payments are with the broker").await?;
        // The auditor wants them gone, too.
        payers.wait_for(LEFT, 0, "messages are left").await?;
        work.kill().await?;
        // As autovacuum does within a minute; statements planned for empty tables would be measured.
        sqlx::query("ANALYZE").execute(&payers.sql).await?;
        Ok(payers)
    }

    async fn with_tokens(&self) -> anyhow::Result<Vec<Due>> {
        let tokens = std::fs::read_to_string(TOKENS)?;
        let tokens: HashMap<&str, &str> = tokens.lines().filter_map(|line| line.split_once(' ')).collect();
        let orders = sqlx::query_as("SELECT id, user_id FROM orders WHERE sale_id = $1");
        let orders: Vec<(Uuid, String)> = orders.bind(self.sale).fetch_all(&self.sql).await?;
        let due = orders.into_iter().map(|(order, user)| Some((order, (*tokens.get(user.as_str())?).to_owned())));
        due.collect::<Option<_>>().context("a buyer has no token")
    }

    /// Those who pay next.
    pub fn take(&mut self, payers: u64) -> Vec<Due> {
        self.due.split_off(self.due.len().saturating_sub(payers as usize))
    }

    /// Begins payments at the bank's rate until `stop`; says when each had its answer.
    pub async fn pay(&self, due: Vec<Due>, stop: &CancellationToken) -> anyhow::Result<Vec<SystemTime>> {
        let (mut beat, mut under_way) = (interval(Duration::from_secs(1) / RATE as u32), JoinSet::new());
        for due in due {
            if stop.run_until_cancelled(beat.tick()).await.is_none() {
                break;
            }
            under_way.spawn(begin(self.client.clone(), self.service.clone(), due));
        }
        under_way.join_all().await.into_iter().collect()
    }

    /// Until nothing is under way to the bank.
    pub async fn wait_for_outcomes(&self) -> anyhow::Result<()> {
        let under_way = "SELECT count(*) FROM payments p JOIN orders o ON o.id = p.order_id
                         WHERE o.sale_id = $1 AND p.status IN ('sending', 'waiting')";
        self.wait_for(under_way, 0, "payments are under way").await
    }

    /// Until the auditor can judge: messages that went back to the outbox, when workers ended, are with the broker again.
    pub async fn settle(&self, log: &Path) -> anyhow::Result<()> {
        self.wait_for_outcomes().await?;
        // The relay would carry hundreds of thousands of purchases' messages first, which nobody looks at any more.
        sqlx::query("DELETE FROM outbox WHERE sale_id <> $1").bind(self.sale).execute(&self.sql).await?;
        let mut work = processes::work(log, Some("relay"))?;
        self.wait_for(LEFT, 0, "messages are left").await?;
        Ok(work.kill().await?)
    }

    /// Payments that only wait for their slot.
    pub async fn backlog(&self) -> anyhow::Result<u64> {
        self.count(
            "SELECT count(*) FROM payments p JOIN outbox b ON b.kind = 'payment_requested' AND b.order_id = p.id
             WHERE b.sale_id = $1 AND b.status = 'sent' AND p.status = 'created'",
        )
        .await
    }

    /// Payments that have reached the bank, or have a slot for it.
    pub async fn gone(&self) -> anyhow::Result<u64> {
        self.count(
            "SELECT count(*) FROM payments p JOIN orders o ON o.id = p.order_id
             WHERE o.sale_id = $1 AND p.status <> 'created'",
        )
        .await
    }

    async fn count(&self, sql: &'static str) -> anyhow::Result<u64> {
        let count: i64 = sqlx::query_scalar(sql).bind(self.sale).fetch_one(&self.sql).await?;
        Ok(count.unsigned_abs())
    }

    async fn wait_for(&self, sql: &'static str, wanted: u64, what: &str) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let is = self.count(sql).await?;
            if is == wanted {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "{is} {what}, and not {wanted}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Begins one payment; says when it had its answer.
async fn begin(client: reqwest::Client, service: String, (order, token): Due) -> anyhow::Result<SystemTime> {
    let pay = client.post(format!("{service}/api/v1/orders/{order}/payments")).bearer_auth(token);
    let answer = pay.json(&json!({ "channel": "sandbox" })).send().await?;
    let (status, at) = (answer.status().as_u16(), SystemTime::now());
    ensure!(status == 202, "a payment got {status}: {}", answer.text().await?);
    Ok(at)
}
