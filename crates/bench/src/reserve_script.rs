//! `lua/reserve.lua` alone, by redis-benchmark: how many purchases per second Redis can decide.

use anyhow::{Context, ensure};
use redis::{Connection, cmd};
use serde_json::Value;
use tokio::process::Command;

use crate::series::Series;

const SCRIPT: &str = concat!(include_str!("../../../lua/sale_begin.lua"), include_str!("../../../lua/reserve.lua"));
/// Prefix of the keys of a run; nothing else uses it.
const TAG: &str = "bench:{bench}:";
/// The default limits of buyers, addresses and the sale, except that the last one never refuses.
const LIMITS: [[&str; 2]; 3] = [["5", "60000"], ["1200", "60000"], ["1000000000", "1000"]];
const STOCK: u64 = 1_000_000_000;

/// One kind of call.
pub struct Run {
    pub title: &'static str,
    pub name: &'static str,
    /// Units for sale; `None` means INCR, to compare with.
    stock: Option<u64>,
    buyers_a_call: u64,
    pipeline: u64,
    calls: u64,
}

const fn run(
    (name, title): (&'static str, &'static str),
    stock: Option<u64>,
    buyers_a_call: u64,
    pipeline: u64,
    calls: u64,
) -> Run {
    Run { title, name, stock, buyers_a_call, pipeline, calls }
}

const RUNS: [Run; 8] = [
    run(("incr", "INCR, to compare with"), None, 1, 1, 100_000),
    run(("incr_pipelined", "INCR, 16 in flight a connection"), None, 1, 16, 500_000),
    run(("reserve", "reserve, stock left"), Some(STOCK), 1, 1, 100_000),
    run(("reserve_pipelined", "reserve, stock left, 16 in flight"), Some(STOCK), 1, 16, 200_000),
    run(("reserve_batched", "reserve, stock left, 50 buyers a call"), Some(STOCK), 50, 1, 6_000),
    run(("refuse", "reserve, sold out"), Some(0), 1, 1, 100_000),
    run(("refuse_pipelined", "reserve, sold out, 16 in flight"), Some(0), 1, 16, 200_000),
    run(("refuse_batched", "reserve, sold out, 50 buyers a call"), Some(0), 50, 1, 6_000),
];

/// The script in an otherwise empty Redis that nothing else uses. The service loaded the script before it ended.
pub struct ReserveScript {
    redis: Connection,
    url: String,
    /// The hash of a sale, as the service wrote it.
    terms: Vec<(String, String)>,
}

impl ReserveScript {
    /// Copies a sale's hash, then empties Redis.
    pub fn prepare(url: &str, prefix: &str, sale: i64) -> anyhow::Result<Self> {
        let mut redis = redis::Client::open(url)?.get_connection()?;
        let terms = cmd("HGETALL").arg(format!("{prefix}{{{sale}}}:sale")).query(&mut redis)?;
        cmd("FLUSHALL").query::<()>(&mut redis)?;
        Ok(Self { redis, url: url.to_owned(), terms })
    }

    /// Measures all runs, round by round.
    pub async fn rounds(&mut self, rounds: usize) -> anyhow::Result<Vec<(&'static Run, Series)>> {
        let mut rates = vec![Vec::new(); RUNS.len()];
        for n in 1..=rounds {
            eprintln!("redis-benchmark: round {n} of {rounds}");
            for (rates, run) in rates.iter_mut().zip(&RUNS) {
                rates.push(self.measure(run).await?);
            }
        }
        Ok(RUNS.iter().zip(rates.into_iter().map(Series::of)).collect())
    }

