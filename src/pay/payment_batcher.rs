//! Where buyers pay: wishes that come together are written down together, so that a peak is taken in within a second or two.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::{PayError, PayTerms, PaymentService};
use crate::domain::ids::{OrderId, UserId};
use crate::ledger::money::payments::{PaymentRequest, PaymentStart};

/// Wishes in one transaction, and transactions under way at once.
const BATCH_MAX: usize = 256;
const LANES: usize = 2;
/// Wishes that wait; more are told to come again.
const QUEUE_MAX: usize = 20_000;

/// What came of the wish to pay.
#[derive(Debug)]
pub enum PayOutcome {
    PaymentStart(PaymentStart),
    NoSuchChannel,
}

type Queued = (PaymentRequest, oneshot::Sender<PaymentStart>);

/// Takes wishes to pay, from all threads.
#[derive(Clone)]
pub struct PaymentBatcher {
    payment_service: PaymentService,
    queue: mpsc::Sender<Queued>,
}

impl PaymentBatcher {
    /// Its lanes end, after what is queued, when the last handle is dropped.
    pub fn open(payment_service: PaymentService, tasks: &TaskTracker) -> Self {
        let (queue, wishes) = mpsc::channel(QUEUE_MAX);
        let wishes = Arc::new(Mutex::new(wishes));
        for _ in 0..LANES {
            tasks.spawn(serve(payment_service.clone(), Arc::clone(&wishes)));
        }
        Self { payment_service, queue }
    }

    /// Begins to pay an order through a channel, or finds the payment that is under way.
    pub async fn pay(&self, user: &UserId, order: OrderId, channel: &str) -> Result<PayOutcome, PayError> {
        if self.payment_service.channels.get(channel).is_none() {
            return Ok(PayOutcome::NoSuchChannel);
        }
        let (told, hears) = oneshot::channel();
        let wish = PaymentRequest { order, user: user.to_string(), channel: channel.to_owned() };
        self.queue.try_send((wish, told)).map_err(|_| PayError::TooMany)?;
        // Whoever answers nothing could not ask the ledger, or does not know what it did.
        hears.await.map(PayOutcome::PaymentStart).map_err(|_| PayError::Unknown)
    }
}

async fn serve(payment_service: PaymentService, wishes: Arc<Mutex<mpsc::Receiver<Queued>>>) {
    let PayTerms { currency, wait_ms, .. } = &payment_service.terms;
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while wishes.lock().await.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let (wishes, tell): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
        match payment_service.ledger.in_time(payment_service.ledger.begin_payments(&wishes, currency, *wait_ms)).await {
            Ok(begun) => {
                tell.into_iter().zip(begun).for_each(|(tell, begun)| _ = tell.send(begun));
                payment_service.notifier.outbox_changed();
            }
            Err(error) => tracing::warn!(%error, wishes = wishes.len(), "payments not begun, or not known to be"),
        }
    }
}
