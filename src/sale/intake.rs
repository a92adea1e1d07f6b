//! Taking messages off the conveyor in batches, and acknowledging them once they have had their effect.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Step;
use crate::queue::{Batch, Broker, QueueError, Source};

/// How long one step waits for a message.
const WAIT: Duration = Duration::from_secs(10);

/// One consumer: opens when it is needed, and again after it was lost.
pub struct Intake {
    broker: Broker,
    source: Source,
    batch_max: usize,
    open: Option<crate::queue::Intake>,
    /// Delivered, and not settled because the ledger could not be asked: waits in hand, bounded by the batch.
    held: Option<Batch>,
}

impl Intake {
    pub fn new(broker: Broker, source: Source, batch_max: usize) -> Self {
        Self { broker, source, batch_max, open: None, held: None }
    }

    /// Takes one batch, lets `settle` have its effect, and acknowledges it; messages at the places that `settle`
    /// returns go to the dead-letter queue. What was delivered and not settled when `stop` comes is delivered again.
    pub async fn step<F, E>(&mut self, stop: &CancellationToken, settle: impl Fn(Vec<Vec<u8>>) -> F) -> Result<Step, E>
    where
        F: Future<Output = Result<Vec<usize>, E>>,
        E: From<QueueError>,
    {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.broker.consume(&self.source).await?,
        };
        let batch = match self.held.take() {
            Some(batch) => batch,
            None => match tokio::time::timeout(WAIT, stop.run_until_cancelled(open.next(self.batch_max))).await {
                Ok(Some(delivered)) => delivered?,
                Ok(None) | Err(_) => {
                    self.open = Some(open);
                    return Ok(Step::Idle);
                }
            },
        };
        let (queue, messages) = (self.source.as_str(), batch.count());
        metrics::histogram!("seckill_intake_batch_size", "queue" => queue).record(messages as f64);
        metrics::counter!("seckill_redelivered_total", "queue" => queue).increment(batch.redelivered() as u64);
        match settle(batch.bodies()).await {
            Ok(poison) => {
                let results = [("settled", messages - poison.len()), ("poison", poison.len())];
                for (result, messages) in results {
                    metrics::counter!("seckill_consumed_total", "queue" => queue, "result" => result)
                        .increment(messages as u64);
                }
                open.settle(batch, &poison).await?;
                self.open = Some(open);
                Ok(Step::More)
            }
            Err(error) => {
                (self.open, self.held) = (Some(open), Some(batch));
                Err(error)
            }
        }
    }
}
