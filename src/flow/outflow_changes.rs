//! Showing outflows, and changing their rate or pausing them: what the console and the command line share.

use super::FlowError;
use crate::domain::outflow::Pace;
use crate::ledger::outflow::items::ChannelFigures;
use crate::ledger::{Ledger, LedgerError};

/// What to change of an outflow; `None` leaves a term as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutflowChange {
    pub paused: Option<bool>,
    /// Requests per second.
    pub rate: Option<i64>,
    pub jitter_ms: Option<i64>,
}

/// All outflows with their figures. Items are counted anew if no worker has counted them in the last second.
pub async fn outflows(ledger: &Ledger) -> Result<Vec<ChannelFigures>, LedgerError> {
    ledger.count_outflow().await?;
    ledger.outflow_figures().await
}

/// Changes an outflow; `false` if there is none of this name. What is already so stays untouched, so that a caller who had no
/// answer repeats the change: a process that dies between the two steps has made the first of them.
///
/// # Errors
/// A pace that cannot be kept, before anything is changed; or the ledger's.
pub async fn change(ledger: &Ledger, name: &str, change: OutflowChange, actor: &str) -> Result<bool, FlowError> {
    let outflows = ledger.outflow_figures().await?;
    let Some(current) = outflows.iter().find(|outflow| outflow.name == name) else { return Ok(false) };
    let (rate, jitter_ms) = (i64::from(current.rate), i64::from(current.jitter_ms));
    let wanted = (change.rate.unwrap_or(rate), change.jitter_ms.unwrap_or(jitter_ms));
    if wanted != (rate, jitter_ms) {
        let pace = Pace::parse(wanted.0, wanted.1)?;
        ledger.set_outflow_pace(name, pace, actor).await?;
    }
    if let Some(paused) = change.paused
        && paused != current.paused
    {
        ledger.pause_outflow(name, paused, actor).await?;
    }
    Ok(true)
}
