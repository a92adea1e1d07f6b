//! The performance tables of docs/speed.md: `./dev bench [--json FILE] [--rounds N] [--seconds S] [--only PART]`.
//!
//! The rush (`rush.rs`): the README's, with everything running.
//!
//! The sale (`cases.rs`): each round plays every case once, so that a ratio compares figures measured within seconds of each
//! other. The package seckill-bench-hello is the server that all are compared with. wrk (`wrk.rs`, `buyers.lua`) sends the
//! same kind of request to all. All limits stay on; there are many buyers and addresses instead. The bench fails if a case
//! gets any answer but its own. Then the workers settle the orders (`settle.rs`), the audit checks them, and
//! redis-benchmark calls the script alone (`reserve_script.rs`). What buyers leave behind is in `footprint.rs`.
//!
//! Flow control (`flow.rs`): permits over HTTP by parallel callers (`permits.rs`), the limiters' scripts alone
//! (`limiter_scripts.rs`), and a public limiter server in the same rounds (`throttlecrab.rs`).
//!
//! Payments (`payments.rs`): purchases without and with payments, in turns. `bank.rs` receives the payments, `payers.rs`
//! begins them, `payments_table.rs` prints the result.
//!
//! Crowds (`crowds.rs`): winners beside readers, and a rush beside workers.
//!
//! Gateway (`gateway.rs`): a permit for each request, asked for by nginx.
//!
//! Challenges (`challenges.rs`): a rush beside ten thousand requests a second for challenges.
//!
//! Watchers (`watchers.rs`): a rush without and with 2,000 streams of events.
//!
//! Overload (`overload.rs`): up to five times the arrivals that can be served, by a generator of its own (`arrivals.rs`).
//!
//! Million (`million.rs`), which is played only where it is asked for: a sale to a million buyers, and smaller ones.
//!
//! Scale (`scale`): 1 to 10,000 sales, 1 to 4 instances, 1 to 64 shards, and what planned sales cost while nobody asks for them. It takes
//! many minutes and leaves thousands of sales behind, so it runs only when it is named. `idle` is that last measurement alone.
//!
//! To add a case, add a variant to `Case` and an arm to `Stage::play`.

mod arrivals;
mod bank;
mod cases;
mod challenges;
mod chart;
mod crowds;
mod flow;
mod footprint;
mod gateway;
mod limiter_scripts;
mod live_pages;
mod machine;
mod million;
mod overload;
mod payers;
mod payments;
mod payments_table;
mod permits;
mod processes;
mod reserve_script;
mod rush;
mod scale;
mod series;
mod service;
mod settle;
mod table;
mod throttlecrab;
mod timeline;
mod watchers;
mod wrk;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Parser;
use sqlx::PgPool;
use tokio::process::Command;

use cases::{Case, Stage};
use footprint::Footprint;
use live_pages::Managers;
use processes::{Process, seckill};
use reserve_script::ReserveScript;
use service::Service;
use table::{Played, Results, Sold};
use throttlecrab::Throttlecrab;
use wrk::{Buyers, CONNECTIONS, FEW_CONNECTIONS};

/// Rounds of redis-benchmark, which are short and vary little.
const SCRIPT_ROUNDS: usize = 3;
/// Buyers per second of load: more than any machine serves, so that no buyer comes twice in a round.
const BUYERS_A_SECOND: u64 = 120_000;
/// File of the tokens, one line each: user, space, token.
pub const TOKENS: &str = ".dev/bench/tokens";
/// Buyers who buy what is to be sold out, and take no part in the rounds.
const FIRST_BUYERS: u64 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Rush,
    Sale,
    Flow,
    Money,
    Crowds,
    Challenges,
    Watchers,
    Overload,
    Gateway,
    /// A million buyers; only if it is named
    Million,
    /// Only when it is named: it takes many minutes
    Scale,
    /// The part of scale that asks nothing; only if it is named
    Idle,
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
    /// Number of rounds; the rush has three at least, and the million three at most
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

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    processes::set_program(&args.program)?;
    let results = tokio::runtime::Runtime::new()?.block_on(measure(&args))?;
    print!("{}", results.markdown());
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&results.json())?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

