//! Scale: what a request costs beside 1 to 10,000 sales, at 1 to 4 instances and at 1 to 64 shards of a sale, what planned sales cost
//! while nobody asks for them, and how large an order is. The shards all lie on one Redis: it shows what they cost, not what they bring.
//!
//! Requests go to all sales in turn. With many connections, those for one sale go to Redis together, so that fewer share a call the
//! more sales there are; over few connections none shares a call in any case. Both are measured, or the one would be taken for the
//! other. Sales stay when they are made, so each number of sales has all its rounds before there are more; the first is repeated at
//! the end, beside all others, which shows what those cost, and what has drifted.

mod idle;
mod load;
mod sales;
mod storage;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use sqlx::PgPool;

use crate::processes::memory_mb;
use crate::series::thousands;
use crate::service::Service;
use crate::settle;
use crate::wrk::{Buyers, CONNECTIONS};
pub use idle::{Idle, measure as idle};
pub use load::BUYERS;
use load::{ALONE, Kind, Player, Rounds};
use sales::Sales;
use storage::Storage;

/// Sales that requests are spread over. The last is the first again.
const SALES: [usize; 6] = [1, 10, 100, 1_000, 10_000, 1];
const INSTANCES: [usize; 3] = [1, 2, 4];
const SHARDS: [usize; 5] = [1, 2, 4, 8, 64];
/// There are many plays, so each is short.
const ROUNDS_MAX: u64 = 3;
const SECONDS_MAX: u64 = 2;
/// Units of a sale in which everybody buys.
const PLENTY: i64 = 5_000_000;
/// Sales that sell begin at once.
const AT_ONCE_S: f64 = 0.0;

/// One number of sales, of instances or of shards.
struct Step {
    count: usize,
    /// All sales that there are, where that is told.
    beside: Option<usize>,
    kinds: BTreeMap<Kind, Rounds>,
    /// The memory of the first instance, in MB.
    server_mb: f64,
}

impl Step {
    fn new(count: usize, beside: Option<usize>) -> Self {
        Self { count, beside, kinds: BTreeMap::new(), server_mb: 0.0 }
    }
}

pub struct Results {
    seconds: u64,
    rounds: u64,
    idle: Idle,
    instances: Vec<Step>,
    shards: Vec<Step>,
    sales: Vec<Step>,
    settled: settle::Settled,
    storage: Storage,
}

/// # Errors
/// An answer is not of its kind, or the books do not hold.
pub async fn measure(
    service: &Service,
    buyers: &Buyers,
    servers: &[(&'static str, u32)],
    sql: &PgPool,
    logs: &Path,
    rounds: u64,
    seconds: u64,
) -> anyhow::Result<Results> {
    let (rounds, seconds) = (rounds.min(ROUNDS_MAX), seconds.min(SECONDS_MAX));
    let idle = idle::measure(service, servers, sql, logs, rounds).await?;
    let behind: Vec<_> = servers.iter().copied().filter(|(name, _)| *name != "rabbitmq").collect();
    let mut player = Player::new(buyers, &behind, seconds);
    let instances = by_instances(&mut player, service, sql, logs, rounds).await?;
    let shards = by_shards(&mut player, service, rounds).await?;
    let sales = by_sales(&mut player, service, sql, rounds).await?;
    eprintln!("the workers settle the orders");
    let settled = settle::settle(sql, servers, &logs.join("work.log")).await?;
    let storage = storage::measure(sql).await?;
    Ok(Results { seconds, rounds, idle, instances, shards, sales, settled, storage })
}

/// Plays at one sale, which 1 to 4 instances sell. Those that have no requests are idle.
async fn by_instances(
    player: &mut Player<'_>,
    service: &Service,
    sql: &PgPool,
    logs: &Path,
    rounds: u64,
) -> anyhow::Result<Vec<Step>> {
    let most = INSTANCES.into_iter().max().unwrap_or(1);
    let mut more = Vec::new();
    for n in 1..most {
        more.push(Service::start(&logs.join(format!("serve-{n}.log")), &[], sql.clone()).await?);
    }
    let all: Vec<&Service> = std::iter::once(service).chain(&more).collect();
    let sales = OneSale::create(service, 1).await?;
    let mut cases =
        INSTANCES.map(|count| Case { services: &all[..count], sales: sales.clone(), step: Step::new(count, Some(2)) });
    in_turns(player, &mut cases, "instances", rounds).await?;
    let steps = cases.map(|case| case.step);
    for mut service in more {
        service.process.kill().await?;
    }
    Ok(steps.into())
}

/// Plays at one sale with 1 to 64 shards, on one instance.
async fn by_shards(player: &mut Player<'_>, service: &Service, rounds: u64) -> anyhow::Result<Vec<Step>> {
    let (services, mut cases) = ([service], Vec::new());
    for count in SHARDS {
        let sales = OneSale::create(service, count).await?;
        cases.push(Case { services: &services, sales, step: Step::new(count, None) });
    }
    in_turns(player, &mut cases, "shards", rounds).await?;
    Ok(cases.into_iter().map(|case| case.step).collect())
}

/// What is played in turn with others.
struct Case<'a> {
    services: &'a [&'a Service],
    sales: OneSale,
    step: Step,
}

/// Files that name one sale each: one in which everybody buys, and one without units.
#[derive(Clone)]
struct OneSale {
    full: PathBuf,
    empty: PathBuf,
}

