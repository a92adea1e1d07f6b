//! A keep-alive HTTP/1.1 connection that carries one request at a time, as a browser's does.
//!
//! Only the crowd's purchases travel on it. Everything else that this program asks the service goes through `seckill-client`, and
//! docs/client.md says why the crowd does not: it opens an exact number of connections before the start, counts each attempt
//! with its own answer, sends what a client never sends (forged tokens, early clicks, another address for each buyer), and takes
//! as little as possible of the processors that it shares with the service.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::LoadError;

/// After this long a person would reload the page. The result is unknown; a retry with the same Idempotency-Key gets it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Answers of the API are far smaller; a larger one is an error of the service.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// The service's address, resolved once for all connections.
#[derive(Debug)]
pub struct Target {
    addr: SocketAddr,
    pub host: HeaderValue,
    prefix: String,
}

impl Target {
    pub async fn resolve(base: &str) -> Result<Self, LoadError> {
        let invalid = || LoadError::Base(base.to_owned());
        let uri: Uri = base.trim_end_matches('/').parse().map_err(|_| invalid())?;
        let authority = uri.authority().ok_or_else(invalid)?;
        if uri.scheme_str() != Some("http") {
            return Err(invalid());
        }
        // A URL has brackets around an IPv6 address; the resolver takes it without them.
        let host = authority.host().trim_matches(['[', ']']);
        let unresolved = |source| LoadError::Resolve { host: host.to_owned(), source };
        let mut found =
            tokio::net::lookup_host((host, authority.port_u16().unwrap_or(80))).await.map_err(unresolved)?;
        let addr = found.next().ok_or_else(invalid)?;
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| invalid())?;
        Ok(Self { addr, host, prefix: uri.path().trim_end_matches('/').to_owned() })
    }

    pub fn uri(&self, path: &str) -> Result<Uri, LoadError> {
        let whole = format!("{}{path}", self.prefix);
        whole.parse().map_err(|_| LoadError::Base(whole))
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    /// The Retry-After header, if it is a number of seconds.
    pub retry_after: Option<Duration>,
    pub body: Bytes,
}

/// Why a request ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    #[error("no connection")]
    Connect,
    #[error("time-out")]
    TimeOut,
    #[error("connection lost")]
    Lost,
}

/// A connection that is opened when needed, and again after it was closed.
pub struct Link {
    target: Arc<Target>,
    open: Option<Open>,
}

struct Open {
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Link {
    pub fn new(target: &Arc<Target>) -> Self {
        Self { target: Arc::clone(target), open: None }
    }

    /// Opens the connection ahead of the first request. A failure is ignored here: the first request meets it again.
    pub async fn warm(mut self) -> Self {
        if let Ok(Ok(open)) = timeout(REQUEST_TIMEOUT, connect(&self.target)).await {
            self.open = Some(open);
        }
        self
    }

    /// Sends a request and reads the whole answer. A connection that failed is not used again.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, NoAnswer> {
        let answer = timeout(REQUEST_TIMEOUT, self.exchange(request)).await.unwrap_or(Err(NoAnswer::TimeOut));
        if answer.is_err() {
            self.open = None;
        }
        answer
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, NoAnswer> {
        let mut response = self.post(request).await?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.trim().parse().ok())
            .map(Duration::from_secs);
        let body = Limited::new(response.body_mut(), MAX_BODY_BYTES);
        let body = body.collect().await.map_err(|_| NoAnswer::Lost)?.to_bytes();
        Ok(Answer { status, retry_after, body })
    }

    async fn post(&mut self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, NoAnswer> {
        if let Some(open) = &mut self.open
            && open.sender.ready().await.is_ok()
        {
            match open.sender.try_send_request(request).await {
                Ok(response) => return Ok(response),
                // The request came back, so it was never written: the service had closed an idle connection.
                Err(mut refused) => request = refused.take_message().ok_or(NoAnswer::Lost)?,
            }
        }
        let fresh = connect(&self.target).await.map_err(|_| NoAnswer::Connect)?;
        self.open.insert(fresh).sender.send_request(request).await.map_err(|_| NoAnswer::Lost)
    }
}

async fn connect(target: &Target) -> Result<Open, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(target.addr).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(async move {
        // An error of the connection is also returned by the request in progress.
        let _ = connection.await;
    });
    Ok(Open { sender, driver: driver.abort_handle() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_plain_http_is_accepted() {
        for base in ["https://127.0.0.1:1", "127.0.0.1:8080", "http://", "nonsense"] {
            assert!(matches!(Target::resolve(base).await, Err(LoadError::Base(_))), "{base}");
        }
    }

    #[tokio::test]
    async fn a_path_before_the_api_is_kept() -> Result<(), LoadError> {
        for (base, expected) in [("http://127.0.0.1:8080/", "/api"), ("http://[::1]/shop/", "/shop/api")] {
            let target = Target::resolve(base).await?;
            assert_eq!(target.uri("/api")?.to_string(), expected);
        }
        Ok(())
    }
}
