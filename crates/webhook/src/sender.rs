//! The outgoing HTTP client. It connects in advance. The first poll of `send` writes the request to the socket, so the request leaves
//! when its slot begins. A pooled client would connect inside `send`, after the last check of the clock.
//!
//! HTTP/1.1, one request at a time per connection. Redirects are not followed.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::poll;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::header::{CONTENT_TYPE, DATE, HOST, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::timeout;
use uuid::Uuid;

use crate::retry_after::retry_after;
use crate::signature::{Secret, signed_headers};
use crate::transport::{self, Transport};

/// How long a connection may take.
pub const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Idle connections kept per receiver; a sender rarely has more in flight.
const IDLE_MAX: usize = 16;
/// The rest of a longer answer is not read.
const ANSWER_MAX_BYTES: usize = 512 * 1024;
/// The part of an answer that logs and tables show.
const SHOWN_CHARS: usize = 200;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Whether requests to an address are sent without TLS.
pub fn is_http(target: &str) -> bool {
    target.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"))
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Nothing was sent.
    #[error("the target is no http:// or https:// address")]
    Target,
    /// Nothing was sent.
    #[error("no connection: {0}")]
    Connect(String),
    /// It is unknown whether the request took effect.
    #[error("no answer in time")]
    TimeOut,
    /// It is unknown whether the request took effect.
    #[error("connection lost: {0}")]
    Lost(String),
}

/// A JSON body to post under an Idempotency-Key, signed as Standard Webhooks defines it.
#[derive(Debug, Clone)]
pub struct SignedRequest {
    target: String,
    key: Uuid,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl SignedRequest {
    /// A request with its key as its message id. Each secret signs; without secrets the request is not signed.
    pub fn new(target: &str, key: Uuid, secrets: &[Secret], now_s: i64, body: Vec<u8>) -> Self {
        let headers = signed_headers(secrets, &key.to_string(), now_s, &body);
        Self { target: target.to_owned(), key, headers, body }
    }

    /// A message whose id is a text; its Idempotency-Key is derived from the id.
    pub fn message(target: &str, id: &str, secrets: &[Secret], now_s: i64, body: Vec<u8>) -> Self {
        let key = Uuid::new_v5(&Uuid::NAMESPACE_OID, id.as_bytes());
        Self { target: target.to_owned(), key, headers: signed_headers(secrets, id, now_s, &body), body }
    }

    /// Adds unsigned headers.
    #[must_use]
    pub fn with_headers(mut self, headers: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        self.headers.extend(headers);
        self
    }
}

/// A receiver's answer.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub retry_after: Option<Duration>,
    /// Empty if it was too long or incomplete.
    pub body: Bytes,
}

impl HttpAnswer {
    /// The beginning of the body, for people.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).chars().take(SHOWN_CHARS).collect()
    }

    /// The status and the beginning of the body, if there is one.
    pub fn status_and_text(&self) -> String {
        format!("{} {}", self.status, self.text()).trim_end().to_owned()
    }
}

/// Sends requests, and keeps connections for the next ones.
#[derive(Default)]
pub struct HttpSender {
    /// Kept connections, by origin.
    idle: Mutex<HashMap<String, Vec<Link>>>,
}

/// An open connection, and the request to send over it.
pub struct PreparedRequest {
    origin: String,
    link: Link,
    request: Request<Full<Bytes>>,
}

/// Connection and sender together: one task polls both, so the request reaches the socket without a change of threads.
struct Link {
    sender: SendRequest<Full<Bytes>>,
    connection: Pin<Box<Connection<TokioIo<Transport>, Full<Bytes>>>>,
}

impl HttpSender {
    /// Opens a connection for a request, or takes a kept one. Sends nothing yet.
    ///
    /// # Errors
    /// No connection within `CONNECT_MAX`, or an invalid address: nothing was sent.
    pub async fn prepare(&self, request: SignedRequest) -> Result<PreparedRequest, SendError> {
        let SignedRequest { target, key, headers, body } = request;
        let key = HeaderValue::from_str(&key.to_string()).map_err(|_| SendError::Target)?;
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        let own = [(CONTENT_TYPE, HeaderValue::from_static("application/json")), (IDEMPOTENCY_KEY, key)];
        request.headers_mut().extend(own);
        for (name, value) in headers {
            let value = HeaderValue::from_str(&value).map_err(|_| SendError::Target)?;
            request.headers_mut().insert(name, value);
        }
        let connecting = timeout(CONNECT_MAX, self.connect(&target, request));
        connecting.await.unwrap_or_else(|_| Err(SendError::Connect("not in time".to_owned())))
    }

    /// Connects, sends, and reads the answer. The connection and the answer may each take `patience`.
    ///
    /// # Errors
    /// The variants of [`SendError`] say whether the receiver may have seen the request.
    pub async fn post(&self, request: SignedRequest, patience: Duration) -> Result<HttpAnswer, SendError> {
        let connecting = timeout(patience, self.prepare(request));
        let ready = connecting.await.unwrap_or_else(|_| Err(SendError::Connect("not in time".to_owned())))?;
        self.send(ready, patience).await
    }

