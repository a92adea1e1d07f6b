//! The bank's background tasks. One decides transfers; one posts callbacks until they end.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::json;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::bank::Bank;
use super::book::Send;
use super::event::Outcome;
use seckill_webhook::{HttpAnswer, HttpSender, Secret, SendError, SignedRequest};

/// The most callbacks in flight at once, so that a receiver that hangs does not use up the machine's sockets.
const UNDER_WAY_MAX: usize = 64;
/// How long the receiver may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const BACKOFF_BASE_MS: u64 = 250;
const BACKOFF_MAX_MS: u64 = 30_000;
/// The bank gives a callback up after a day. Until then the receiver can ask for the outcome itself.
const GIVEN_UP_AFTER_US: i64 = 86_400_000_000;

/// Decides transfers when they are due, until `stop` is cancelled.
pub(crate) async fn decide(bank: Arc<Bank>, stop: CancellationToken) {
    loop {
        let next = bank.decide_due();
        if pause(&bank.transfer_taken, next, &stop).await.is_none() {
            return;
        }
    }
}

/// Waits for a notification, or for the time `due`. Returns `None` when the bank stops.
async fn pause(changed: &Notify, due: Option<Duration>, stop: &CancellationToken) -> Option<()> {
    let due = async {
        match due {
            Some(due) => tokio::time::sleep(due).await,
            None => std::future::pending().await,
        }
    };
    stop.run_until_cancelled(async {
        tokio::select! {
            () = changed.notified() => {}
            () = due => {}
        }
    })
    .await
}

/// Posts callbacks to the receiver.
pub(crate) struct CallbackSender {
    bank: Arc<Bank>,
    url: String,
    secret: Secret,
    sender: HttpSender,
    tasks: TaskTracker,
}

impl CallbackSender {
    pub(crate) fn new(bank: Arc<Bank>, url: String, secret: Secret, tasks: TaskTracker) -> Arc<Self> {
        Arc::new(Self { bank, url, secret, sender: HttpSender::default(), tasks })
    }

    /// Posts callbacks when they are due, until `stop` is cancelled.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let free = Arc::new(Semaphore::new(UNDER_WAY_MAX));
        // The semaphore is never closed.
        while let Some(Ok(permit)) = stop.run_until_cancelled(Arc::clone(&free).acquire_owned()).await {
            let send = loop {
                match self.bank.next_send() {
                    Ok(send) => break send,
                    Err(due) if pause(&self.bank.callbacks_changed, due, &stop).await.is_none() => return,
                    Err(_) => {}
                }
            };
            self.tasks.spawn(Arc::clone(&self).attempt(send, permit, stop.clone()));
        }
    }

    /// Makes one attempt. If the bank stops meanwhile, the callback has not ended, and is posted after a restart.
    async fn attempt(self: Arc<Self>, send: Send, _permit: OwnedSemaphorePermit, stop: CancellationToken) {
        let Some(answer) = stop.run_until_cancelled(self.post(&send)).await else { return };
        let outcome = match &answer {
            Ok(answer) if (200..300).contains(&answer.status) => Some(Outcome::Delivered),
            Ok(answer) if answer.status == 422 => Some(Outcome::Refused),
            _ if self.bank.now_us() - send.first_due_us > GIVEN_UP_AFTER_US => Some(Outcome::GivenUp),
            _ => None,
        };
        match outcome {
            Some(outcome) => {
                self.bank.sent(send.n, outcome);
                if outcome != Outcome::Delivered {
                    tracing::warn!(key = %send.document.key, message = send.message, ?outcome, "a callback was refused or given up");
                }
            }
            None => {
                self.bank.postpone(send.n, BACKOFF_BASE_MS, BACKOFF_MAX_MS);
                tracing::debug!(key = %send.document.key, message = send.message, ?answer, "a callback was not delivered");
            }
        }
    }

    async fn post(&self, send: &Send) -> Result<HttpAnswer, SendError> {
        let document = &send.document;
        let at = DateTime::from_timestamp_micros(send.at_us).unwrap_or_default();
        let body = json!({
            "type": format!("{}.{}", document.request.kind().as_str(), document.status.as_str()),
            "timestamp": at.to_rfc3339_opts(SecondsFormat::Micros, true),
            "data": document,
        });
        let (id, secrets) = (format!("msg_{}", send.message), std::slice::from_ref(&self.secret));
        let body = body.to_string().into_bytes();
        let request = SignedRequest::message(&self.url, &id, secrets, Utc::now().timestamp(), body);
        self.sender.post(request, ANSWER_TIMEOUT).await
    }
}
