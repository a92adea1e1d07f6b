//! The performance table of the README: `./dev bench [--json FILE] [--rounds N] [--seconds S]
//! [--only sale|flow|money]`.
//!
//! Each round plays every case (`cases.rs`) once, so that a ratio compares what was measured within seconds. `hello.rs` is
//! what all are compared with; `wrk.rs` and `buyers.lua` are the load, of one make for all. Every limit stays on: buyers and
//! addresses are many instead. A case whose answers were not what it says fails the bench. Then the workers settle what was
//! sold (`settle.rs`), the auditor looks at it, and redis-benchmark asks the script alone (`script.rs`).
//!
//! Flow control is a part of its own (`flow.rs`): permits over HTTP by callers in parallel (`callers.rs`), the limiters'
//! scripts alone (`limiters.rs`), and a public limiter server asked in the same rounds (`throttlecrab.rs`).
//!
//! Payments are the third part (`money.rs`): purchases without and with them, in turns. `bank.rs` is where they go,
//! `payers.rs` who makes them, `beside.rs` what was found.
//!
//! A new case is a line in `Case` and an arm in `Stage::play`.

mod bank;
mod beside;
mod callers;
mod cases;
mod flow;
mod hello;
mod limiters;
mod machine;
mod medians;
mod money;
mod payers;
mod processes;
mod script;
mod service;
mod settle;
mod table;
mod throttlecrab;
mod wrk;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Parser;
use sqlx::PgPool;
use tokio::process::Command;

use cases::{Case, Stage};
use processes::{Process, seckill};
use script::Bare;
use service::Service;
use table::{Found, Sold};
use throttlecrab::Throttlecrab;
use wrk::Buyers;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Redis's own rounds are short, and steadier.
const SCRIPT_ROUNDS: usize = 3;
/// Buyers for a second of load, so that no round meets one twice.
const BUYERS_A_SECOND: u64 = 120_000;
/// Lines of a user, a blank, and a token.
pub const TOKENS: &str = ".dev/bench/tokens";
/// Buyers who have bought in the sale that is sold out, and are not heard of again.
const FIRST_BUYERS: u64 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Sale,
    Flow,
    Money,
}

#[derive(Parser)]
struct Args {
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// How long each case is played in a round
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// One part instead of all
    #[arg(long)]
    only: Option<Part>,
    /// Where to write everything that was found
    #[arg(long)]
    json: Option<PathBuf>,
    /// Be the hello-world server
    #[arg(long, hide = true)]
    hello: Option<SocketAddr>,
    /// Cargo says so to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(address) = args.hello {
        return hello::serve(address);
    }
    let found = tokio::runtime::Runtime::new()?.block_on(measure(&args))?;
    print!("{}", found.markdown());
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&found.json())?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

async fn measure(args: &Args) -> anyhow::Result<Found> {
    ensure!(std::env::var("DEV_SET").is_ok_and(|set| set == "bench"), "this is run by ./dev bench");
    let logs = PathBuf::from(".dev/log/bench");
    std::fs::create_dir_all(&logs)?;
    let sql = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    seckill(&["migrate"]).await?;
    let (redis, asked) = (std::env::var("REDIS_URL")?, |part| args.only.is_none_or(|only| only == part));
    let mut service = Service::start(&logs.join("serve.log"), &[], sql.clone()).await?;
    let servers = processes::servers().await?;
    // The broker has no part in answers.
    let behind: Vec<_> = servers.iter().copied().filter(|(name, _)| *name != "rabbitmq").collect();
    let (mut sold, mut money) = (None, None);
    if asked(Part::Sale) || asked(Part::Money) {
        let stage = set(&service, &behind, &sql, &logs, args.seconds).await?;
        if asked(Part::Sale) {
            sold = Some(sell(&stage, &servers, &sql, &logs, args).await?);
        }
        if asked(Part::Money) {
            money = Some(money::measure(stage, &servers, &sql, &logs, args.rounds, args.seconds).await?);
        }
    }
    let other = if asked(Part::Flow) { Throttlecrab::start(&logs).await? } else { None };
    let mut flow = match asked(Part::Flow) {
        true => Some(flow::over_http(&service, &behind, other.as_ref(), &redis, args.seconds).await?),
        false => None,
    };
    let machine = machine::Machine::look(&sql).await?;

    // Redis to itself, and to redis-benchmark.
    service.process.kill().await?;
    if let Some(sold) = &mut sold {
        let prefix = std::env::var("SECKILL_REDIS__PREFIX").unwrap_or_else(|_| "sk:".into());
        sold.script = Bare::take(&redis, &prefix, sold.sold_out)?.rounds(SCRIPT_ROUNDS).await?;
    }
    if let Some(flow) = &mut flow {
        flow.ask_redis(&redis, other.as_ref()).await?;
    }
    Ok(Found { machine, sold, flow, money })
}

