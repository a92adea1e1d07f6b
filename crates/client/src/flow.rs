//! The client of an application: asks for permits, and answers in the place of a service that is away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;

use crate::decision::{Decision, Refusal, Verdict, WhenAway};
use crate::error::Error;
use crate::permit::Permit;
use crate::reason::Reason;
use crate::release_lines::ReleaseLines;
use crate::service::{Bearer, Service};
use crate::shared::Shared;

/// How long a request for a permit may take unless [`FlowClient::with_timeout`] says otherwise.
const TIMEOUT: Duration = Duration::from_secs(1);
/// When to ask again after a refusal that names no time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Asks for permits in the name of one application. Clones share everything but the settings of `with_…`.
#[derive(Debug, Clone)]
pub struct FlowClient {
    pub(crate) shared: Arc<Shared>,
    timeout: Duration,
    when_away: WhenAway,
}

/// A policy, the key that it counts, and how many permits are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Ask<'a> {
    /// The policy's name.
    pub policy: &'a str,
    /// What is counted: a user, an address, an interface. With an empty key all callers are counted together. At most 128
    /// characters.
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
    /// Where a policy queues its excess (`queue:MS`), this must be longer than `MS` by a second, or the caller gives up its
    /// place in the line.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What is answered while the service is away. [`WhenAway::Closed`] by default.
    #[must_use]
    pub fn with_when_away(mut self, when_away: WhenAway) -> Self {
        self.when_away = when_away;
        self
    }

    /// Asks for permits of one policy.
    ///
    /// The request is sent once. After three failures in a row no request is sent for 0.2 s to 5 s, and [`WhenAway`] answers at
    /// once; then one call tries. A future that is dropped gives up the caller's place in a line, and the service takes the
    /// permit of a concurrency policy back.
    ///
    /// # Errors
    /// Mistakes of the caller: [`Error::Problem`] with 400 (no such number of permits, a name that cannot be one), 401 or 403
    /// (not this application's token), and [`Error::Unreadable`] (another server's address). A service that is away is no error,
    /// but [`WhenAway`].
    pub async fn acquire(&self, policy: &str, key: &str, permits: u32) -> Result<Decision, Error> {
        self.acquire_all(&[Ask { policy, key, permits }]).await
    }

    /// Asks for permits of several policies at once, at most nine: either all of them grant, or no permit is used.
    ///
    /// # Errors
    /// As [`FlowClient::acquire`]; and [`Error::Invalid`] if nothing is asked for.
    pub async fn acquire_all(&self, asks: &[Ask<'_>]) -> Result<Decision, Error> {
        let (first, also) = asks.split_first().ok_or_else(|| Error::invalid("the request", "names no policy"))?;
        if let Err(rest) = self.shared.breaker.lock().ask(Instant::now(), rand::random()) {
            return Ok(self.away(Some(rest)));
        }
        let body = Acquire { app: &self.shared.app, first: *first, also };
        match self.shared.post::<Verdict>("/api/v1/flow/acquire", &body, self.timeout).await {
            Ok(verdict) => {
                self.shared.breaker.lock().succeeded();
                verdict.decide(|permit, lease| {
                    let dimensions = asks.iter().map(|ask| (ask.policy.to_owned(), ask.key.to_owned())).collect();
                    permit.holding(&self.shared, self.timeout, lease, dimensions)
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

    /// Waits until the leases that were dropped or could not be released have been given back, at most this long. Call it before
    /// the program ends. Returns whether all of them are settled: given back, or given up.
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
