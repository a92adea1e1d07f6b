//! The fault suite: injects faults into a whole system during a rush, on real servers, and ends every run in an audit.
//!
//! `./dev test --faults [--only F5] [--seed N]` starts the servers (the set `faults`) and this runner. A run is one scenario with one seed.
//! It sets up its own system (database, prefixes, processes) and five sales. It starts a rush at one of them, sends a few buyers to the
//! others, and injects the fault at a random moment. Then it restarts the killed processes, waits for rest, runs `seckill audit`, sells the
//! last units, and checks the history of all calls against the end state. It prints one line.
//!
//! Reading order: `servers` and `service` start and kill processes, `world` sets up a system, `rush` is the crowd, `history` checks the
//! answers, `run` is the course of every scenario; then the scenarios by theme. docs/protocol.md lists the faults.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a scenario that cannot go on must fail

mod changed_sale;
mod dead_letters;
mod history;
mod named_places;
mod process_deaths;
mod random_kills;
mod redis_forgets;
mod run;
mod run_summary;
mod rush;
mod server_outages;
mod servers;
mod service;
mod standby_promoted;
mod tcp_forwarder;
mod world;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;

use run_summary::RunSummary;
use servers::Servers;

#[derive(Clone)]
pub struct Options {
    pub servers: Arc<Servers>,
    pub seed: u64,
    pub rounds: u64,
    pub place: Option<String>,
    /// The minimum number of shards of the sale.
    pub shards: u8,
}

#[derive(Parser)]
#[command(name = "faults", about = "The fault suite")]
struct Args {
    /// Run only these scenarios; may be given several times
    #[arg(long)]
    only: Vec<String>,
    /// Run only this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Run the seeds 1 to N
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Rounds of kill9
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Run only this place of `places`, such as relay.published
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(seckill_runtime::failpoint::PLACES))]
    place: Option<String>,
    /// Divide the stock of each sale into this many shards, 1 to 64 (protocol, rule 15)
    #[arg(long, default_value_t = 1)]
    shards: u8,
    /// List the scenarios and end
    #[arg(long)]
    list: bool,
}

/// The name of each scenario, and the fault that it injects.
const SCENARIOS: [(&str, &str); 17] = [
    ("F1", "serve aborted between the Redis decrement and the outbox insert"),
    ("F5", "Redis killed, the end of its AOF cut off"),
    ("F6", "a replica detached, selling goes on, master killed, replica promoted"),
    ("F8", "backends killed in mid-commit, then PostgreSQL restarted"),
    ("F15", "Redis at maxmemory, then a disk or memory alarm at the broker"),
    ("F21", "SIGTERM under load"),
    ("F23", "the dead-letter queue full, then deleted"),
    ("F24", "1,000 sales planned, one of them impossible to refill; Redis restarted, empty or from its AOF"),
    ("F32", "four serve and two work behind nginx, one of each killed"),
    ("F33", "PostgreSQL's primary killed, its synchronous standby promoted"),
    ("F34", "PostgreSQL's primary killed, a standby promoted that has missed commits"),
    ("F35", "the node of three of RabbitMQ killed that leads all queues"),
    ("F36", "Redis's master killed, its replica promoted by sentinels"),
    ("F40", "the sale of the rush changed again and again, serve and the changing process killed"),
    ("refill4", "four serve instances, refills forced again and again"),
    ("places", "a process aborted at each named place (F2: group.after_commit, F3: relay.published)"),
    ("kill9", "kill -9 of a random process or server"),
];

async fn play(name: &str, options: Options) -> anyhow::Result<RunSummary> {
    match name {
        "F1" => process_deaths::killed_before_row(options).await,
        "F5" => redis_forgets::last_writes_lost(options).await,
        "F6" => redis_forgets::stale_replica_promoted(options).await,
        "F8" => server_outages::postgres_restarted(options).await,
        "F15" => server_outages::no_room(options).await,
        "F21" => process_deaths::terminated_under_load(options).await,
        "F23" => dead_letters::no_dead_letters(options).await,
        "F24" => redis_forgets::restarted_with_many_sales(options).await,
        "F32" => process_deaths::one_of_many_killed(options).await,
        "F33" => standby_promoted::synchronous(options).await,
        "F34" => standby_promoted::asynchronous(options).await,
        "F35" => server_outages::broker_node_killed(options).await,
        "F36" => redis_forgets::failed_over_by_sentinels(options).await,
        "F40" => changed_sale::changed_in_a_rush(options).await,
        "refill4" => redis_forgets::refilled_all_the_time(options).await,
        "places" => named_places::all_places(options).await,
        "kill9" => random_kills::rounds(options).await,
        other => anyhow::bail!("unknown scenario {other}"),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        SCENARIOS.iter().for_each(|(name, what)| println!("{name:<8} {what}"));
        return ExitCode::SUCCESS;
    }
    if let Some(unknown) = args.only.iter().find(|only| !SCENARIOS.iter().any(|(name, _)| name == only)) {
        eprintln!("unknown scenario {unknown}; --list shows all");
        return ExitCode::from(2);
    }
    let servers = Arc::new(Servers::find().expect("run this by ./dev test --faults"));
    let seeds = args.seed.map_or(1..=args.seeds, |seed| seed..=seed);
    let (mut passed, mut failed) = (0, Vec::new());
    println!("{}", RunSummary::HEAD);
    for (name, what) in SCENARIOS {
        if !args.only.is_empty() && !args.only.iter().any(|only| only == name) {
            continue;
        }
        println!("-- {name}: {what}");
        for seed in seeds.clone() {
            let (place, rounds, shards) = (args.place.clone(), args.rounds, args.shards);
            let options = Options { servers: Arc::clone(&servers), seed, rounds, place, shards };
            // In a separate task, so that a panic fails one run only.
            let ended = tokio::spawn(play(name, options)).await;
            match ended.map_err(anyhow::Error::from).and_then(|summary| summary) {
                Ok(summary) => {
                    passed += 1;
                    println!("{}", summary.line(name, seed));
                }
                Err(error) => {
                    println!("{name:<8} {seed:>4}  FAILED: {error:#}");
                    failed.push(format!("{name} --seed {seed}"));
                    servers.repair().await;
                }
            }
        }
    }
    println!("{passed} passed, {} failed", failed.len());
    failed.iter().for_each(|again| println!("  ./dev test --faults --only {again}"));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
