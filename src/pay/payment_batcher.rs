//! Requests to pay that come together are written together, so that a peak is taken in within a second or two.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::{PayError, PayTerms, PaymentService};
use crate::domain::ids::{OrderId, UserId};
use crate::domain::trace_context::TraceContext;
use crate::ledger::money::payments::{PaymentRequest, PaymentStart};

/// Requests in one transaction, and transactions under way at once.
const BATCH_MAX: usize = 256;
const LANES: usize = 2;
/// Requests that wait; more are refused with 503.
const QUEUE_MAX: usize = 20_000;

/// What came of a request to pay.
#[derive(Debug)]
pub enum PayOutcome {
    PaymentStart(PaymentStart),
    NoSuchChannel,
}

type Queued = (PaymentRequest, oneshot::Sender<PaymentStart>);

/// Takes requests to pay, from all threads.
#[derive(Clone)]
pub struct PaymentBatcher {
    payment_service: PaymentService,
    queue: mpsc::Sender<Queued>,
}

impl PaymentBatcher {
    /// Its lanes end, after what is queued, when the last handle is dropped.
    pub fn open(payment_service: PaymentService, tasks: &TaskTracker) -> Self {
        let (queue, requests) = mpsc::channel(QUEUE_MAX);
        let requests = Arc::new(Mutex::new(requests));
        for _ in 0..LANES {
            tasks.spawn(serve(payment_service.clone(), Arc::clone(&requests)));
        }
        Self { payment_service, queue }
    }

    /// Begins to pay an order through a channel, or finds the payment that is under way.
    pub async fn pay(
        &self,
        user: &UserId,
        order: OrderId,
        channel: &str,
        trace: Option<Box<TraceContext>>,
    ) -> Result<PayOutcome, PayError> {
        if self.payment_service.channels.get(channel).is_none() {
            return Ok(PayOutcome::NoSuchChannel);
        }
        let (reply, replied) = oneshot::channel();
        let request = PaymentRequest { order, user: user.to_string(), channel: channel.to_owned(), trace };
        self.queue.try_send((request, reply)).map_err(|_| PayError::TooMany)?;
        // A lane that does not reply could not reach the ledger, or does not know whether its transaction committed.
        replied.await.map(PayOutcome::PaymentStart).map_err(|_| PayError::Unknown)
    }
}

async fn serve(payment_service: PaymentService, requests: Arc<Mutex<mpsc::Receiver<Queued>>>) {
    let PayTerms { currency, wait_ms, .. } = &payment_service.terms;
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while requests.lock().await.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let (requests, replies): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
        match payment_service.ledger.in_time(payment_service.ledger.begin_payments(&requests, currency, *wait_ms)).await
        {
            Ok(begun) => {
                replies.into_iter().zip(begun).for_each(|(reply, begun)| _ = reply.send(begun));
                payment_service.notifier.outbox_changed();
            }
            Err(error) => tracing::warn!(%error, requests = requests.len(), "payments not begun, or not known to be"),
        }
    }
}
