//! The fault suite: the whole system killed and maltreated in mid-rush, on real servers, every run ending in an audit.
//!
//! `./dev test --faults [--only F5] [--seed N]` starts the servers (the set `faults`) and this runner. A run is one
//! scenario with one seed: a system of its own (database, prefixes, processes), a sale, a rush, the fault at a random
//! moment of it, what was killed started again, rest, `seckill audit`, the last units sold, and the history of every
//! call that the clients made held against the end state. It prints one line.
//!
//! Reading order: `servers` and `service` are what is killed, `world` puts a system together, `rush` is the crowd,
//! `history` its judge, `run` the course of every scenario; then the scenarios by theme.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a scenario that cannot go on shall fail

mod history;
mod message_faults;
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
mod tcp_forwarder;
mod world;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;

use run_summary::Figures;
use servers::Servers;

/// What a scenario is given.
#[derive(Clone)]
pub struct Terms {
    pub servers: Arc<Servers>,
    pub seed: u64,
    /// Rounds of `kill9`.
    pub rounds: u64,
    /// Only this one of the named places.
    pub place: Option<String>,
    /// Outages at their full length.
    pub full: bool,
}

#[derive(Parser)]
#[command(name = "faults", about = "The fault suite")]
struct Args {
    /// Only these scenarios; may be given several times
    #[arg(long)]
    only: Vec<String>,
    /// Only this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Seeds 1 to N
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Rounds of kill9
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Only this place of `places`, such as relay.published
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(seckill::failpoint::PLACES))]
    place: Option<String>,
    /// Outages at their full length: a minute
    #[arg(long)]
    full: bool,
    /// Name the scenarios and end
    #[arg(long)]
    list: bool,
}

/// Name, and what is done to the system.
const SCENARIOS: [(&str, &str); 16] = [
    ("F1", "serve aborted between the Redis decrement and the outbox insert"),
    ("F2", "work aborted between the database commit and the AMQP ack"),
    ("F3", "work aborted after publish, before the outbox row is marked"),
    ("F4", "RabbitMQ stopped"),
    ("F5", "Redis killed, the end of its AOF cut off"),
    ("F6", "a replica detached, selling goes on, master killed, replica promoted"),
    ("F7", "FLUSHALL, then SCRIPT FLUSH"),
    ("F8", "backends killed in mid-commit, then PostgreSQL restarted"),
    ("F9", "every message delivered ten times, shuffled"),
    ("F13", "poison messages"),
    ("F15", "Redis at maxmemory, then a disk or memory alarm at the broker"),
    ("F21", "SIGTERM under load"),
    ("F23", "the dead-letter queue full, then deleted"),
    ("refill4", "four serve instances, refills forced again and again"),
    ("places", "a process aborted at each named place"),
    ("kill9", "kill -9 of a random process or server"),
];

async fn play(name: &str, terms: Terms) -> anyhow::Result<Figures> {
    match name {
        "F1" => process_deaths::before_the_row(terms).await,
        "F2" => process_deaths::before_the_ack(terms).await,
        "F3" => process_deaths::before_the_mark(terms).await,
        "F4" => server_outages::broker_stopped(terms).await,
        "F5" => redis_forgets::last_writes_lost(terms).await,
        "F6" => redis_forgets::stale_replica_promoted(terms).await,
        "F7" => redis_forgets::flushed(terms).await,
        "F8" => server_outages::postgres_restarted(terms).await,
        "F9" => message_faults::ten_deliveries(terms).await,
        "F13" => message_faults::poison(terms).await,
        "F15" => server_outages::no_room(terms).await,
        "F21" => process_deaths::told_to_go(terms).await,
        "F23" => message_faults::no_dead_letters(terms).await,
        "refill4" => redis_forgets::refilled_all_the_time(terms).await,
        "places" => named_places::everywhere(terms).await,
        "kill9" => random_kills::rounds(terms).await,
        other => anyhow::bail!("there is no scenario {other}"),
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
        eprintln!("there is no scenario {unknown}: --list names them");
        return ExitCode::from(2);
    }
    let servers = Arc::new(Servers::find().expect("run this by ./dev test --faults"));
    let seeds = args.seed.map_or(1..=args.seeds, |seed| seed..=seed);
    let (mut passed, mut failed) = (0, Vec::new());
    println!("{}", Figures::HEAD);
    for (name, what) in SCENARIOS {
        if !args.only.is_empty() && !args.only.iter().any(|only| only == name) {
            continue;
        }
        println!("-- {name}: {what}");
        for seed in seeds.clone() {
            let (place, rounds, full) = (args.place.clone(), args.rounds, args.full);
            let terms = Terms { servers: Arc::clone(&servers), seed, rounds, place, full };
            // In a task of its own, so that a panic is one run's failure.
            let ended = tokio::spawn(play(name, terms)).await;
            match ended.map_err(anyhow::Error::from).and_then(|figures| figures) {
                Ok(figures) => {
                    passed += 1;
                    println!("{}", figures.line(name, seed));
                }
                Err(error) => {
                    println!("{name:<8} {seed:>4}  FAILED: {error:#}");
                    failed.push(format!("{name} --seed {seed}"));
                    servers.mend().await;
                }
            }
        }
    }
    println!("{passed} passed, {} failed", failed.len());
    failed.iter().for_each(|again| println!("  ./dev test --faults --only {again}"));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
