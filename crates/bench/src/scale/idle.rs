//! What planned sales cost while nobody asks for them: the CPU time of all processes over a while.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value, json};
use sqlx::PgPool;
use tokio::time::{Instant, sleep};

use super::sales::Sales;
use crate::processes::{self, cpu_us, memory_mb};
use crate::series::{Series, thousands};
use crate::service::Service;

/// Planned sales; and how long their processes are watched.
const PLANNED: [usize; 3] = [0, 1_000, 10_000];
const WATCHED: Duration = Duration::from_secs(20);
/// What creating the sales has set off ends within this time: autovacuum looks once a minute.
const REST: Duration = Duration::from_secs(75);
/// They begin in four hours.
const STARTS_IN_S: f64 = 14_400.0;
const STOCK: i64 = 100;
/// The processes that are watched.
const PROCESSES: [&str; 5] = ["server", "work", "redis", "postgres", "rabbitmq"];

/// A number of planned sales.
struct Step {
    planned: usize,
    /// Cores that were busy, by process and round.
    rounds: Vec<Vec<(&'static str, f64)>>,
    server_mb: f64,
    work_mb: f64,
}

impl Step {
    /// Cores of a process, or of all.
    fn cores(&self, process: Option<&str>) -> Series {
        let counts = |name: &str| process.is_none_or(|process| process == name);
        Series::of(
            self.rounds
                .iter()
                .map(|round| round.iter().filter(|(name, _)| counts(name)).map(|(_, cores)| cores).sum::<f64>()),
        )
    }
}

pub struct Idle(Vec<Step>);

/// Watches a `serve` and a `work`, with their servers, beside more and more planned sales, which are removed at the end.
pub async fn measure(
    service: &Service,
    servers: &[(&'static str, u32)],
    sql: &PgPool,
    logs: &Path,
    rounds: u64,
) -> anyhow::Result<Idle> {
    let mut work = processes::work(&logs.join("work.log"), None)?;
    let work_pid = work.id().context("the workers have ended")?;
    let mut watched = vec![("server", service.process.pid), ("work", work_pid)];
    watched.extend(servers);
    let mut steps = Vec::new();
    let mut sales: Option<Sales> = None;
    for planned in PLANNED {
        eprintln!("idle: {planned} planned sales");
        if planned > 0 {
            let mut grown = match sales.take() {
                Some(sales) => sales,
                None => Sales::begin(service, sql, STOCK, STARTS_IN_S).await?,
            };
            grown.grow_to(planned).await?;
            sales = Some(grown);
        }
        sleep(REST).await;
        let mut step = Step { planned, rounds: Vec::new(), server_mb: 0.0, work_mb: 0.0 };
        for _ in 0..rounds {
            step.rounds.push(busy(&watched).await?);
        }
        (step.server_mb, step.work_mb) = (memory_mb(service.process.pid)?, memory_mb(work_pid)?);
        steps.push(step);
    }
    if let Some(sales) = sales {
        sales.remove().await?;
    }
    processes::stop(&mut work).await?;
    Ok(Idle(steps))
}

/// The cores that these processes keep busy, for a while.
async fn busy(processes: &[(&'static str, u32)]) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let (before, begun) = (cpu_us(processes)?, Instant::now());
    sleep(WATCHED).await;
    let us = begun.elapsed().as_micros() as f64;
    let used = before.iter().zip(cpu_us(processes)?);
    Ok(used.map(|((name, from), (_, to))| (*name, to.saturating_sub(*from) as f64 / us)).collect())
}

impl Idle {
    pub fn markdown(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "| planned sales that nobody asks for | all, % of a core | `serve` | `work` | Redis | PostgreSQL | RabbitMQ | MB of \
             `serve`, `work` |\n|---|---|---|---|---|---|---|---|"
        );
        let percent = |series: &Series| format!("{:.1}", series.median() * 100.0);
        for step in &self.0 {
            let all = step.cores(None).with_range(|cores| format!("{:.1}", cores * 100.0));
            let _ = write!(text, "| {} | {all}", thousands(step.planned as f64));
            for process in PROCESSES {
                let _ = write!(text, " | {}", percent(&step.cores(Some(process))));
            }
            let _ = writeln!(text, " | {:.0}, {:.0} |", step.server_mb, step.work_mb);
        }
        let (rounds, watched_s) = (self.0.first().map_or(0, |step| step.rounds.len()), WATCHED.as_secs());
        let _ = writeln!(text, "\nMedians (least–most) of {rounds} times {watched_s} s.\n");
    }

    pub fn json(&self) -> Value {
        let steps = self.0.iter().map(|step| {
            let cores = PROCESSES.iter().map(|name| ((*name).to_owned(), step.cores(Some(name)).json()));
            json!({
                "planned_sales": step.planned,
                "cores": cores.collect::<Map<_, _>>(),
                "cores_all": step.cores(None).json(),
                "server_mb": step.server_mb,
                "work_mb": step.work_mb,
            })
        });
        steps.collect()
    }
}
