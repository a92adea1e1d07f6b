//! Waits until the sale is open, by the server's clock, and reads the key that a purchase needs.

use std::time::Duration;

use seckill_client::{BuyerClient, SaleState};
use tokio::time::{Instant, sleep};

use super::LoadError;
use super::progress::Progress;

/// A start further away than this is an error.
const MAX_WAIT: Duration = Duration::from_secs(600);
/// The sale may open this long after its announced start; later, it is taken for paused.
const MAX_LATE: Duration = Duration::from_secs(15);
/// The state is read this often before the start, which may be moved.
const READ_EVERY: Duration = Duration::from_secs(5);
/// ... and this often once the start is due.
const READ_WHEN_DUE_EVERY: Duration = Duration::from_millis(20);
/// Number of reads that may fail in a row, and the pause between them.
const MAX_FAILED_READS: u32 = 10;
const FAILED_READ_PAUSE: Duration = Duration::from_millis(300);

/// Time until the start; zero from the start on.
fn before_start(state: &SaleState) -> Duration {
    let left_ms = state.starts_at_ms.saturating_sub(state.now_ms);
    Duration::from_millis(u64::try_from(left_ms).unwrap_or(0))
}

pub struct Opening<'a> {
    anyone: &'a BuyerClient,
    sale_id: i64,
    progress: &'a Progress,
}

impl<'a> Opening<'a> {
    /// `anyone` needs no token.
    pub fn new(anyone: &'a BuyerClient, sale_id: i64, progress: &'a Progress) -> Self {
        Self { anyone, sale_id, progress }
    }

    /// Returns when the sale is open. If it is not open at first, calls `on_closed` once, with the time left.
    pub async fn wait(&self, on_closed: impl FnOnce(&SaleState, Duration)) -> Result<SaleState, LoadError> {
        let mut on_closed = Some(on_closed);
        let mut due: Option<Instant> = None;
        loop {
            let state = self.read_state().await?;
            if state.open {
                return Ok(state);
            }
            if state.now_ms >= state.ends_at_ms {
                return Err(LoadError::Ended(self.sale_id));
            }
            let left = before_start(&state);
            if left > MAX_WAIT {
                return Err(LoadError::StartsTooLate {
                    sale_id: self.sale_id,
                    wait_s: left.as_secs().try_into().unwrap_or(i64::MAX),
                    most_s: MAX_WAIT.as_secs().try_into().unwrap_or(i64::MAX),
                });
            }
            if let Some(on_closed) = on_closed.take() {
                on_closed(&state, left);
            }
            if left.is_zero() {
                if due.get_or_insert_with(Instant::now).elapsed() > MAX_LATE {
                    return Err(LoadError::NotOpen(self.sale_id));
                }
                sleep(READ_WHEN_DUE_EVERY).await;
            } else {
                self.progress.waiting(left);
                sleep(left.min(READ_EVERY)).await;
            }
        }
    }

    async fn read_state(&self) -> Result<SaleState, LoadError> {
        let mut failed = 0;
        loop {
            let error = match self.anyone.state(self.sale_id).await {
                Ok(state) => return Ok(state),
                Err(error) => error,
            };
            failed += 1;
            if failed == MAX_FAILED_READS || !error.may_retry() {
                return Err(LoadError::State { sale_id: self.sale_id, source: error });
            }
            sleep(FAILED_READ_PAUSE).await;
        }
    }
}
