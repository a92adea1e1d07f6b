//! The client of an application: asks for permits, and decides itself while the service is away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::runtime::Handle;

use crate::decision::{Decision, Refusal, Verdict, WhenAway};
use crate::error::Error;
use crate::permit::{Held, Permit, Reason, ReleaseLines, Shared};
use crate::service::{Bearer, Service};

/// The default time limit of a request for a permit; [`FlowClient::with_timeout`] changes it.
const TIMEOUT: Duration = Duration::from_secs(1);
/// When to ask again after a refusal without a time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Asks for permits for one application. Clones share everything but the settings of `with_…`.
#[derive(Debug, Clone)]
pub struct FlowClient {
    shared: Arc<Shared>,
    timeout: Duration,
    when_away: WhenAway,
}

/// A policy, the counted key, and the number of permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Ask<'a> {
    pub policy: &'a str,
    /// The counted key: a user, an address, an interface. With an empty key all callers are counted together. At most 128 characters.
    pub key: &'a str,
    /// At least 1; at most the policy's limit or capacity.
    pub permits: u32,
}

#[derive(Serialize)]
struct Acquire<'a> {
    app: &'a str,
    #[serde(flatten)]
    first: Ask<'a>,
    also: &'a [Ask<'a>],
}

impl FlowClient {
    /// A client of the application `app`, whose token `seckill app create` has printed.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the token is not one word of visible ASCII characters.
    pub fn new(service: &Service, app: &str, token: &str) -> Result<Self, Error> {
        let shared = Shared {
            service: service.clone(),
            bearer: Bearer::new(token)?,
            app: app.to_owned(),
            breaker: Mutex::default(),
            lines: ReleaseLines::default(),
        };
        Ok(Self { shared: Arc::new(shared), timeout: TIMEOUT, when_away: WhenAway::default() })
    }

    /// How long a request for a permit may take, the connection included. 1 s by default.
    ///
    /// If a policy queues its excess (`queue:MS`), this must be at least `MS` + 1 s. Otherwise the caller gives up its place in the queue.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The answer while the service is away. [`WhenAway::Closed`] by default.
    #[must_use]
    pub fn with_when_away(mut self, when_away: WhenAway) -> Self {
        self.when_away = when_away;
        self
    }

    /// Asks for permits of one policy.
    ///
    /// The request is sent once. After three failures in a row no request is sent for 0.2 s to 5 s: [`WhenAway`] answers at once. Then one
    /// call probes. Dropping the future gives up the caller's place in a queue, and the service takes back the permit of a concurrency
    /// policy.
    ///
    /// # Errors
    /// Mistakes of the caller: [`Error::Problem`] with 400 (an invalid number of permits or name), 401 or 403 (not this application's
    /// token), and [`Error::Unreadable`] (another server's address). A service that is away is not an error: see [`WhenAway`].
    pub async fn acquire(&self, policy: &str, key: &str, permits: u32) -> Result<Decision, Error> {
        self.acquire_all(&[Ask { policy, key, permits }]).await
    }

    /// Asks for permits of up to nine policies at once: either all of them grant, or no permit is used.
    ///
    /// # Errors
    /// As [`FlowClient::acquire`]; and [`Error::Invalid`] for an empty list.
    pub async fn acquire_all(&self, asks: &[Ask<'_>]) -> Result<Decision, Error> {
        let (first, also) = asks.split_first().ok_or_else(|| Error::invalid("the request", "names no policy"))?;
        if let Err(rest) = self.shared.breaker.lock().ask(Instant::now(), rand::random()) {
            return Ok(self.away(Some(rest)));
        }
        let body = Acquire { app: &self.shared.app, first: *first, also };
        match self.shared.post::<Verdict>("/api/v1/flow/acquire", &body, self.timeout).await {
            Ok(verdict) => {
                self.shared.breaker.lock().succeeded();
                verdict.decide(|lease| Held {
                    shared: Arc::clone(&self.shared),
                    // The answer arrived over this runtime.
                    runtime: Handle::current(),
                    timeout: self.timeout,
                    lease,
                    dimensions: asks.iter().map(|ask| (ask.policy.to_owned(), ask.key.to_owned())).collect(),
                })
            }
            Err(error) if error.is_away() => {
                if self.shared.breaker.lock().failed(Instant::now(), rand::random()) {
                    tracing::warn!(%error, when_away = ?self.when_away, "the flow-control service is away");
                }
                Ok(self.away(error.retry_after()))
            }
            Err(error) => {
                self.shared.breaker.lock().succeeded();
                Err(error)
            }
        }
    }

    /// Waits, at most this long, until leases that were dropped or could not be released are settled: returned, or given up. Call it
    /// before the program ends. Returns whether all are settled.
    pub async fn drain(&self, within: Duration) -> bool {
        self.shared.lines.drain(within).await
    }

    fn away(&self, retry_after: Option<Duration>) -> Decision {
        match self.when_away {
            WhenAway::Open => Decision::Granted(Permit::uncounted(Some(Reason::ServiceAway))),
            WhenAway::Closed => Decision::Refused(Refusal {
                retry_after: retry_after.unwrap_or(RETRY_AFTER),
                reason: Reason::ServiceAway,
                policy: None,
            }),
        }
    }
}
