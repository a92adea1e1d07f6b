//! `seckill serve` for the bench: its answers by code, its sales, its rows.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::json;
use sqlx::PgPool;
use tokio::process::Command;

use crate::processes::{Process, program, seckill};

pub struct Service {
    pub process: Process,
    pub client: reqwest::Client,
    sql: PgPool,
}

/// A sale of the bench, and what a purchase at it sends.
pub struct Sale {
    pub id: i64,
    pub path: String,
    pub body: String,
}

/// The answers to purchases, by the service's own metrics.
#[derive(Debug, Default)]
pub struct Answers {
    /// By code; `accepted` for a 202.
    pub by_code: BTreeMap<String, u64>,
    /// Purchases for which Redis was asked, and the calls in which it was.
    pub asked: Together,
    /// Purchases that were committed, and the commits.
    pub committed: Together,
}

/// Purchases, and in how many batches they went together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Together {
    pub purchases: u64,
    pub batches: u64,
}

impl Together {
    fn since(self, before: Self) -> Self {
        Self { purchases: self.purchases - before.purchases, batches: self.batches - before.batches }
    }

    /// Purchases in a batch, on average; 0 without any.
    pub fn mean(self) -> f64 {
        self.purchases as f64 / self.batches.max(1) as f64
    }
}

impl Answers {
    /// The answers given after `before`.
    pub fn since(mut self, before: &Self) -> Self {
        for (code, n) in &mut self.by_code {
            *n = n.saturating_sub(before.by_code.get(code).copied().unwrap_or_default());
        }
        self.by_code.retain(|_, n| *n > 0);
        self.asked = self.asked.since(before.asked);
        self.committed = self.committed.since(before.committed);
        self
    }
}

impl Service {
    pub async fn start(log: &Path, settings: &[(&str, &str)], sql: PgPool) -> anyhow::Result<Self> {
        let client = reqwest::Client::new();
        let command = |address: std::net::SocketAddr| {
            let mut serve = Command::new(program()?);
            serve.arg("serve").env("SECKILL_HTTP__BIND", address.to_string()).envs(settings.iter().copied());
            Ok(serve)
        };
        let process = Process::start(log, command)?.ready(&client, "/readyz").await?;
        Ok(Self { process, client, sql })
    }

    pub async fn answers(&self) -> anyhow::Result<Answers> {
        let url = format!("http://{}/metrics", self.process.address);
        let metrics = self.client.get(url).send().await?.text().await?;
        let mut answers = Answers::default();
        for (name, n) in metrics.lines().filter_map(|line| line.split_once(' ')) {
            let code = name.strip_prefix("seckill_answers_total{code=\"").and_then(|rest| rest.strip_suffix("\"}"));
            match (name, code) {
                ("seckill_gate_batch_size_sum", _) => answers.asked.purchases = n.parse::<f64>()? as u64,
                ("seckill_gate_batch_size_count", _) => answers.asked.batches = n.parse()?,
                ("seckill_commit_batch_size_sum", _) => answers.committed.purchases = n.parse::<f64>()? as u64,
                ("seckill_commit_batch_size_count", _) => answers.committed.batches = n.parse()?,
                (_, Some(code)) => drop(answers.by_code.insert(code.to_owned(), n.parse()?)),
                _ => {}
            }
        }
        Ok(answers)
    }

    /// Creates a sale with this stock. Orders may be paid for a day, so that none expires during the bench.
    pub async fn sale(&self, stock: i64) -> anyhow::Result<Sale> {
        self.sale_with(stock, &[]).await
    }

    /// The same, with further words for `sale create`.
    pub async fn sale_with(&self, stock: i64, words: &[&str]) -> anyhow::Result<Sale> {
        let stock = stock.to_string();
        let create =
            ["sale", "create", "--product", "Bench", "--price-cents", "100", "--pay-within", "86400", "--stock"];
        let created = seckill(&[&create[..], &[&stock], words].concat()).await?;
        let id = created["sale_id"].as_i64().context("`sale create` printed no sale_id")?;
        let find = sqlx::query_scalar("SELECT purchase_key FROM sales WHERE id = $1");
        let key: String = find.bind(id).fetch_one(&self.sql).await?;
        Ok(Sale::new(id, &key))
    }

    pub async fn purchases(&self, sale: i64) -> anyhow::Result<u64> {
        let count = sqlx::query_scalar("SELECT count(*) FROM purchase_records WHERE sale_id = $1");
        let rows: i64 = count.bind(sale).fetch_one(&self.sql).await?;
        Ok(rows.unsigned_abs())
    }
}

impl Sale {
    pub fn new(id: i64, key: &str) -> Self {
        Self { id, path: format!("/api/v1/sales/{id}/purchases"), body: json!({ "key": key }).to_string() }
    }

    /// Sells the whole stock to these buyers.
    pub async fn sell_out(&self, service: &Service, tokens: &[String]) -> anyhow::Result<()> {
        for token in tokens {
            let url = format!("http://{}{}", service.process.address, self.path);
            let purchase = service.client.post(url).bearer_auth(token);
            let answer = purchase.body(self.body.clone()).send().await?;
            ensure!(answer.status().as_u16() == 202, "a first buyer got {}", answer.text().await?);
        }
        Ok(())
    }
}
