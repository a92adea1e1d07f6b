//! The rush: a crowd that speaks to the sale by HTTP alone, and a report of what it was told.
//!
//! The model is open. Every arrival has its moment in a schedule made beforehand, whatever the service does, and its
//! latency counts from that moment: a service that stalls is charged for those who had to wait in line meanwhile.
//!
//! Reading order: `plan` says who comes when and `shape` how they spread, `crowd` what they send, `opening` waits for the
//! start, `rush` plays the schedule over the connections of `client`, and `report` draws up what `tally` wrote down, in
//! `figures`; `render` and `html` (with its `charts`) show it.

mod charts;
mod client;
mod crowd;
mod html;
mod opening;
mod plan;
mod progress;
mod render;
mod report;
mod rush;
mod shape;
mod tally;
mod timeline;

use std::sync::Arc;

use chrono::Utc;
use tokio::task::{JoinError, JoinSet};

use client::Target;
use crowd::Crowd;
use opening::Opening;
use progress::Progress;
use rush::Rush;

pub use html::Verdict;
pub use plan::{Buyer, Plan, Role};
pub use render::grouped;
pub use report::{Accepted, MeasuredFrom, Mix, Report};
pub use shape::Shape;
pub use timeline::{Bucket, Latency, LatencyBucket, Step};

/// Why there was no rush at all. What goes wrong during one stands in its report.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("the base address must look like http://host:port, not {0}")]
    Base(String),
    #[error("no address found for {host}: {source}")]
    Resolve { host: String, source: std::io::Error },
    #[error("the plan needs {needed} buyers with tokens (buyers and bots), and was given {given}")]
    TooFewBuyers { needed: usize, given: usize },
    #[error("the token of {0} cannot stand in a header")]
    Token(String),
    #[error("the state of sale {sale_id} could not be read: {detail}")]
    State { sale_id: i64, detail: String },
    #[error("sale {sale_id} starts in {wait_s} s, and the rush waits at most {most_s} s")]
    StartsTooLate { sale_id: i64, wait_s: i64, most_s: i64 },
    #[error("sale {0} is over")]
    Ended(i64),
    #[error("sale {0} should have started and is still not open: is it paused?")]
    NotOpen(i64),
    #[error("a connection's task failed: {0}")]
    Task(#[from] JoinError),
}

/// Waits for the start, plays the plan and reports.
///
/// `buyers` are the identities of the crowd: the first `plan.buyers` of them buy, the next `plan.bots` are bots. With
/// `progress` a bar is drawn on stderr, where that is a terminal.
pub async fn run(plan: &Plan, buyers: Vec<Buyer>, progress: bool) -> Result<Report, LoadError> {
    let target = Arc::new(Target::resolve(&plan.base).await?);
    let crowd = Arc::new(Crowd::gather(plan, &buyers, &target)?);
    let progress = Progress::new(progress);

    // Held outside the wait, so that a slow answer to an early click delays nobody and is still counted.
    let mut early = JoinSet::new();
    let opening = Opening::new(&target, plan.sale_id, &progress);
    let state = opening
        .wait(|state, before_start| {
            let clicks = plan.early_clicks(before_start);
            if !clicks.is_empty() {
                let connections = plan.connections.min(clicks.len());
                let (crowd, key) = (Arc::clone(&crowd), state.key().to_owned());
                early.spawn(async move {
                    let rush = Rush::begin(crowd, clicks, &key, true, connections).await;
                    rush.play(&Progress::new(false)).await
                });
            }
        })
        .await
        .inspect_err(|_| progress.finish())?;

    let arrivals = plan.arrivals();
    let rush = Rush::begin(crowd, arrivals, state.key(), plan.paced(), plan.connections).await;
    let began_at = Utc::now();
    let played = rush.play(&progress).await;
    progress.finish();
    let (arrivals, tally) = played?;

    let mut report = Report::draw_up(plan, &buyers, &arrivals, tally);
    report.began_at = Some(began_at);
    while let Some(clicks) = early.join_next().await {
        let (clicks, tally) = clicks??;
        report.add_early(&buyers, &clicks, &tally);
    }
    Ok(report)
}
