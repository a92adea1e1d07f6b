//! Writes payment requests that arrive together in one transaction, and callbacks about successful payments too.

use tokio_util::task::TaskTracker;

use super::{Callback, PayError, PaymentService, count_callback};
use seckill_domain::payment::{About, ChannelReport, NO_CHANNEL, Progress, ReportOutcome};
use seckill_postgres::money::channel_reports::ReportOf;
use seckill_postgres::money::payments::{PaymentRequest, PaymentStart};
use seckill_runtime::worker::batcher::{Batcher, PAUSE};

#[derive(Clone)]
pub struct PaymentBatchers {
    service: PaymentService,
    requests: Batcher<PaymentRequest, PaymentStart>,
    successes: Batcher<ReportOf, bool>,
}

impl PaymentBatchers {
    pub fn open(service: PaymentService, tasks: &TaskTracker) -> Self {
        let (begins, applies) = (service.clone(), service.clone());
        Self {
            service,
            requests: Batcher::open(tasks, PAUSE, move |requests| begin(begins.clone(), requests)),
            successes: Batcher::open(tasks, PAUSE, move |reports| apply(applies.clone(), reports)),
        }
    }

    /// Begins to pay an order, or finds the payment in flight; `None` if there is no such channel. Does not wait for a locked order.
    pub(crate) async fn pay(&self, request: PaymentRequest) -> Result<Option<PaymentStart>, PayError> {
        if request.channel != NO_CHANNEL && self.service.channels.get(&request.channel).is_none() {
            return Ok(None);
        }
        Ok(Some(self.requests.write(request).await?))
    }

    /// Applies a callback about a successful payment in flight. `false`: it is of another kind, or its order is locked. Nothing changed.
    pub(crate) async fn take(&self, callback: &Callback) -> Result<bool, PayError> {
        let success = |report: &&_| {
            matches!(report, ChannelReport { about: About::Payment { .. }, progress: Progress::Succeeded, .. })
        };
        let Some(report) = callback.report.as_ref().filter(success) else { return Ok(false) };
        let report = ReportOf { channel: callback.channel.name.clone(), report: report.clone() };
        let applied = self.successes.write(report).await?;
        if applied {
            count_callback("applied");
        }
        Ok(applied)
    }
}

async fn begin(service: PaymentService, requests: Vec<PaymentRequest>) -> Option<Vec<PaymentStart>> {
    let begins = service.ledger.payments.begin_payments(&requests, service.settings.wait_ms);
    let begun = service.ledger.in_time(begins).await.inspect_err(|error| {
        tracing::warn!(%error, requests = requests.len(), "payments not begun, or not known to be");
    });
    // Requests that were not answered may have been committed.
    service.notify_begun(begun.as_deref().unwrap_or_default());
    begun.ok()
}

async fn apply(service: PaymentService, reports: Vec<ReportOf>) -> Option<Vec<bool>> {
    match service.ledger.in_time(service.ledger.payments.pay_orders(&reports)).await {
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
