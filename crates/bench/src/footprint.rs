//! Bytes a buyer: in Redis by kind of key, and in PostgreSQL by table.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::Context;
use redis::{Connection, cmd};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::time::sleep;

use crate::cases::{PLENTY, Stage};
use crate::series::thousands;
use crate::wrk::CONNECTIONS;

/// Long enough for some ten thousand buyers.
const SECONDS: u64 = 1;
/// The longest that what was promised needs to be confirmed in Redis, which the last requests of wrk did not wait for.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);
/// The counts of buyers and addresses are for windows of a minute. The buyers come when at least this much of one is left.
const WINDOW_S: u64 = 60;
const LEFT_S: u64 = 10;
/// Kinds of keys and tables with fewer bytes a buyer are left out of the tables.
const LEAST: f64 = 0.5;

/// Bytes by name.
pub type Sizes = BTreeMap<String, f64>;

/// What buyers leave in Redis, by kind of key.
pub struct InRedis {
    winners: u64,
    of_winners: Sizes,
    refused: u64,
    of_refused: Sizes,
}

pub struct Footprint {
    pub in_redis: InRedis,
    /// The tables before the purchases, after the last 202, and when all orders were settled.
    pub before: Sizes,
    pub promised: Sizes,
    pub settled: Sizes,
    /// Orders that were made in between.
    pub orders: i64,
}

/// Lets many buyers buy in a sale, and others ask in vain in an empty one, and looks at what they leave in Redis.
pub async fn in_redis(stage: &Stage<'_>, url: &str, prefix: &str) -> anyhow::Result<InRedis> {
    let mut redis = redis::Client::open(url)?.get_connection()?;
    let (second, _): (u64, u64) = cmd("TIME").query(&mut redis)?;
    if second % WINDOW_S > WINDOW_S - LEFT_S {
        sleep(Duration::from_secs(WINDOW_S - second % WINDOW_S)).await;
    }
    let sale = stage.service.sale(PLENTY).await?;
    stage.load(&stage.service.process, &sale, CONNECTIONS, SECONDS).await?;
    let key = |sale: i64, kind: &str| format!("{prefix}{{{sale}}}:{kind}");
    let begun = Instant::now();
    // A hold of an unknown commit stays unconfirmed until the reconciler looks, which does not run: then the table shows it.
    let winners = loop {
        let entries: u64 = cmd("HLEN").arg(key(sale.id, "tickets")).query(&mut redis)?;
        let tickets = entries - 1; // '#' is none
        let unconfirmed: u64 =
            cmd("ZCOUNT").arg(key(sale.id, "unconfirmed")).arg(&["-inf", "(+inf"]).query(&mut redis)?;
        let is_confirmed = unconfirmed == 0 && stage.service.purchases(sale.id).await? == tickets;
        if is_confirmed || begun.elapsed() > CONFIRMED_WITHIN {
            break tickets;
        }
        sleep(Duration::from_millis(50)).await;
    };
    let of_winners = keys(&mut redis, prefix, sale.id, winners)?;

    let empty = stage.no_memory.sale(0).await?;
    let round = stage.load(&stage.no_memory.process, &empty, CONNECTIONS, SECONDS).await?;
    // Each buyer is counted once, beside the window itself.
    let counted: u64 = cmd("HLEN").arg(key(empty.id, "limit:buyer")).query(&mut redis)?;
    let refused = if counted > 1 { counted - 1 } else { round.seen.requests };
    let of_refused = keys(&mut redis, prefix, empty.id, refused)?;
    Ok(InRedis { winners, of_winners, refused, of_refused })
}

/// Bytes a buyer of a sale's keys, by what follows the sale in their names.
fn keys(redis: &mut Connection, prefix: &str, sale: i64, buyers: u64) -> anyhow::Result<Sizes> {
    let (mut sizes, mut cursor) = (Sizes::new(), 0u64);
    loop {
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{prefix}{{{sale}*")).arg("COUNT").arg(1000);
        let (next, found): (u64, Vec<String>) = scan.query(redis)?;
        for key in found {
            let Some(kind) = kind(&key, prefix, sale) else { continue };
            // With all their values: MEMORY USAGE would look at five of them, and guess.
            let bytes: Option<u64> = cmd("MEMORY").arg("USAGE").arg(&key).arg("SAMPLES").arg(0).query(redis)?;
            // A scan may show a key twice.
            sizes.insert(kind.to_owned(), bytes.unwrap_or_default() as f64 / buyers.max(1) as f64);
        }
        if next == 0 {
            return Ok(sizes);
        }
        cursor = next;
    }
}

/// What follows the sale in the name of one of its keys, such as `tickets`; with the shard, where there are several.
fn kind<'a>(key: &'a str, prefix: &str, sale: i64) -> Option<&'a str> {
    let rest = key.strip_prefix(&format!("{prefix}{{{sale}"))?;
    rest.strip_prefix("}:").or_else(|| rest.strip_prefix('.'))
}

