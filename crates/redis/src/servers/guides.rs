//! What the servers that guide us said last: the master that sentinels name, or the map of a cluster's nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult};
use tokio::sync::watch;
use tokio::time::timeout;

/// The value that the guides gave, and why each guide that fails does so.
pub(super) struct Said<T> {
    pub(super) value: Option<Arc<T>>,
    failures: BTreeMap<String, String>,
}

impl<T> Said<T> {
    pub(super) fn nothing() -> Self {
        Self { value: None, failures: BTreeMap::new() }
    }

    /// Failures of before are forgotten: they may be about a server that is no master any more.
    pub(super) fn value(value: T) -> Self {
        Self { value: Some(Arc::new(value)), ..Self::nothing() }
    }
}

/// Notes the outcome of asking a guide. A failure is logged when it is new: not again until the guide has answered, or fails otherwise.
pub(super) fn note<T>(said: &watch::Sender<Said<T>>, guide: &str, outcome: Result<(), &RedisError>) {
    let failure = outcome.err().map(ToString::to_string);
    said.send_if_modified(|said| {
        if said.failures.get(guide) == failure.as_ref() {
            return false;
        }
        match failure {
            Some(failure) => {
                tracing::warn!(
                    server = guide,
                    error = failure,
                    "cannot learn from this server which Redis server is the master"
                );
                said.failures.insert(guide.to_owned(), failure);
            }
            None => {
                tracing::info!(server = guide, "this server says again which Redis server is the master");
                said.failures.remove(guide);
            }
        }
        true
    });
}

/// Waits until the guides have given a value, at most for `limit`. The error names the failures.
pub(super) async fn first_value<T>(
    said: &watch::Receiver<Said<T>>,
    limit: Duration,
    missing: &'static str,
) -> RedisResult<Arc<T>> {
    let mut values = said.clone();
    if let Ok(Ok(said)) = timeout(limit, values.wait_for(|said| said.value.is_some())).await
        && let Some(value) = &said.value
    {
        return Ok(Arc::clone(value));
    }
    let failures: Vec<String> =
        said.borrow().failures.iter().map(|(guide, failure)| format!("{guide}: {failure}")).collect();
    Err((ErrorKind::Io, missing, failures.join("; ")).into())
}