impl OneSale {
    async fn create(service: &Service, shards: usize) -> anyhow::Result<Self> {
        let words = ["--per-user", "1000", "--shards", &shards.to_string()];
        let (full, empty) = (service.sale_with(PLENTY, &words).await?, service.sale_with(0, &words).await?);
        let file = |sale, name| sales::write(&[sale], &format!("{name}-{shards}"));
        Ok(Self { full: file(full, "one-sale")?, empty: file(empty, "no-units")? })
    }
}

async fn in_turns(player: &mut Player<'_>, cases: &mut [Case<'_>], what: &str, rounds: u64) -> anyhow::Result<()> {
    for round in 1..=rounds {
        for Case { services, sales, step } in &mut *cases {
            eprintln!("round {round} of {rounds}: {} {what}", step.count);
            for kind in Kind::ALL {
                let file = if kind == Kind::SoldOut { &sales.empty } else { &sales.full };
                let played = player.play(kind, services, file).await?;
                step.kinds.entry(kind).or_default().0.push(played);
            }
            step.server_mb = memory_mb(services[0].process.pid)?;
        }
    }
    Ok(())
}

/// Plays at one instance, at more and more sales.
async fn by_sales(player: &mut Player<'_>, service: &Service, sql: &PgPool, rounds: u64) -> anyhow::Result<Vec<Step>> {
    let mut full = Sales::begin(service, sql, PLENTY, AT_ONCE_S).await?;
    let mut empty = Sales::begin(service, sql, 0, AT_ONCE_S).await?;
    let mut steps = Vec::new();
    for count in SALES {
        eprintln!("{count} sales: they are made");
        full.grow_to(count).await?;
        empty.grow_to(count).await?;
        let (with_units, without) = (full.write(count, "full-sales")?, empty.write(count, "empty-sales")?);
        let beside = full.made.len() + empty.made.len();
        let mut step = Step::new(count, Some(beside));
        for round in 1..=rounds {
            eprintln!("{count} sales: round {round} of {rounds}");
            for kind in Kind::ALL {
                let file = if kind == Kind::SoldOut { &without } else { &with_units };
                let played = player.play(kind, &[service], file).await?;
                step.kinds.entry(kind).or_default().0.push(played);
            }
        }
        step.server_mb = memory_mb(service.process.pid)?;
        steps.push(step);
    }
    Ok(steps)
}

/// The columns of a kind: requests a second, and the CPU time of the server, Redis and PostgreSQL.
fn columns(text: &mut String, rounds: &Rounds) {
    let us = ["server", "redis", "postgres"].map(|process| format!("{:.1}", rounds.cpu_us(process).median()));
    let _ = write!(text, " {} | {} |", rounds.per_second().with_range(thousands), us.join(", "));
}

fn table(text: &mut String, head: &str, steps: &[Step]) {
    let _ = writeln!(
        text,
        "| {head} | bought a second, {CONNECTIONS} connections | µs | bought, {ALONE} connections | µs | sold out | µs | of these 503 | buyers a call | MB |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    for step in steps {
        let beside = step.beside.map(|beside| format!(" of {}", thousands(beside as f64))).unwrap_or_default();
        let _ = write!(text, "| {}{beside} |", thousands(step.count as f64));
        for kind in Kind::ALL {
            match step.kinds.get(&kind) {
                Some(rounds) => columns(text, rounds),
                None => text.push_str(" | |"),
            }
        }
        let unavailable = step.kinds.get(&Kind::SoldOut).map_or(f64::NAN, |rounds| rounds.unavailable().median());
        let _ = write!(text, " {:.1} % |", unavailable * 100.0);
        let calls = step.kinds.values().map(|rounds| format!("{:.1}", rounds.buyers_a_call().median()));
        let _ = writeln!(text, " {} | {:.0} |", calls.collect::<Vec<_>>().join(", "), step.server_mb);
    }
    text.push('\n');
}

impl Results {
    pub fn markdown(&self, text: &mut String) {
        text.push('\n');
        self.idle.markdown(text);
        table(text, "sales that are asked for, of all", &self.sales);
        table(text, "instances, at one sale of so many", &self.instances);
        table(text, "shards of a sale on one Redis", &self.shards);
        let _ = writeln!(
            text,
            "Medians of {} rounds of {} s (least–most). µs: of CPU a request; of `serve`, all instances together, of Redis and of \
             PostgreSQL. Buyers a call: in the order of the columns. MB: of the first `serve`. The instances share the machine's \
             processors. Afterwards one `seckill work` settled {} orders a second.\n",
            self.rounds,
            self.seconds,
            thousands(self.settled.per_second),
        );
        self.storage.markdown(text);
    }

    pub fn json(&self) -> Value {
        let steps = |name: &str, steps: &[Step]| -> Value {
            let steps = steps.iter().map(|step| {
                let mut json: Map<_, _> =
                    step.kinds.iter().map(|(kind, rounds)| (kind.name().to_owned(), rounds.json())).collect();
                json.insert(name.to_owned(), json!(step.count));
                json.insert("of_sales".to_owned(), json!(step.beside));
                json.insert("server_mb".to_owned(), json!(step.server_mb));
                Value::Object(json)
            });
            steps.collect()
        };
        json!({
            "rounds": self.rounds,
            "seconds": self.seconds,
            "idle": self.idle.json(),
            "sales": steps("sales", &self.sales),
            "instances": steps("instances", &self.instances),
            "shards": steps("shards", &self.shards),
            "settled": self.settled.json(),
            "storage": self.storage.json(),
        })
    }
}
