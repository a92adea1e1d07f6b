//! The rush: a crowd of buyers that calls the service over HTTP, and a report of the answers.
//!
//! The load model is open: every arrival has its time in a schedule made beforehand, whatever the service does, and its
//! latency counts from that time. So the latencies of a service that stalls include the buyers' wait for it. If this
//! program is late itself, they include its lateness, which the report shows apart.
//!
//! Reading order: `plan` makes the schedule, in a `shape`; `crowd` writes the requests; `opening` waits for the start; `rush`
//! gives the schedule to its threads. Each thread is a `player`: it sends over `connections`, reads each `answer`, understands
//! it as a `reply`, and collects `measurements`. `report` computes the figures; `text` and `html` show them.

mod answer;
mod connections;
mod crowd;
mod html;
mod measurements;
mod opening;
mod plan;
mod player;
mod reply;
mod report;
mod rush;
mod shape;
#[cfg(test)]
mod stub;
mod target;
mod text;

use std::sync::Arc;

use indicatif::ProgressBar;
use seckill_client::{BuyerClient, Service};
use tokio::task::{JoinError, JoinSet};

use crowd::Crowd;
use player::Rush;
use target::Target;

pub use answer::Answer;
pub use connections::{Bounds, Connections, NoAnswer};
pub use html::DrawError;
pub use plan::{Buyer, CONNECTIONS_MAX, Plan, Role};
pub use report::Report;
pub use shape::Shape;

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
    #[error("the state of sale {sale_id} could not be read: {source}")]
    State { sale_id: i64, source: seckill_client::Error },
    #[error("sale {sale_id} starts in {wait_s} s; the rush waits at most {most_s} s")]
    StartsTooLate { sale_id: i64, wait_s: u64, most_s: u64 },
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
    let bar = if progress { ProgressBar::new_spinner() } else { ProgressBar::hidden() };

    // Outside the wait, so that a slow answer to an early click does not delay the rush and is still counted.
    let mut early = JoinSet::new();
    let state = opening::wait(&anyone, plan.sale_id, &bar, |state, before_start| {
        let clicks = plan.early_clicks(before_start);
        if !clicks.is_empty() {
            let plan = Plan { connections: plan.connections.min(clicks.len()), threads: 1, ..plan.clone() };
            let (target, crowd, key) = (Arc::clone(&target), Arc::clone(&crowd), state.key.clone());
            early.spawn(async move {
                let (rush, open) = Rush::begin(&target, crowd, clicks, &key, &plan).await?;
                rush.play(open, ProgressBar::hidden()).await
            });
        }
    })
    .await
    .inspect_err(|_| bar.finish_and_clear())?;

    let (rush, open) = Rush::begin(&target, crowd, plan.arrivals(), &state.key, plan).await?;
    let played = rush.play(open, bar.clone()).await;
    bar.finish_and_clear();
    let (arrivals, measured) = played?;

    let mut report = Report::compute(plan, &buyers, &arrivals, measured);
    while let Some(clicks) = early.join_next().await {
        let (clicks, measured) = clicks??;
        report.add_early(&buyers, &clicks, &measured);
    }
    Ok(report)
}