async fn measure(args: &Args) -> anyhow::Result<Results> {
    ensure!(
        std::env::var("DEV_SET").is_ok_and(|set| set == "bench"),
        "run this by ./dev bench, which starts the servers"
    );
    let logs = PathBuf::from(".dev/log/bench");
    std::fs::create_dir_all(&logs)?;
    let sql = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    seckill(&["migrate"]).await?;
    let redis = std::env::var("REDIS_URL")?;
    let selected = |part| args.only.is_none_or(|only| only == part);
    let mut service = Service::start(&logs.join("serve.log"), &[], sql.clone()).await?;
    let servers = processes::servers().await?;
    // The broker takes no part in answering.
    let behind: Vec<_> = servers.iter().copied().filter(|(name, _)| *name != "rabbitmq").collect();
    let (mut rush, mut million) = (None, None);
    if selected(Part::Rush) {
        rush = Some(rush::measure(&service, &servers, &sql, &logs, args.rounds).await?);
    }
    if args.only == Some(Part::Million) {
        million = Some(million::measure(&service, &servers, &sql, &logs, args.rounds, args.rate).await?);
    }
    let (mut crowds, mut challenges, mut overload) = (None, None, None);
    if selected(Part::Crowds) || selected(Part::Challenges) || selected(Part::Overload) {
        let readers = (args.seconds * 20_000).max(challenges::buyers(args.seconds));
        let buyers = single_buyers(readers.max(overload::CROWD_MAX as u64)).await?;
        if selected(Part::Crowds) {
            crowds = Some(crowds::measure(&service, &buyers, &sql, &logs, args.rounds, args.seconds).await?);
        }
        if selected(Part::Challenges) {
            let (rounds, seconds) = (args.rounds, args.seconds);
            challenges = Some(challenges::measure(&service, &buyers, &sql, &logs, rounds, seconds).await?);
        }
        if selected(Part::Overload) {
            overload = Some(overload::measure(&service, &buyers, &sql, &redis, &logs, args.seconds).await?);
        }
    }
    let mut watchers = None;
    if selected(Part::Watchers) {
        single_buyers(args.rounds * watchers::BUYERS_A_ROUND as u64).await?;
        let tokens = std::fs::read_to_string(TOKENS)?;
        let tokens: Vec<&str> = tokens.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
        watchers = Some(watchers::measure(&service, &tokens, &sql, &logs, args.rounds, args.seconds).await?);
    }
    let (mut sold, mut payments) = (None, None);
    if selected(Part::Sale) || selected(Part::Money) {
        let stage = set_stage(&service, &behind, &sql, &logs, args).await?;
        if selected(Part::Sale) {
            sold = Some(sell(&stage, &servers, &sql, &logs, args).await?);
        }
        if selected(Part::Money) {
            payments = Some(payments::measure(stage, &servers, &sql, &logs, args.rounds, args.seconds).await?);
        }
    }
    let other = if selected(Part::Flow) { Throttlecrab::start(&logs).await? } else { None };
    let mut flow = match selected(Part::Flow) {
        true => Some(flow::over_http(&service, &behind, other.as_ref(), &redis, args.seconds).await?),
        false => None,
    };
    let scale = match args.only {
        Some(Part::Scale) => {
            let buyers = single_buyers(scale::BUYERS).await?;
            Some(scale::measure(&service, &buyers, &servers, &sql, &logs, args.rounds, args.seconds).await?)
        }
        _ => None,
    };
    let idle = match args.only {
        Some(Part::Idle) => Some(scale::idle(&service, &servers, &sql, &logs, args.rounds).await?),
        _ => None,
    };
    let gateway = match selected(Part::Gateway) {
        true => Some(gateway::measure(&service, &behind, &args.hello, &logs, args.rounds, args.seconds).await?),
        false => None,
    };
    let machine = machine::Machine::read(&sql).await?;

    // From here on only redis-benchmark uses Redis.
    service.process.kill().await?;
    if let Some(sold) = &mut sold {
        sold.script = ReserveScript::prepare(&redis, &redis_prefix(), sold.sold_out)?.rounds(SCRIPT_ROUNDS).await?;
    }
    if let Some(flow) = &mut flow {
        flow.measure_scripts(&redis, other.as_ref()).await?;
    }
    Ok(Results {
        machine,
        rush,
        sold,
        flow,
        gateway,
        payments,
        crowds,
        challenges,
        watchers,
        overload,
        million,
        scale,
        idle,
    })
}