    /// Sends a GET request with these headers and reads the answer.
    ///
    /// # Errors
    /// No answer within `patience`, the connection included.
    pub async fn get(
        &self,
        target: &str,
        headers: &[(&'static str, String)],
        patience: Duration,
    ) -> Result<HttpAnswer, SendError> {
        let mut request = Request::new(Full::default());
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|_| SendError::Target)?;
            request.headers_mut().insert(*name, value);
        }
        let asking = async {
            let ready = self.connect(target, request).await?;
            self.send(ready, patience).await
        };
        timeout(patience, asking).await.unwrap_or(Err(SendError::TimeOut))
    }

    /// Addresses a request, and opens or takes a connection for it.
    async fn connect(&self, target: &str, mut request: Request<Full<Bytes>>) -> Result<PreparedRequest, SendError> {
        let uri: Uri = target.parse().map_err(|_| SendError::Target)?;
        let authority = uri.authority().ok_or(SendError::Target)?;
        let (tls, port) = match uri.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            _ => return Err(SendError::Target),
        };
        *request.uri_mut() =
            uri.path_and_query().map_or("/", |path| path.as_str()).parse().map_err(|_| SendError::Target)?;
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| SendError::Target)?;
        request.headers_mut().insert(HOST, host);
        let origin = format!("{}://{authority}", if tls { "https" } else { "http" });
        let link = match self.kept(&origin).await {
            Some(link) => link,
            None => {
                // The resolver takes an IPv6 address without the brackets of a URL.
                let host = authority.host().trim_matches(['[', ']']);
                let address = (host, authority.port_u16().unwrap_or(port));
                connect(address, tls).await.map_err(|error| SendError::Connect(error.to_string()))?
            }
        };
        Ok(PreparedRequest { origin, link, request })
    }

    /// A kept connection that is still open.
    async fn kept(&self, origin: &str) -> Option<Link> {
        loop {
            let mut link = self.idle.lock().get_mut(origin)?.pop()?;
            if poll!(&mut link.connection).is_pending() && link.sender.is_ready() {
                return Some(link);
            }
        }
    }

    /// Keeps the connection of a request that will not be sent.
    pub fn keep(&self, ready: PreparedRequest) {
        self.put_back(ready.origin, ready.link);
    }

    fn put_back(&self, origin: String, link: Link) {
        let mut idle = self.idle.lock();
        let links = idle.entry(origin).or_default();
        if links.len() < IDLE_MAX {
            links.push(link);
        }
    }

    /// Sends, and reads the answer. The first poll of this future writes the whole request to the socket, if it fits into the
    /// socket's buffer.
    ///
    /// # Errors
    /// No answer within `patience`, or a lost connection: it is unknown whether the request took effect.
    pub async fn send(&self, ready: PreparedRequest, patience: Duration) -> Result<HttpAnswer, SendError> {
        let PreparedRequest { origin, mut link, request } = ready;
        let ended = timeout(patience, link.exchange(request)).await.unwrap_or(Err(SendError::TimeOut));
        // A connection is not reused after a failure, or after it was closed with the answer.
        let (answer, is_open) = ended?;
        if is_open {
            self.put_back(origin, link);
        }
        Ok(answer)
    }
}

impl Link {
    /// The answer, and whether the connection can be reused.
    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<(HttpAnswer, bool), SendError> {
        let lost = |error: hyper::Error| SendError::Lost(error.to_string());
        let sender = &mut self.sender;
        let answer = async {
            let response = sender.send_request(request).await.map_err(lost)?;
            let status = response.status().as_u16();
            let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
            let retry_after = text(RETRY_AFTER).and_then(|after| retry_after(after, text(DATE)));
            // A truncated answer counts: its status has been read.
            let body = Limited::new(response.into_body(), ANSWER_MAX_BYTES).collect().await;
            let whole = body.is_ok();
            let body = body.map(|b| b.to_bytes()).unwrap_or_default();
            Ok((HttpAnswer { status, retry_after, body }, whole))
        };
        tokio::pin!(answer);
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            // Closed: the answer may have arrived with the close.
            _ = &mut self.connection => answer.await.map(|(answer, _)| (answer, false)),
        }
    }
}

async fn connect(address: (&str, u16), tls: bool) -> Result<Link, Box<dyn std::error::Error + Send + Sync>> {
    let transport = transport::connect(address, tls).await?;
    let (sender, connection) = http1::handshake(TokioIo::new(transport)).await?;
    let mut link = Link { sender, connection: Box::pin(connection) };
    // The first poll makes the sender ready.
    if poll!(&mut link.connection).is_ready() {
        return Err("closed at once".into());
    }
    Ok(link)
}
