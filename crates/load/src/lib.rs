//! The rush: a crowd of buyers that calls the service over HTTP, and a report of the answers.
//!
//! The load model is open: every arrival has its time in a schedule made beforehand, whatever the service does, and its
//! latency counts from that time. So the latencies of a service that stalls include the buyers' wait for it. If this
//! program is late itself, they include its lateness, which `lag` shows apart.
//!
//! Reading order: `plan` makes the schedule, in a `shape`; `crowd` writes the requests; `opening` waits for the start; `play`
//! gives the schedule of a `rush` to its threads, each of which is a `player` that sends each `attempt` over `connections`, reads
//! each `answer`, understands it as a `reply`, and collects `measurements` and `traffic`, while `watchers` follow orders;
//! `report` computes the report from them, with `statistics` and `lag`; `text` and `html` (with `charts`) show it.

mod answer;
mod attempt;
mod charts;
mod connections;
mod crowd;
mod html;
mod lag;
mod measurements;
mod numbers;
mod opening;
mod plan;
mod play;
mod player;
mod progress;
mod reply;
mod report;
mod retries;
mod rush;
mod shape;
mod sign_in;
mod statistics;
#[cfg(test)]
mod stub;
mod target;
mod text;
mod traffic;
mod watchers;

use std::sync::Arc;

use chrono::Utc;
use seckill_client::{BuyerClient, Service};
use tokio::task::{JoinError, JoinSet};

use crowd::Crowd;
use opening::Opening;
use play::play;
use progress::Progress;
use rush::Rush;
use target::Target;
use watchers::Watchers;

pub use answer::Answer;
pub use connections::{Bounds, Connections, NoAnswer};
pub use html::AuditSummary;
pub use lag::Lag;
pub use numbers::with_commas;
pub use plan::{Buyer, CONNECTIONS_MAX, Plan, Role};
pub use report::{Accepted, MeasuredFrom, Mix, Report};
pub use shape::Shape;
pub use sign_in::sign_in;
pub use statistics::{Bucket, HistogramStep, Latency, LatencyBucket};
pub use watchers::Watched;

/// Why no rush took place. Failures during a rush are part of its report.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("the base address must look like http://host:port, not {0}")]
    Base(String),
    #[error("no address found for {host}: {source}")]
    Resolve { host: String, source: std::io::Error },
    #[error("the plan needs {needed} buyers with tokens (buyers and bots), and was given {given}")]
    TooFewBuyers { needed: usize, given: usize },
    #[error("the token of {0} is not a valid header value")]
    Token(String),
    #[error("the service cannot be called: {0}")]
    Service(seckill_client::Error),
    #[error("{user} could not be signed in: {source}")]
    SignIn { user: String, source: seckill_client::Error },
    #[error("the state of sale {sale_id} could not be read: {source}")]
    State { sale_id: i64, source: seckill_client::Error },
    #[error("sale {sale_id} starts in {wait_s} s; the rush waits at most {most_s} s")]
    StartsTooLate { sale_id: i64, wait_s: i64, most_s: i64 },
    #[error("sale {0} has ended")]
    Ended(i64),
    #[error("sale {0} has reached its start and is still not open: it may be paused")]
    NotOpen(i64),
    #[error("a thread of the rush failed: {0}")]
    Task(#[from] JoinError),
    #[error("the system cannot wait for connections: {0}")]
    Events(std::io::Error),
}

/// Waits for the start, plays the plan and returns the report.
///
/// `buyers` are the identities of the crowd: the first `plan.buyers` of them buy, the next `plan.bots` are bots. `progress`
/// shows a progress bar on stderr if that is a terminal.
///
/// # Errors
/// The plan cannot be played, the sale's state cannot be read, or the sale does not open.
pub async fn run(plan: &Plan, buyers: Vec<Buyer>, progress: bool) -> Result<Report, LoadError> {
    let target = Arc::new(Target::resolve(&plan.base).await?);
    let buyers: Arc<[Buyer]> = buyers.into();
    let crowd = Arc::new(Crowd::prepare(plan, &buyers, &target)?);
    let service = Service::new(&plan.base).map_err(LoadError::Service)?;
    let anyone = BuyerClient::without_token(&service);
    let watchers = Arc::new(Watchers::new(service, Arc::clone(&buyers), plan.watchers));
    let progress = Progress::new(progress);

    // Outside the wait, so that a slow answer to an early click does not delay the rush and is still counted.
    let mut early = JoinSet::new();
    let opening = Opening::new(&anyone, plan.sale_id, &progress);
    let state = opening
        .wait(|state, before_start| {
            let clicks = plan.early_clicks(before_start);
            if !clicks.is_empty() {
                let connections = plan.connections.min(clicks.len());
                let (target, crowd, watchers) = (Arc::clone(&target), Arc::clone(&crowd), Arc::clone(&watchers));
                let (key, plan) = (state.key.clone(), Plan { connections, threads: 1, rate: Some(1), ..plan.clone() });
                early.spawn(async move {
                    let rush = Rush::begin(&target, crowd, clicks, &key, &plan, watchers).await?;
                    play(rush, &Progress::new(false)).await
                });
            }
        })
        .await
        .inspect_err(|_| progress.finish())?;

    let arrivals = plan.arrivals();
    let rush = Rush::begin(&target, crowd, arrivals, &state.key, plan, Arc::clone(&watchers)).await?;
    let began_at = Utc::now();
    let played = play(rush, &progress).await;
    progress.finish();
    let (arrivals, measured) = played?;

    let mut report = Report::compute(plan, &buyers, &arrivals, measured);
    report.began_at = Some(began_at);
    report.watched = watchers.finish().await;
    while let Some(clicks) = early.join_next().await {
        let (clicks, measured) = clicks??;
        report.add_early(&buyers, &clicks, &measured);
    }
    Ok(report)
}
