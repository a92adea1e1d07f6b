//! The figures of docs/speed.md, which describes the parts: `./dev bench [--json FILE] [--rounds N] [--seconds S] [--only PART]`.
//!
//! Each part is a module: `rush`, `cases` and `table` (the sale), `payments` (with `bank` and `payers`), `crowds`, `overload`, `million`. To
//! add a case of the sale, add a variant to `Case` and an arm to `Stage::play`.

mod arrivals;
mod bank;
mod cases;
mod crowds;
mod machine;
mod million;
mod overload;
mod payers;
mod payments;
mod processes;
mod rush;
mod series;
mod service;
mod settle;
mod table;
mod wrk;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Parser;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::process::Command;

use cases::{Case, Stage};
use processes::{Process, seckill};
use series::Table;
use service::Service;
use table::{Played, Sold};
use wrk::{CONNECTIONS, FEW_CONNECTIONS, RecordFile};

/// Buyers per second of load: more than any machine serves, so that no buyer comes twice in a round.
const BUYERS_A_SECOND: u64 = 120_000;
/// Buyers who make sales sold out, and take no part in the rounds.
const FIRST_BUYERS: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Rush,
    Sale,
    Money,
    Crowds,
    Overload,
    /// Takes many minutes, and runs only if it is named
    Million,
}

/// Measures the service and prints the tables; run by ./dev bench, which starts the servers
#[derive(Parser)]
struct Args {
    /// The `seckill` program to measure
    #[arg(long, value_name = "FILE")]
    program: PathBuf,
    /// The hello-world server to compare with
    #[arg(long, value_name = "FILE")]
    hello: PathBuf,
    /// Number of rounds; the million has three at most
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Seconds that each case is played in a round
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Measure only this part
    #[arg(long)]
    only: Option<Part>,
    /// Arrivals a second of the part million
    #[arg(long, value_name = "N", default_value_t = million::RATE, value_parser = clap::value_parser!(u64).range(3_000..=50_000))]
    rate: u64,
    /// Write all figures to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Args {
    fn has(&self, part: Part) -> bool {
        self.only.map_or(part != Part::Million, |only| only == part)
    }
}

/// The service that all parts measure, its servers, and the settings of the bench.
struct Setup {
    service: Service,
    /// The pids of Redis, PostgreSQL and RabbitMQ.
    servers: Vec<(&'static str, u32)>,
    sql: PgPool,
    logs: PathBuf,
    rounds: u64,
    seconds: u64,
}

/// The tables, and the same figures as JSON.
struct Report {
    text: String,
    json: Value,
}

impl Report {
    fn add(&mut self, name: &str, table: &Table) {
        self.text += &table.markdown();
        self.json[name] = table.json();
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    processes::set_program(&args.program)?;
    let report = tokio::runtime::Runtime::new()?.block_on(measure(&args))?;
    print!("{}", report.text);
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&report.json)?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

async fn measure(args: &Args) -> anyhow::Result<Report> {
    ensure!(
        std::env::var("DEV_SET").is_ok_and(|set| set == "bench"),
        "run this by ./dev bench, which starts the servers"
    );
    let logs = PathBuf::from(".dev/log/bench");
    std::fs::create_dir_all(&logs)?;
    let sql = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    seckill(&["migrate"]).await?;
    let service = Service::start(&logs.join("serve.log"), &[], sql.clone()).await?;
    let servers = processes::servers().await?;
    let machine = machine::Machine::read(&sql).await?;
    let setup = Setup { service, servers, sql, logs, rounds: args.rounds, seconds: args.seconds };
    let mut report = Report { text: format!("{machine}.\n\n"), json: json!({}) };

    if args.has(Part::Rush) {
        report.add("rush", &rush::measure(&setup).await?);
    }
    if args.has(Part::Crowds) || args.has(Part::Overload) {
        let buyers = crowds::readers(args.seconds).max(overload::CROWD_MAX as u64);
        let buyers = RecordFile::write(&service::buyers(buyers, "r").await?, PathBuf::from(".dev/bench/readers"))?;
        if args.has(Part::Crowds) {
            report.add("crowds", &crowds::measure(&setup, &buyers).await?);
        }
        if args.has(Part::Overload) {
            report.add("overload", &overload::measure(&setup, &buyers).await?);
        }
    }
    if args.has(Part::Sale) || args.has(Part::Money) {
        let stage = set_stage(&setup, &args.hello).await?;
        if args.has(Part::Sale) {
            let sold = sell(&setup, &stage).await?;
            report.add("sale", &sold.table());
            report.json["ratios"] = sold.ratios();
        }
        if args.has(Part::Money) {
            report.add("payments", &payments::measure(&setup, stage).await?);
        }
    }
    if args.has(Part::Million) {
        report.add("million", &million::measure(&setup, args.rate).await?);
    }
    report.json["machine"] = machine.json();
    Ok(report)
}

async fn sell(setup: &Setup, stage: &Stage<'_>) -> anyhow::Result<Sold> {
    let Setup { sql, servers, rounds, seconds, .. } = setup;
    play(stage, 1, "warm-up").await?;
    let mut played = Vec::new();
    for n in 1..=*rounds {
        played.push(play(stage, *seconds, &format!("round {n} of {rounds}")).await?);
    }
    eprintln!("the workers settle the orders");
    let settled = settle::settle(sql, servers, &setup.logs.join("work.log")).await?;
    settle::audit(&[]).await?;
    Ok(Sold { seconds: *seconds, rounds: played, settled })
}

/// Starts the servers that are compared, and issues the buyers' tokens.
async fn set_stage<'a>(setup: &'a Setup, hello: &Path) -> anyhow::Result<Stage<'a>> {
    let Setup { service, sql, logs, .. } = setup;
    eprintln!("issuing the buyers' tokens");
    let mut first = service::buyers(setup.seconds * BUYERS_A_SECOND + FIRST_BUYERS as u64, "b").await?;
    let buyers = first.split_off(FIRST_BUYERS);
    let records = RecordFile::write(&buyers, PathBuf::from(".dev/bench/buyers"))?;
    let memory_off = [("SECKILL_PURCHASE__SOLD_OUT_MEMORY_MS", "0")];
    let no_memory = Service::start(&logs.join("no_memory.log"), &memory_off, sql.clone()).await?;
    let command = |address: SocketAddr| {
        let mut hello = Command::new(hello);
        hello.arg(address.to_string());
        Ok(hello)
    };
    let hello = Process::start(&logs.join("hello.log"), command)?.ready(&service.client, "/").await?;
    // The broker takes no part in answering.
    let behind = setup.servers.iter().copied().filter(|(name, _)| *name != "rabbitmq").collect();
    Ok(Stage { hello, service, no_memory, behind, buyers, records, first })
}

/// Plays all cases, each with few connections and then with many.
async fn play(stage: &Stage<'_>, seconds: u64, what: &str) -> anyhow::Result<Played> {
    let mut round = Played::new();
    let connections = [FEW_CONNECTIONS, CONNECTIONS];
    for (case, connections) in Case::ALL.into_iter().flat_map(|case| connections.map(|connections| (case, connections)))
    {
        let played = stage.play(case, connections, seconds).await?;
        let (rate, cpu) = (series::thousands(played.seen.per_second()), played.cpu_us.list());
        eprintln!("{what}: {}, {connections} connections: {rate} a second; µs of CPU each: {cpu}", case.title());
        round.insert((case, connections), played);
    }
    Ok(round)
}