    /// Measures buyers per second, or INCRs per second.
    async fn measure(&mut self, run: &Run) -> anyhow::Result<f64> {
        cmd("FLUSHALL").query::<()>(&mut self.redis)?;
        let sale_key = format!("{TAG}sale");
        if let Some(stock) = run.stock {
            cmd("HSET").arg(&sale_key).arg(&self.terms).arg("stock").arg(stock).query::<()>(&mut self.redis)?;
            let key = |name: &str| format!("{TAG}{name}");
            let mut rest = redis::pipe();
            for hash in ["tickets", "buyers", "passes", "loans"] {
                rest.cmd("HSET").arg(key(hash)).arg(&["#", ""]);
            }
            rest.cmd("ZADD").arg(key("unconfirmed")).arg(&["+inf", "#"]);
            rest.cmd("RPUSH").arg(key("holders")).arg("#").cmd("SADD").arg(key("waves")).arg("#");
            rest.query::<()>(&mut self.redis)?;
        }
        let mut benchmark = Command::new("redis-benchmark");
        // The largest range that redis-benchmark takes, so that two buyers hardly ever draw the same number.
        benchmark.args(["-u", &self.url, "--csv", "-c", "50", "-r", "2147483647"]);
        benchmark.args(["-n", &run.calls.to_string(), "-P", &run.pipeline.to_string()]);
        match run.stock {
            None => benchmark.args(["INCR", &format!("{TAG}counter")]),
            Some(_) => benchmark.args(self.call(run.buyers_a_call)?),
        };
        let done = benchmark.kill_on_drop(true).output().await.context("redis-benchmark")?;
        let output = String::from_utf8_lossy(&done.stdout);
        let rate = output.lines().last().and_then(|line| line.split("\",\"").nth(1)?.parse::<f64>().ok());
        let rate = rate.with_context(|| format!("redis-benchmark printed: {output}"))?;
        if let Some(stock) = run.stock {
            self.check(run, stock)?;
        }
        Ok(rate * run.buyers_a_call as f64)
    }

    /// The arguments of one call for this many new buyers.
    fn call(&self, buyers: u64) -> anyhow::Result<Vec<String>> {
        let term = |name| {
            let found = self.terms.iter().find(|(field, _)| field == name);
            found.map(|(_, value)| value.clone()).with_context(|| format!("the sale in Redis has no {name}"))
        };
        let keys = [
            "sale",
            "tickets",
            "buyers",
            "unconfirmed",
            "holders",
            "waves",
            "passes",
            "loans",
            "limit:buyer",
            "limit:address",
            "limit:sale",
        ];
        let mut call = vec!["EVALSHA".into(), redis::Script::new(SCRIPT).get_hash().to_owned(), keys.len().to_string()];
        call.extend(keys.map(|key| format!("{TAG}{key}")));
        // No holders are known, "sold out" is not remembered, the database's time is not known, no holders are asked for, the
        // default terms of lapsed holds. Then the three limits; each buyer asks for one unit, and there is no pass.
        call.extend([buyers.to_string(), term("epoch")?]);
        call.extend(["0", "0", "0", "0", "2", "600000", "bas"].map(str::to_owned));
        // Ids, users and addresses as long as real ones. redis-benchmark draws a number for each place that names one.
        let column = |value: &str| vec![value.to_owned(); buyers as usize];
        call.extend(column("01890000-0000-7000-8000-__rand_int__"));
        call.extend(column("b__rand_int__"));
        let [of_buyers, of_addresses, of_sale] = LIMITS.map(|limit| limit.map(str::to_owned));
        call.extend(of_buyers.into_iter().chain(of_addresses));
        call.extend(column("a__rand_int__"));
        call.extend(of_sale);
        Ok(call)
    }

    /// Checks that all buyers got a unit, or none. A few in a million drew the same number as another.
    fn check(&mut self, run: &Run, stock: u64) -> anyhow::Result<()> {
        let left: u64 = cmd("HGET").arg(format!("{TAG}sale")).arg("stock").query(&mut self.redis)?;
        let counted: u64 = cmd("HLEN").arg(format!("{TAG}limit:buyer")).query(&mut self.redis)?;
        let (sold, buyers) = (stock - left, run.calls * run.buyers_a_call);
        let about_all = |n: u64| n <= buyers && n + buyers / 1000 >= buyers;
        ensure!(stock == 0 || about_all(sold), "{}: {sold} units went to {buyers} buyers", run.name);
        ensure!(counted > 1, "{}: no buyer was counted", run.name);
        Ok(())
    }
}

pub fn json(measured: &[(&Run, Series)]) -> Value {
    measured.iter().map(|(run, rate)| (run.name.to_owned(), rate.json())).collect::<serde_json::Map<_, _>>().into()
}
