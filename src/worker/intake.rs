//! The loop of a consumer: opens it, settles batch after batch, and opens another when it is lost.

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Pause;
use crate::queue::{Batch, Broker, Intake, QueueError, Source};
use crate::sale::SaleError;

/// Consumes until stopped. What was delivered and not settled by then is delivered again, to whoever is there.
pub async fn consume<F>(
    name: &'static str,
    broker: Broker,
    source: Source,
    batch_max: usize,
    stop: CancellationToken,
    settle: impl Fn(&Batch) -> F,
) where
    F: Future<Output = Result<Vec<usize>, SaleError>>,
{
    let mut pause = Pause::default();
    let work = async {
        loop {
            let ended = match broker.consume(source).await {
                Ok(intake) => {
                    tracing::info!(name, "consuming");
                    drain(name, intake, batch_max, &mut pause, &settle).await
                }
                Err(error) => error,
            };
            let rest = pause.next();
            tracing::warn!(name, error = %ended, pause_ms = rest.as_millis(), "consumer lost, opening another");
            sleep(rest).await;
        }
    };
    // Cut between two awaits at worst: a transaction under way rolls back, a commit without its ack comes again.
    stop.run_until_cancelled(work).await;
    tracing::debug!(name, "stopped");
}

async fn drain<F>(
    name: &'static str,
    mut intake: Intake,
    batch_max: usize,
    pause: &mut Pause,
    settle: &impl Fn(&Batch) -> F,
) -> QueueError
where
    F: Future<Output = Result<Vec<usize>, SaleError>>,
{
    loop {
        let batch = match intake.next(batch_max).await {
            Ok(batch) => batch,
            Err(error) => return error,
        };
        // An outage is waited out with the batch in hand; prefetch bounds what that can be.
        let poison = loop {
            match settle(&batch).await {
                Ok(poison) => break poison,
                Err(error) => {
                    let rest = pause.next();
                    tracing::warn!(name, %error, pause_ms = rest.as_millis(), "batch not settled, trying again");
                    sleep(rest).await;
                }
            }
        };
        if let Err(error) = intake.settle(batch, &poison).await {
            return error;
        }
        pause.reset();
    }
}
