//! Posts spans to the OTLP collector over HTTP/1.1, with the crates of webhooks: the exporter's own clients are a second HTTP stack.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Uri;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

const DEFAULT_TIMEOUT_MS: u64 = 10_000;
const ANSWER_MAX_BYTES: usize = 64 * 1024;

/// The exporter's thread has no runtime, so the sender has its own.
#[derive(Debug)]
pub(super) struct TraceSender {
    runtime: Runtime,
    timeout: Duration,
    failing: AtomicBool,
}

impl TraceSender {
    /// Takes the time limit from `OTEL_EXPORTER_OTLP_TRACES_TIMEOUT` or `OTEL_EXPORTER_OTLP_TIMEOUT`, in milliseconds.
    pub(super) fn new() -> std::io::Result<Self> {
        let names = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
        let timeout_ms = names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
        let timeout = Duration::from_millis(timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS));
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, timeout, failing: AtomicBool::new(false) })
    }

    /// Logs once when the collector begins to fail, and once when it is back.
    fn note(&self, answer: &Result<Response<Bytes>, HttpError>) {
        let problem = match answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(answer.status().to_string()),
            Err(error) => Some(error.to_string()),
        };
        match (self.failing.swap(problem.is_some(), Ordering::Relaxed), problem) {
            (false, Some(why)) => tracing::warn!(why, "the collector does not take spans; they are lost"),
            (true, None) => tracing::info!("the collector takes spans again"),
            (false, None) | (true, Some(_)) => {}
        }
    }
}

#[async_trait]
impl HttpClient for TraceSender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sending = async { tokio::time::timeout(self.timeout, post(request)).await? };
        let answer = self.runtime.block_on(sending);
        self.note(&answer);
        answer
    }
}

/// One request on a connection of its own: a batch leaves every few seconds.
async fn post(mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let uri = request.uri().clone();
    let authority = match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(authority)) => authority,
        _ => return Err(format!("the collector's address must begin with http://, and is {uri}").into()),
    };
    // The resolver takes an IPv6 address without the brackets that a URL has around it.
    let host = authority.host().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    request.headers_mut().insert(HOST, authority.as_str().parse()?);
    *request.uri_mut() = uri.path_and_query().cloned().map_or_else(|| Uri::from_static("/"), Uri::from);
    let (head, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
    let body = Limited::new(body, ANSWER_MAX_BYTES).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}
