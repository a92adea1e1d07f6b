//! Callbacks that report successful payments and arrive together are applied together.

use tokio_util::task::TaskTracker;

use super::{Callback, PayError, PaymentService, count_callback};
use crate::domain::payment::{About, Progress, ReportOutcome};
use crate::ledger::money::channel_reports::ReportOf;
use crate::worker::batcher::{Batcher, PAUSE};

/// Takes callbacks from all threads.
#[derive(Clone)]
pub struct SuccessBatcher {
    batcher: Batcher<ReportOf, bool>,
}

impl SuccessBatcher {
    pub fn open(payment_service: PaymentService, tasks: &TaskTracker) -> Self {
        Self { batcher: Batcher::open(tasks, PAUSE, move |reports| apply(payment_service.clone(), reports)) }
    }

    /// Applies a callback about a successful payment in flight that pays its order. `false`: the callback is of another kind, or its order
    /// is locked; nothing was changed.
    pub async fn take(&self, callback: &Callback) -> Result<bool, PayError> {
        let Some(report) = &callback.report else { return Ok(false) };
        match (report.about, report.progress) {
            (About::Payment { .. }, Progress::Succeeded) => {}
            (About::Payment { .. }, Progress::Failed | Progress::Pending) | (About::Refund { .. }, _) => {
                return Ok(false);
            }
        }
        let report = ReportOf { channel: callback.channel.name.clone(), report: report.clone() };
        let applied = self.batcher.write(report).await?;
        if applied {
            count_callback("applied");
        }
        Ok(applied)
    }
}

async fn apply(service: PaymentService, reports: Vec<ReportOf>) -> Option<Vec<bool>> {
    match service.ledger.in_time(service.ledger.pay_orders(&reports)).await {
        Ok(applied) => {
            let paid = reports.iter().zip(&applied).filter(|(_, applied)| **applied);
            paid.for_each(|(of, _)| service.note_taken(&of.report, &ReportOutcome::Applied));
            Some(applied)
        }
        Err(error) if error.is_outage() => {
            tracing::warn!(%error, reports = reports.len(), "callbacks not applied, or not known to be");
            None
        }
        Err(error) => {
            tracing::info!(%error, reports = reports.len(), "trying one by one");
            Some(vec![false; reports.len()])
        }
    }
}