async fn sell(
    stage: &Stage<'_>,
    servers: &[(&'static str, u32)],
    sql: &PgPool,
    logs: &Path,
    args: &Args,
) -> anyhow::Result<Sold> {
    play(stage, 1, "warm-up").await?;
    let mut rounds = Vec::new();
    for n in 1..=args.rounds {
        rounds.push(play(stage, args.seconds, &format!("round {n} of {}", args.rounds)).await?);
    }
    eprintln!("the workers settle what was sold");
    let settled = settle::settle(sql, servers, &logs.join("work.log")).await?;
    settle::audit(&[]).await?;
    Ok(Sold { seconds: args.seconds, rounds, settled, sold_out: stage.sold_out.id, script: Vec::new() })
}

/// Starts everything, and sells one sale out.
async fn set<'a>(
    service: &'a Service,
    behind: &[(&'static str, u32)],
    sql: &PgPool,
    logs: &Path,
    seconds: u64,
) -> anyhow::Result<Stage<'a>> {
    eprintln!("making buyers");
    let count = (seconds * BUYERS_A_SECOND + FIRST_BUYERS).to_string();
    seckill(&["token", "--count", &count, "--prefix", "b", "--out", TOKENS]).await?;
    let tokens = std::fs::read_to_string(TOKENS)?;
    let tokens: Vec<&str> = tokens.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    let (first, others) = tokens.split_at_checked(FIRST_BUYERS as usize).context("too few tokens")?;

    let memory_off = [("SECKILL_PURCHASE__SOLD_OUT_MEMORY_MS", "0")];
    let forgetful = Service::start(&logs.join("forgetful.log"), &memory_off, sql.clone()).await?;
    let program = std::env::current_exe()?;
    let hello = |address: SocketAddr| {
        let mut hello = Command::new(program);
        hello.args(["--hello", &address.to_string()]);
        hello
    };
    let hello = Process::start(&logs.join("hello.log"), hello)?.answers(&service.client, "/").await?;
    let sold_out = service.sale(FIRST_BUYERS.cast_signed()).await?;
    sold_out.sell_out(service, first).await?;
    let buyers = Buyers::write(others, PathBuf::from(".dev/bench/buyers"))?;
    Ok(Stage { hello, service, forgetful, behind: behind.to_vec(), buyers, sold_out })
}

async fn play(stage: &Stage<'_>, seconds: u64, what: &str) -> anyhow::Result<BTreeMap<&'static str, cases::Round>> {
    let mut round = BTreeMap::new();
    for case in Case::ALL {
        let played = stage.play(case, seconds).await?;
        let cpu: Vec<String> = played.cpu_us.iter().map(|(name, us)| format!("{name} {us:.1}")).collect();
        let (rate, cpu) = (medians::thousands(played.seen.per_second()), cpu.join(", "));
        eprintln!("{what}: {}: {rate} a second; µs of CPU each: {cpu}", case.title());
        round.insert(case.name(), played);
    }
    Ok(round)
}
