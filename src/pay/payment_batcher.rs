//! Payment requests that arrive together are written in one transaction, so that a peak is recorded within a second or two.

use tokio_util::task::TaskTracker;

use super::{PayError, PaymentService};
use crate::ledger::money::payments::{PaymentRequest, PaymentStart};
use crate::worker::batcher::{Batcher, PAUSE};

/// The result of a payment request.
#[derive(Debug)]
pub enum PayOutcome {
    PaymentStart(PaymentStart),
    NoSuchChannel,
}

/// Takes payment requests from all threads.
#[derive(Clone)]
pub struct PaymentBatcher {
    payment_service: PaymentService,
    batcher: Batcher<PaymentRequest, PaymentStart>,
}

impl PaymentBatcher {
    pub fn open(payment_service: PaymentService, tasks: &TaskTracker) -> Self {
        let service = payment_service.clone();
        let batcher = Batcher::open(tasks, PAUSE, move |requests| begin(service.clone(), requests));
        Self { payment_service, batcher }
    }

    /// Begins to pay an order through a channel, or finds the payment in flight. It does not wait for an order that is locked.
    pub async fn pay(&self, request: PaymentRequest) -> Result<PayOutcome, PayError> {
        if self.payment_service.channels.get(&request.channel).is_none() {
            return Ok(PayOutcome::NoSuchChannel);
        }
        Ok(PayOutcome::PaymentStart(self.batcher.write(request).await?))
    }
}

async fn begin(service: PaymentService, requests: Vec<PaymentRequest>) -> Option<Vec<PaymentStart>> {
    let begins = service.ledger.begin_payments(&requests, &service.terms.currency, service.terms.wait_ms);
    match service.ledger.in_time(begins).await {
        Ok(begun) => {
            service.notifier.outbox_changed();
            Some(begun)
        }
        Err(error) => {
            tracing::warn!(%error, requests = requests.len(), "payments not begun, or not known to be");
            None
        }
    }
}
