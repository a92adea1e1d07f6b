//! `seckill serve` for the bench: its answers by code, its sales, its rows, its buyers.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::process::Command;

use crate::processes::{Process, program, seckill};

pub(crate) struct Service {
    pub process: Process,
    pub client: reqwest::Client,
    sql: PgPool,
}

/// A sale of the bench, with path and body of a purchase.
pub(crate) struct Sale {
    pub id: i64,
    pub path: String,
    pub body: String,
}

pub(crate) struct Buyer {
    pub user: String,
    pub token: String,
}

/// Issues tokens to this many new buyers.
pub(crate) async fn buyers(count: u64, prefix: &str) -> anyhow::Result<Vec<Buyer>> {
    // A line each: user, space, token. A user may contain a space, a token none.
    let file = ".dev/bench/tokens";
    seckill(&["token", "--count", &count.to_string(), "--prefix", prefix, "--out", file]).await?;
    let tokens = std::fs::read_to_string(file)?;
    let buyer = |(user, token): (&str, &str)| Buyer { user: user.to_owned(), token: token.to_owned() };
    Ok(tokens.lines().filter_map(|line| line.rsplit_once(' ')).map(buyer).collect())
}

/// The answers to purchases, by the service's own metrics.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// By code; `accepted` for a 202.
    pub by_code: BTreeMap<String, u64>,
    /// Purchases that Redis was asked about.
    pub asked: u64,
}

impl Answers {
    /// The answers given after `before`.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        for (code, n) in &mut self.by_code {
            *n = n.saturating_sub(before.by_code.get(code).copied().unwrap_or_default());
        }
        self.by_code.retain(|_, n| *n > 0);
        self.asked -= before.asked;
        self
    }
}

impl Service {
    pub(crate) async fn start(log: &Path, settings: &[(&str, &str)], sql: PgPool) -> anyhow::Result<Self> {
        let client = reqwest::Client::new();
        let command = |address: std::net::SocketAddr| {
            let mut serve = Command::new(program()?);
            serve.arg("serve").env("SECKILL_HTTP__BIND", address.to_string()).envs(settings.iter().copied());
            Ok(serve)
        };
        let process = Process::start(log, command)?.ready(&client, "/readyz").await?;
        Ok(Self { process, client, sql })
    }

    pub(crate) async fn answers(&self) -> anyhow::Result<Answers> {
        let url = format!("http://{}/metrics", self.process.address);
        let metrics = self.client.get(url).send().await?.text().await?;
        let mut answers = Answers::default();
        for (name, n) in metrics.lines().filter_map(|line| line.split_once(' ')) {
            let code = name.strip_prefix("seckill_answers_total{code=\"").and_then(|rest| rest.strip_suffix("\"}"));
            match (name, code) {
                ("seckill_gate_batch_size_sum", _) => answers.asked = n.parse::<f64>()? as u64,
                (_, Some(code)) => drop(answers.by_code.insert(code.to_owned(), n.parse()?)),
                _ => {}
            }
        }
        Ok(answers)
    }

    /// Creates a sale with this stock. Orders may be paid for a day, so that none expires during the bench.
    pub(crate) async fn sale(&self, stock: i64) -> anyhow::Result<Sale> {
        let stock = stock.to_string();
        let create =
            ["sale", "create", "--product", "Bench", "--price-cents", "100", "--pay-within", "86400", "--stock"];
        let created = seckill(&[&create[..], &[&stock]].concat()).await?;
        let id = created["sale_id"].as_i64().context("`sale create` printed no sale_id")?;
        let find = sqlx::query_scalar("SELECT purchase_key FROM sales WHERE id = $1");
        let key: String = find.bind(id).fetch_one(&self.sql).await?;
        Ok(Sale { id, path: format!("/api/v1/sales/{id}/purchases"), body: json!({ "key": key }).to_string() })
    }

    /// Plays a crowd by `seckill load` at a sale. Returns its report.
    pub(crate) async fn rush(&self, sale: i64, words: &[&str]) -> anyhow::Result<Value> {
        let (file, base, sale) = (".dev/bench/load.json", format!("http://{}", self.process.address), sale.to_string());
        seckill(&[&["load", "--base", &base, "--sale", &sale, "--json", file], words].concat()).await?;
        let mut document: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
        let report = document["report"].take();
        ensure!(report["first_second"]["p50_ms"].is_number(), "the report has no first second");
        Ok(report)
    }

    pub(crate) async fn purchases(&self, sale: i64) -> anyhow::Result<u64> {
        let count = sqlx::query_scalar("SELECT count(*) FROM purchase_records WHERE sale_id = $1");
        let rows: i64 = count.bind(sale).fetch_one(&self.sql).await?;
        Ok(rows.unsigned_abs())
    }
}

impl Sale {
    /// Sells the whole stock to these buyers.
    pub(crate) async fn sell_out(&self, service: &Service, buyers: &[Buyer]) -> anyhow::Result<()> {
        for buyer in buyers {
            let url = format!("http://{}{}", service.process.address, self.path);
            let purchase = service.client.post(url).bearer_auth(&buyer.token);
            let answer = purchase.body(self.body.clone()).send().await?;
            ensure!(answer.status().as_u16() == 202, "a first buyer got {}", answer.text().await?);
        }
        Ok(())
    }
}
