//! `seckill-scale`: what a sale would do on so many machines. See the library's description, and docs/scale.md.

use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};

use seckill_scale::assumed::{Assumed, count, figure};
use seckill_scale::check;
use seckill_scale::day::Day;
use seckill_scale::measured::Measured;
use seckill_scale::plan::Aim;
use seckill_scale::report;
use seckill_scale::rush::{Crowd, Part, Request, Rush, Sale, Topology};

/// The most buyers that are played one by one: some minutes of this program's time. And the most threads.
const ARRIVALS_MAX: f64 = 2e8;
const THREADS_MAX: u64 = 200_000;

/// Simulates sales on many machines, from what ./dev bench has measured
#[derive(Parser)]
#[command(name = "seckill-scale", version)]
struct Cli {
    /// A JSON file of ./dev bench; may be given several times, part by part. Without it, a stored run (crates/scale/samples/speed.json)
    #[arg(long, global = true, value_name = "FILE")]
    measured: Vec<PathBuf>,
    #[command(flatten)]
    assumed: Assumed,
    /// The same seed gives the same figures
    #[arg(long, global = true, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON document instead of tables
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A rush at one sale, on the machines that you name
    Rush(RushArgs),
    /// A day of many sales, on the machines that you name
    Day(DayArgs),
    /// The machines that a rush and a day need, and what both look like on them
    Plan(Box<Aim>),
    /// The simulation against what was measured: exit code 1 if it is further away than it should be
    Check,
}

#[derive(Args)]
struct RushArgs {
    #[command(flatten)]
    topology: Topology,
    /// Buyers a second
    #[arg(long, value_name = "N", default_value_t = 20_000.0, value_parser = figure)]
    buyers_per_second: f64,
    /// Seconds for which they come
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = figure)]
    seconds: f64,
    /// Units of the sale
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = count)]
    units: u32,
    /// How long "sold out" is remembered (purchase.sold_out_memory_ms)
    #[arg(long, value_name = "MS", default_value_t = 500.0, value_parser = figure)]
    memory_ms: f64,
}

#[derive(Args)]
struct DayArgs {
    #[command(flatten)]
    topology: Topology,
    #[command(flatten)]
    day: Day,
}

fn main() -> anyhow::Result<()> {
    let Cli { measured, assumed, seed, json, command } = Cli::parse();
    let measured = Measured::read(&measured)?;
    let costs = measured.costs()?;
    let (tables, document): (String, Value) = match command {
        Command::Rush(RushArgs { topology, buyers_per_second, seconds, units, memory_ms }) => {
            bounded(buyers_per_second, seconds)?;
            let threads = Part::ALL.map(|part| u64::from(topology.cores(part))).iter().sum::<u64>();
            ensure!(threads <= THREADS_MAX, "{threads} processors are too many: at most {THREADS_MAX}");
            let rush = Rush {
                costs: costs.clone(),
                assumed: assumed.clone(),
                topology,
                one_machine_cores: None,
                crowd: Crowd::Open { per_second: buyers_per_second, seconds },
                request: Request::Purchase,
                sale: Sale { units: u64::from(units), memory_ms, unsettled: 0 },
                seed,
            };
            let outcome = rush.play();
            (report::rush(&rush.topology, &outcome), json!({ "rush": rush, "outcome": outcome }))
        }
        Command::Day(DayArgs { topology, day }) => {
            let outcome = day.play(&costs, &assumed, &topology, seed);
            let document = json!({ "topology": topology, "day": day, "outcome": outcome });
            (report::day(&topology, &outcome), document)
        }
        Command::Plan(aim) => {
            bounded(aim.buyers_per_second, aim.seconds)?;
            let bytes = measured.figure("/scale/storage/kept_bytes_an_order");
            let plan = aim.plan(&costs, &assumed, bytes, seed);
            (report::plan(&plan), json!({ "aim": aim, "plan": plan }))
        }
        Command::Check => {
            let all = check::compare(&measured, seed)?;
            print(json, &report::compared(&all), &json!({ "compared": all }))?;
            let far: Vec<&str> = all.iter().filter(|one| !one.holds()).map(|one| one.what.as_str()).collect();
            ensure!(far.is_empty(), "further from what was measured than stated: {}", far.join(", "));
            return Ok(());
        }
    };
    let inputs = report::inputs(&measured, &costs, &assumed, seed);
    let stands_on = json!({ "costs": costs, "from_sample": measured.from_sample, "assumed": assumed, "seed": seed });
    print(json, &format!("{inputs}\n{tables}"), &json!({ "inputs": stands_on, "result": document }))
}

/// Each buyer is played, so their number is bounded.
fn bounded(per_second: f64, seconds: f64) -> anyhow::Result<()> {
    let arrivals = per_second * seconds;
    ensure!(
        arrivals <= ARRIVALS_MAX,
        "{arrivals:.0} buyers are too many to be played one by one: at most {ARRIVALS_MAX:.0}. Lower --seconds"
    );
    Ok(())
}

fn print(json: bool, tables: &str, document: &Value) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(document)?);
    } else {
        print!("{tables}");
    }
    Ok(())
}
