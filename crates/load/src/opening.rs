//! Waits until the sale is open, by the server's clock, and reads the key that a purchase needs.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::LoadError;
use super::client::{Link, Target};
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

#[derive(Debug, Deserialize)]
pub struct State {
    open: bool,
    key: Option<String>,
    now_ms: i64,
    starts_at_ms: i64,
    ends_at_ms: i64,
}

impl State {
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or_default()
    }

    /// Time until the start; zero from the start on.
    fn before_start(&self) -> Duration {
        let left_ms = self.starts_at_ms.saturating_sub(self.now_ms);
        Duration::from_millis(u64::try_from(left_ms).unwrap_or(0))
    }
}

pub struct Opening<'a> {
    target: &'a Arc<Target>,
    sale_id: i64,
    progress: &'a Progress,
}

impl<'a> Opening<'a> {
    pub fn new(target: &'a Arc<Target>, sale_id: i64, progress: &'a Progress) -> Self {
        Self { target, sale_id, progress }
    }

    /// Returns when the sale is open. If it is not open at first, calls `on_closed` once, with the time left.
    pub async fn wait(&self, on_closed: impl FnOnce(&State, Duration)) -> Result<State, LoadError> {
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
            let left = state.before_start();
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

    async fn read_state(&self) -> Result<State, LoadError> {
        let uri = self.target.uri(&format!("/api/v1/sales/{}/state", self.sale_id))?;
        let mut link = Link::new(self.target);
        let mut failed = 0;
        loop {
            let detail = match link.get(&uri).await {
                Ok(answer) if answer.status == StatusCode::OK => {
                    return serde_json::from_slice(&answer.body).map_err(|error| self.unreadable(error));
                }
                Ok(answer) if !answer.status.is_server_error() => {
                    return Err(self.unreadable(answer.status));
                }
                Ok(answer) => answer.status.to_string(),
                Err(no_answer) => no_answer.to_string(),
            };
            failed += 1;
            if failed == MAX_FAILED_READS {
                return Err(self.unreadable(detail));
            }
            sleep(FAILED_READ_PAUSE).await;
        }
    }

    fn unreadable(&self, detail: impl ToString) -> LoadError {
        LoadError::State { sale_id: self.sale_id, detail: detail.to_string() }
    }
}