/// The prefix of the service's keys.
fn redis_prefix() -> String {
    std::env::var("SECKILL_REDIS__PREFIX").unwrap_or_else(|_| "sk:".into())
}

/// So many buyers, each with a token.
async fn single_buyers(count: u64) -> anyhow::Result<Buyers> {
    seckill(&["token", "--count", &count.to_string(), "--prefix", "r", "--out", TOKENS]).await?;
    let tokens = std::fs::read_to_string(TOKENS)?;
    let tokens: Vec<&str> = tokens.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    Buyers::write(&tokens, PathBuf::from(".dev/bench/readers"))
}

async fn sell(
    stage: &Stage<'_>,
    servers: &[(&'static str, u32)],
    sql: &PgPool,
    logs: &Path,
    args: &Args,
) -> anyhow::Result<Sold> {
    let (before, orders_before) = (footprint::tables(sql).await?, footprint::orders(sql).await?);
    eprintln!("measuring the bytes of a buyer in Redis");
    let in_redis = footprint::in_redis(stage, &std::env::var("REDIS_URL")?, &redis_prefix()).await?;
    play(stage, 1, "warm-up").await?;
    let mut rounds = Vec::new();
    for n in 1..=args.rounds {
        rounds.push(play(stage, args.seconds, &format!("round {n} of {}", args.rounds)).await?);
    }
    let promised = footprint::tables(sql).await?;
    eprintln!("the workers settle the orders");
    let settled = settle::settle(sql, servers, &logs.join("work.log")).await?;
    let orders = footprint::orders(sql).await? - orders_before;
    let footprint = Footprint { in_redis, before, promised, settled: footprint::tables(sql).await?, orders };
    settle::audit(&[]).await?;
    Ok(Sold { seconds: args.seconds, rounds, settled, footprint, sold_out: stage.sold_out.id, script: Vec::new() })
}

/// Starts the servers that are compared, and sells one sale out.
async fn set_stage<'a>(
    service: &'a Service,
    behind: &[(&'static str, u32)],
    sql: &PgPool,
    logs: &Path,
    args: &Args,
) -> anyhow::Result<Stage<'a>> {
    eprintln!("issuing the buyers' tokens");
    let count = (args.seconds * BUYERS_A_SECOND + FIRST_BUYERS).to_string();
    seckill(&["token", "--count", &count, "--prefix", "b", "--out", TOKENS]).await?;
    let tokens = std::fs::read_to_string(TOKENS)?;
    let tokens: Vec<&str> = tokens.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    let (first, others) = tokens.split_at_checked(FIRST_BUYERS as usize).context("too few tokens")?;

    let memory_off = [("SECKILL_PURCHASE__SOLD_OUT_MEMORY_MS", "0")];
    let no_memory = Service::start(&logs.join("no_memory.log"), &memory_off, sql.clone()).await?;
    let hello = |address: SocketAddr| {
        let mut hello = Command::new(&args.hello);
        hello.arg(address.to_string());
        Ok(hello)
    };
    let hello = Process::start(&logs.join("hello.log"), hello)?.ready(&service.client, "/").await?;
    let first: Vec<String> = first.iter().map(|token| (*token).to_owned()).collect();
    let sold_out = service.sale(FIRST_BUYERS.cast_signed()).await?;
    sold_out.sell_out(service, &first).await?;
    let buyers = Buyers::write(others, PathBuf::from(".dev/bench/buyers"))?;
    let managers = Managers::sign_in(service).await?;
    Ok(Stage { hello, service, no_memory, behind: behind.to_vec(), buyers, managers, first, sold_out })
}

/// Plays all cases, each with few connections and then with many.
async fn play(stage: &Stage<'_>, seconds: u64, what: &str) -> anyhow::Result<Played> {
    let mut round = Played::new();
    let connections = [FEW_CONNECTIONS, CONNECTIONS];
    for (case, connections) in Case::ALL.into_iter().flat_map(|case| connections.map(|connections| (case, connections)))
    {
        let played = stage.play(case, connections, seconds).await?;
        let cpu: Vec<String> = played.cpu_us.iter().map(|(name, us)| format!("{name} {us:.1}")).collect();
        let (rate, cpu) = (series::thousands(played.seen.per_second()), cpu.join(", "));
        eprintln!("{what}: {}, {connections} connections: {rate} a second; µs of CPU each: {cpu}", case.title());
        round.insert((case.name(), connections), played);
    }
    Ok(round)
}
