//! Showing outflows, and changing their rate or pausing them: what the console and the command line share.

use serde::Deserialize;
use utoipa::ToSchema;

use seckill_domain::ids::Invalid;
use seckill_domain::outflow::Pace;
use seckill_postgres::outflow::items::{ChannelFigures, OutflowSettings, OutflowUpdate};
use seckill_postgres::{LedgerError, Outflows};

/// A change of an outflow. A term that is absent or null stays as it is.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OutflowTerms)]
pub struct OutflowChange {
    pub paused: Option<bool>,
    /// Requests per second. When it changes, nothing is sent for a second.
    #[schema(minimum = 1, maximum = 100)]
    pub rate: Option<i64>,
    /// The largest difference between the network delays of two requests.
    #[schema(minimum = 0, maximum = 10000)]
    pub jitter_ms: Option<i64>,
}

#[derive(Debug, thiserror::Error)]
pub enum OutflowError {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// All outflows with their figures. Items are counted anew if no worker has counted them in the last second.
pub async fn outflows(outflows: &Outflows) -> Result<Vec<ChannelFigures>, LedgerError> {
    outflows.count_outflow().await?;
    outflows.outflow_figures().await
}

/// Changes an outflow, all parts at once; `false` if there is none of this name. What is already so stays untouched, so that a caller
/// who had no answer repeats the change.
///
/// # Errors
/// A pace that cannot be kept, and nothing is changed; or the ledger's.
pub async fn change(outflows: &Outflows, name: &str, change: OutflowChange, actor: &str) -> Result<bool, OutflowError> {
    let decide = |now: OutflowSettings| -> Result<OutflowUpdate, OutflowError> {
        let present = (i64::from(now.rate), i64::from(now.jitter_ms));
        let wanted = (change.rate.unwrap_or(present.0), change.jitter_ms.unwrap_or(present.1));
        let pace = if wanted == present { None } else { Some(Pace::parse(wanted.0, wanted.1)?) };
        Ok(OutflowUpdate { pace, paused: change.paused.filter(|paused| *paused != now.paused) })
    };
    outflows.change_outflow(name, actor, decide).await
}
