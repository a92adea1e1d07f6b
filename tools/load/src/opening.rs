//! Waits until the sale is open, by the server's clock, and reads the key that a purchase needs.

use std::time::Duration;

use indicatif::ProgressBar;
use seckill_client::{BuyerClient, SaleState};
use tokio::time::{Instant, sleep};

use super::LoadError;

/// A start further away than this is an error.
const MAX_WAIT: Duration = Duration::from_secs(600);
/// The sale may open this long after its announced start. Later, the wait assumes that it is paused.
const MAX_LATE: Duration = Duration::from_secs(15);
/// How often the state is read before the start, which may be moved, and from the start on.
const READ_EVERY: Duration = Duration::from_secs(5);
const READ_WHEN_DUE_EVERY: Duration = Duration::from_millis(20);
/// Number of reads that may fail in a row, and the pause between them.
const MAX_FAILED_READS: u32 = 10;
const FAILED_READ_PAUSE: Duration = Duration::from_millis(300);

/// Returns when the sale is open. If it is not open at first, calls `on_closed` once, with the time left. `anyone` needs no token.
pub(crate) async fn wait(
    anyone: &BuyerClient,
    sale_id: i64,
    bar: &ProgressBar,
    on_closed: impl FnOnce(&SaleState, Duration),
) -> Result<SaleState, LoadError> {
    let mut on_closed = Some(on_closed);
    let mut due: Option<Instant> = None;
    loop {
        let state = read_state(anyone, sale_id).await?;
        if state.open {
            return Ok(state);
        }
        if state.now_ms >= state.ends_at_ms {
            return Err(LoadError::Ended(sale_id));
        }
        // Zero from the start on.
        let left_ms = state.starts_at_ms.saturating_sub(state.now_ms);
        let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
        if left > MAX_WAIT {
            return Err(LoadError::StartsTooLate { sale_id, wait_s: left.as_secs(), most_s: MAX_WAIT.as_secs() });
        }
        if let Some(on_closed) = on_closed.take() {
            on_closed(&state, left);
        }
        if left.is_zero() {
            if due.get_or_insert_with(Instant::now).elapsed() > MAX_LATE {
                return Err(LoadError::NotOpen(sale_id));
            }
            sleep(READ_WHEN_DUE_EVERY).await;
        } else {
            bar.enable_steady_tick(Duration::from_millis(200));
            bar.set_message(format!("the sale starts in {:.0} s", left.as_secs_f64()));
            sleep(left.min(READ_EVERY)).await;
        }
    }
}

async fn read_state(anyone: &BuyerClient, sale_id: i64) -> Result<SaleState, LoadError> {
    let mut failed = 0;
    loop {
        let error = match anyone.state(sale_id).await {
            Ok(state) => return Ok(state),
            Err(error) => error,
        };
        failed += 1;
        if failed == MAX_FAILED_READS || !error.may_retry() {
            return Err(LoadError::State { sale_id, source: error });
        }
        sleep(FAILED_READ_PAUSE).await;
    }
}
