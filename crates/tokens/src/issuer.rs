//! The keys that the issuer publishes: read at the start, again before they are old, and when a token names an unknown one. Reads have a
//! least distance, so tokens with invented names cause no more of them. Known keys stay until a read brings others.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use seckill_config::Auth;
use seckill_webhook::{HttpSender, SendError};
use strum::IntoStaticStr;
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use crate::jwks;
use crate::key::Key;
use crate::key_set::KeySet;

/// A longer document is not read: keys take a few hundred bytes each.
const DOCUMENT_MAX: u64 = 256 * 1024;
/// Names that wait for a read. More of them, and longer ones, are invented.
pub(crate) const NAMES_MAX: usize = 1000;
const NAME_BYTES_MAX: usize = 256;

/// Why the keys could not be read. Those of the last read stay.
#[derive(Debug, thiserror::Error, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum IssuerError {
    #[error("no answer: {0}")]
    Unreachable(String),
    #[error("the answer has status {0}, not 200")]
    Refused(u16),
    #[error("{0}")]
    Unreadable(&'static str),
}

/// Where the keys are published, and how often they may be read.
pub struct Issuer {
    source: Source,
    timeout: Duration,
    refresh: Duration,
    min_interval: Duration,
    http: HttpSender,
    /// The keys of the settings, which are in each set.
    own: Vec<Arc<Key>>,
    pub(crate) keys: ArcSwap<KeySet>,
    state: Mutex<State>,
    wanted: Notify,
}

enum Source {
    File(String),
    Url(String),
}

#[derive(Default)]
struct State {
    /// Whether a read has succeeded.
    has_read: bool,
    /// Why the last read failed.
    failure: Option<String>,
    /// Names (kid) of keys that tokens have named and the set does not have. A token without a name has an empty one. A read is to bring
    /// them.
    wanted: HashSet<Box<str>>,
    /// Such names that the last read has not brought.
    refuted: HashSet<Box<str>>,
}

impl Issuer {
    pub(crate) fn new(auth: &Auth, own: Vec<Arc<Key>>) -> Self {
        let source = match auth.jwks_url.strip_prefix("file://") {
            Some(path) => Source::File(path.to_owned()),
            None => Source::Url(auth.jwks_url.clone()),
        };
        Self {
            source,
            timeout: Duration::from_millis(auth.jwks_timeout_ms),
            refresh: Duration::from_secs(auth.jwks_refresh_s),
            min_interval: Duration::from_secs(auth.jwks_min_interval_s),
            http: HttpSender::default(),
            keys: ArcSwap::from_pointee(KeySet::new(own.clone())),
            own,
            state: Mutex::default(),
            wanted: Notify::new(),
        }
    }

    /// Whether a read may bring the key that a token names. Then a read is asked for. `false`: the issuer has no such key.
    pub(crate) fn may_bring(&self, name: Option<&str>) -> bool {
        let name = name.unwrap_or_default();
        let mut state = self.state.lock();
        let is_no_name = name.len() > NAME_BYTES_MAX || state.refuted.contains(name);
        if !state.wanted.contains(name) {
            // Until a first read, nothing is known of any key.
            if state.has_read && is_no_name {
                return false;
            }
            if !is_no_name && state.wanted.len() < NAMES_MAX {
                state.wanted.insert(name.into());
            }
        }
        drop(state);
        self.wanted.notify_one();
        true
    }

    #[cfg(test)]
    pub(crate) fn names_waiting(&self) -> usize {
        self.state.lock().wanted.len()
    }

    /// Reads the keys again and again, after a first read.
    pub async fn follow(&self) {
        let mut began = Instant::now();
        loop {
            let pause = if self.state.lock().failure.is_some() { self.min_interval } else { self.refresh };
            tokio::select! {
                () = sleep_until(began + pause) => {}
                () = self.wanted.notified() => {
                    sleep_until(began + self.min_interval).await;
                    // The token that asked may have come before the last read.
                    if self.state.lock().wanted.is_empty() {
                        continue;
                    }
                }
            }
            began = Instant::now();
            self.read().await;
        }
    }

    /// Reads the keys once. A failure is logged, and changes no key.
    pub async fn read(&self) {
        let asked = std::mem::take(&mut self.state.lock().wanted);
        let read = self.published().await;
        let outcome: &str = read.as_ref().map_or_else(Into::into, |_| "read");
        metrics::counter!("seckill_issuer_reads_total", "outcome" => outcome.to_owned()).increment(1);
        match read {
            Ok(keys) => {
                let number = keys.len();
                let keys = self.own.iter().cloned().chain(keys.into_iter().map(Arc::new)).collect();
                // Before the names are refuted: no token with a new key is refused.
                self.keys.store(Arc::new(KeySet::new(keys)));
                let mut state = self.state.lock();
                if state.failure.take().is_some() || !state.has_read {
                    tracing::info!(number, "the keys of the tokens' issuer are read");
                }
                (state.has_read, state.refuted) = (true, asked);
            }
            Err(error) => {
                let mut state = self.state.lock();
                let room = NAMES_MAX.saturating_sub(state.wanted.len());
                state.wanted.extend(asked.into_iter().take(room));
                let failure = Some(error.to_string());
                if state.failure != failure {
                    tracing::warn!(%error, "the keys of the tokens' issuer are not read, and tried again until they are; known keys stay");
                    state.failure = failure;
                }
            }
        }
    }

    /// The keys that the issuer publishes now.
    async fn published(&self) -> Result<Vec<Key>, IssuerError> {
        let document = match &self.source {
            Source::File(path) => timeout(self.timeout, read_file(path)).await.unwrap_or_else(|_| Err(TIME_OUT.into())),
            Source::Url(url) => {
                let accept = [("accept", "application/json".to_owned())];
                match self.http.get(url, &accept, self.timeout).await {
                    Ok(answer) if answer.status != 200 => return Err(IssuerError::Refused(answer.status)),
                    Ok(answer) if answer.body.len() as u64 > DOCUMENT_MAX || answer.body.is_empty() => {
                        return Err(IssuerError::Unreadable("the answer is empty, incomplete or too long"));
                    }
                    Ok(answer) => Ok(answer.body.to_vec()),
                    Err(SendError::TimeOut) => Err(TIME_OUT.into()),
                    Err(error) => Err(error.to_string()),
                }
            }
        };
        let keys = jwks::read(&document.map_err(IssuerError::Unreachable)?)
            .ok_or(IssuerError::Unreadable("this is no JSON Web Key Set"))?;
        if keys.is_empty() {
            return Err(IssuerError::Unreadable("the key set has no key that we can use"));
        }
        Ok(keys)
    }

    /// How many keys the issuer publishes that we can use: for the doctor.
    ///
    /// # Errors
    /// The issuer did not answer in time, or published no such key.
    pub async fn count(&self) -> Result<usize, IssuerError> {
        self.published().await.map(|keys| keys.len())
    }
}

const TIME_OUT: &str = "not in time";

async fn read_file(path: &str) -> Result<Vec<u8>, String> {
    let mut document = Vec::new();
    let file = tokio::fs::File::open(path).await.map_err(|error| error.to_string())?;
    file.take(DOCUMENT_MAX + 1).read_to_end(&mut document).await.map_err(|error| error.to_string())?;
    Ok(document)
}
