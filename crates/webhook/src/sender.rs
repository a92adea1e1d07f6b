//! Posting JSON to a receiver, at a moment: the connection is made beforehand, and the request leaves with the call. And
//! asking it something.
//!
//! HTTP/1.1, one request at a time on a connection. Redirects are not followed.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use futures_util::poll;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use uuid::Uuid;

use crate::transport::{self, Transport};

/// Connections that are kept for the next request, for each receiver; a sender rarely has more under way.
const IDLE_MAX: usize = 16;
/// A longer answer is read no further.
const ANSWER_MAX_BYTES: usize = 512 * 1024;
/// Of a text, people are shown the beginning.
const SHOWN_CHARS: usize = 200;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Nothing was sent.
    #[error("the target is no http:// or https:// address")]
    Target,
    /// Nothing was sent.
    #[error("no connection: {0}")]
    Connect(String),
    /// Whether the request took effect is unknown.
    #[error("no answer in time")]
    TimeOut,
    /// Whether the request took effect is unknown.
    #[error("connection lost: {0}")]
    Lost(String),
}

impl SendError {
    /// Whether it is certain that the receiver has seen nothing.
    pub fn nothing_sent(&self) -> bool {
        matches!(self, Self::Target | Self::Connect(_))
    }
}

/// What the receiver said.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub retry_after: Option<Duration>,
    /// Empty where it was too long, or broke off.
    pub body: Bytes,
}

impl HttpAnswer {
    /// The beginning of the body, for people.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).chars().take(SHOWN_CHARS).collect()
    }
}

/// Posts to receivers, keeping connections.
#[derive(Default)]
pub struct HttpSender {
    /// By the origin that they lead to.
    idle: Mutex<HashMap<String, Vec<Link>>>,
}

/// A connection that stands, and the request that is to go over it.
pub struct PreparedRequest {
    origin: String,
    link: Link,
    request: Request<Full<Bytes>>,
}

/// Connection and sender in one place: polled by one task, the request reaches the socket without a change of threads.
struct Link {
    sender: SendRequest<Full<Bytes>>,
    connection: Pin<Box<Connection<TokioIo<Transport>, Full<Bytes>>>>,
}

impl HttpSender {
    /// Prepares a request and sees to a connection for it.
    pub async fn prepare(
        &self,
        target: &str,
        key: Uuid,
        headers: &[(&'static str, String)],
        body: Vec<u8>,
    ) -> Result<PreparedRequest, SendError> {
        let key = HeaderValue::from_str(&key.to_string()).map_err(|_| SendError::Target)?;
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        let own = [(CONTENT_TYPE, HeaderValue::from_static("application/json")), (IDEMPOTENCY_KEY, key)];
        request.headers_mut().extend(own);
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|_| SendError::Target)?;
            request.headers_mut().insert(*name, value);
        }
        self.ready(target, request).await
    }

    /// Asks a receiver for something.
    pub async fn get(&self, target: &str, patience: Duration) -> Result<HttpAnswer, SendError> {
        let asking = async {
            let ready = self.ready(target, Request::new(Full::default())).await?;
            self.send(ready, patience).await
        };
        timeout(patience, asking).await.unwrap_or(Err(SendError::TimeOut))
    }

    /// Addresses a request, and sees to a connection for it.
    async fn ready(&self, target: &str, mut request: Request<Full<Bytes>>) -> Result<PreparedRequest, SendError> {
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
                // The resolver takes an IPv6 address without the brackets that a URL has around it.
                let host = authority.host().trim_matches(['[', ']']);
                let address = (host, authority.port_u16().unwrap_or(port));
                connect(address, tls).await.map_err(|error| SendError::Connect(error.to_string()))?
            }
        };
        Ok(PreparedRequest { origin, link, request })
    }

    /// A kept connection that the other end has not closed meanwhile.
    async fn kept(&self, origin: &str) -> Option<Link> {
        loop {
            let mut link = self.lock().get_mut(origin)?.pop()?;
            if poll!(&mut link.connection).is_pending() && link.sender.is_ready() {
                return Some(link);
            }
        }
    }

    /// Puts back what was prepared and not sent.
    pub fn keep(&self, ready: PreparedRequest) {
        self.put_back(ready.origin, ready.link);
    }

    fn put_back(&self, origin: String, link: Link) {
        let mut idle = self.lock();
        let links = idle.entry(origin).or_default();
        if links.len() < IDLE_MAX {
            links.push(link);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<Link>>> {
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Sends, and reads the answer. The first poll of this writes the whole request to the socket, as long as it fits in
    /// the socket's buffer.
    pub async fn send(&self, ready: PreparedRequest, patience: Duration) -> Result<HttpAnswer, SendError> {
        let PreparedRequest { origin, mut link, request } = ready;
        let ended = timeout(patience, link.exchange(request)).await.unwrap_or(Err(SendError::TimeOut))?;
        // A connection on which anything failed, or that was closed behind the answer, is not used again.
        if let (answer, true) = ended {
            self.put_back(origin, link);
            return Ok(answer);
        }
        Ok(ended.0)
    }
}

impl Link {
    /// The answer, and whether the connection can be used again.
    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<(HttpAnswer, bool), SendError> {
        let lost = |error: hyper::Error| SendError::Lost(error.to_string());
        let sender = &mut self.sender;
        let answer = async {
            let response = sender.send_request(request).await.map_err(lost)?;
            let status = response.status().as_u16();
            let retry_after = response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.trim().parse().ok());
            // An answer that is too long, or breaks off, is an answer all the same: its status has been read.
            let body = Limited::new(response.into_body(), ANSWER_MAX_BYTES).collect().await;
            let whole = body.is_ok();
            let body = body.map(|b| b.to_bytes()).unwrap_or_default();
            let retry_after = retry_after.map(Duration::from_secs);
            Ok((HttpAnswer { status, retry_after, body }, whole))
        };
        tokio::pin!(answer);
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            // Closed: the answer may have come with it.
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
