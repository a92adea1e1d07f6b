//! Retries parked messages and items, for the console and the command line.

use std::time::{Duration, Instant};

use seckill_domain::message::ParkedKind;
use seckill_postgres::notices::Topic;
use seckill_postgres::{Ledger, LedgerError};

/// How many of all messages or items are sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[schema(as = AllRetried)]
pub struct RetriedAll {
    #[schema(minimum = 0)]
    pub retried: u64,
    /// Whether rows are still parked: the time was up, or they were parked meanwhile.
    pub more: bool,
}

/// Retries these parked messages. Returns how many. A message takes effect once, even if it is sent several times.
pub async fn retry(ledger: &Ledger, ids: &[i64], actor: &str) -> Result<u64, LedgerError> {
    let rows = ledger.outbox.unpark(ids, actor).await?;
    wake_workers(ledger, rows).await;
    Ok(rows)
}

/// Retries all parked messages, of one kind or of all, until none is left or the time `most` is up. Each step is one transaction with its
/// line in the audit log. After a crash or a failure, finished steps stay, and the next caller continues.
pub async fn retry_all(
    ledger: &Ledger,
    kind: Option<ParkedKind>,
    most: Duration,
    actor: &str,
) -> Result<RetriedAll, LedgerError> {
    let retried = in_steps(most, async || ledger.outbox.unpark_step(kind, actor).await).await?;
    wake_workers(ledger, retried).await;
    let left = ledger.outbox.parked(kind, None, 1).await;
    Ok(RetriedAll { retried, more: left.map_or(true, |left| !left.is_empty()) })
}

/// Retries all parked items of an outflow, in the same steps.
pub async fn retry_items(
    ledger: &Ledger,
    outflow: &str,
    most: Duration,
    actor: &str,
) -> Result<RetriedAll, LedgerError> {
    let retried = in_steps(most, async || ledger.outflows.unpark_outflow(outflow, &[], actor).await).await?;
    let left = ledger.outflows.parked_outflow(Some(outflow), None, 1).await;
    Ok(RetriedAll { retried, more: left.map_or(true, |left| !left.is_empty()) })
}

/// Repeats a step until it finds nothing or the time is up. Returns the sum. After the first step, a failure is no error.
async fn in_steps(most: Duration, mut step: impl AsyncFnMut() -> Result<u64, LedgerError>) -> Result<u64, LedgerError> {
    let (began, mut all) = (Instant::now(), 0);
    loop {
        match step().await {
            Ok(0) => return Ok(all),
            Ok(rows) => all += rows,
            Err(error) if all == 0 => return Err(error),
            Err(error) => {
                tracing::warn!(%error, retried = all, "not all that is parked was sent again");
                return Ok(all);
            }
        }
        if began.elapsed() >= most {
            return Ok(all);
        }
    }
}

/// Without the notices, workers would find the rows only at their next poll.
async fn wake_workers(ledger: &Ledger, rows: u64) {
    for topic in [Topic::Outbox, Topic::Orders] {
        if rows > 0
            && let Err(error) = ledger.notify(topic).await
        {
            tracing::warn!(%error, "notice not sent; workers poll");
        }
    }
}