/// The tables with their indexes, in bytes.
pub async fn tables(sql: &PgPool) -> anyhow::Result<Sizes> {
    let sizes = sqlx::query_as(
        "SELECT relname::text, pg_total_relation_size(oid) FROM pg_class
         WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace",
    );
    let sizes: Vec<(String, i64)> = sizes.fetch_all(sql).await?;
    Ok(sizes.into_iter().map(|(name, bytes)| (name, bytes as f64)).collect())
}

pub async fn orders(sql: &PgPool) -> anyhow::Result<i64> {
    sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(sql).await.context("orders")
}

impl Footprint {
    /// Bytes an order by which the tables have grown until then.
    fn grown(&self, until: &Sizes) -> Sizes {
        let grown = |(name, bytes): (&String, &f64)| {
            let before = self.before.get(name).copied().unwrap_or_default();
            (name.clone(), (bytes - before) / self.orders.max(1) as f64)
        };
        until.iter().map(grown).collect()
    }

    pub fn markdown(&self, text: &mut String) {
        let InRedis { winners, of_winners, refused, of_refused } = &self.in_redis;
        let _ = writeln!(
            text,
            "| bytes in Redis, by kind of key | a winner (of {}) | one whom Redis told \"sold out\" (of {}) |\n|---|---|---|",
            thousands(*winners as f64),
            thousands(*refused as f64)
        );
        rows(text, of_winners, of_refused);
        let _ = writeln!(
            text,
            "\n| bytes in PostgreSQL, by table with its indexes | an order, with the 202 | settled (of {}) |\n|---|---|---|",
            thousands(self.orders as f64)
        );
        rows(text, &self.grown(&self.promised), &self.grown(&self.settled));
        text.push_str(
            "\nCounts of limits are kept for two minutes. A table's bytes are those of its files, with the dead rows that wait for \
             a vacuum.\n\n",
        );
    }

    pub fn json(&self) -> Value {
        let InRedis { winners, of_winners, refused, of_refused } = &self.in_redis;
        json!({
            "redis": { "winners": winners, "of_winners": of_winners, "refused": refused, "of_refused": of_refused },
            "postgres": {
                "orders": self.orders, "promised": self.grown(&self.promised), "settled": self.grown(&self.settled),
            },
        })
    }
}

/// A row for each name, those with the most bytes first, and their sums.
fn rows(text: &mut String, first: &Sizes, second: &Sizes) {
    let of = |sizes: &Sizes, name: &str| sizes.get(name).copied().unwrap_or_default();
    let mut names: Vec<&String> = first.keys().chain(second.keys()).collect();
    let most = |name: &str| of(first, name).max(of(second, name));
    names.sort_by(|a, b| most(b).total_cmp(&most(a)).then(a.cmp(b)));
    names.dedup();
    for name in names.into_iter().filter(|name| most(name) >= LEAST) {
        let _ = writeln!(text, "| {name} | {:.0} | {:.0} |", of(first, name), of(second, name));
    }
    let [first, second] = [first, second].map(|sizes| sizes.values().sum::<f64>());
    let _ = writeln!(text, "| all | {first:.0} | {second:.0} |");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sale's keys are told from those of a sale whose id begins alike.
    #[test]
    fn a_key_has_a_kind() {
        assert_eq!(kind("sk:{12}:limit:buyer", "sk:", 12), Some("limit:buyer"));
        assert_eq!(kind("sk:{12.1}:tickets", "sk:", 12), Some("1}:tickets"));
        assert_eq!(kind("sk:{123}:tickets", "sk:", 12), None);
        assert_eq!(kind("sk:doc:{12}", "sk:", 12), None);
    }

    /// Every name has one row, the largest first, and small ones are only in the sum.
    #[test]
    fn rows_are_sorted_and_summed() {
        let sizes = |pairs: &[(&str, f64)]| pairs.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
        let mut text = String::new();
        rows(&mut text, &sizes(&[("a", 10.0), ("b", 100.0)]), &sizes(&[("a", 20.0), ("c", 0.1)]));
        assert_eq!(text, "| b | 100 | 0 |\n| a | 10 | 20 |\n| all | 110 | 20 |\n");
    }
}
