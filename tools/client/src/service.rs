//! The service's address, and the connections to it.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::error::{Error, Problem};

/// The default time-out of a call: about the time that a person waits before a reload.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a new connection may take, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The service keeps an idle connection for 75 s. A shorter time here avoids writing to a closed connection.
const IDLE_FOR: Duration = Duration::from_secs(60);
/// Idle connections that are kept; more are closed after their answer.
const IDLE_MAX: usize = 256;
/// The longest answer that is read: a page of orders has 30 kB, and a challenge with its pictures less than 200 kB.
const ANSWER_MAX_BYTES: usize = 1024 * 1024;
/// A longer `Retry-After` is cut to a day.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

/// A service at an address. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Service {
    /// Without a slash at the end.
    base: Arc<str>,
    http: Client,
    timeout: Duration,
}

/// The settings of a [`Service`].
#[derive(Debug, Clone)]
pub struct ServiceBuilder {
    address: String,
    timeout: Duration,
    #[cfg(feature = "tls")]
    root_certificates_pem: Option<Vec<u8>>,
}

impl ServiceBuilder {
    /// How long a call may take, from the connection to the end of the answer. 5 s by default.
    ///
    /// A purchase is repeated after this time. A stream of events must open within it.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Trusts only these authorities (PEM, one or more certificates), and not the machine's.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn root_certificates_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.root_certificates_pem = Some(certificates.into());
        self
    }

    /// Makes the service. No connection is made yet.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the address is no `http://` address, or `https://` without the feature `tls`; or the certificates
    /// cannot be read.
    pub fn build(self) -> Result<Service, Error> {
        let base = check_address(&self.address)?;
        let client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_FOR)
            .pool_max_idle_per_host(IDLE_MAX)
            .http1_only()
            .redirect(Policy::none());
        #[cfg(feature = "tls")]
        let client = match Url::parse(&base) {
            Ok(url) if url.scheme() == "https" => {
                client.tls_backend_preconfigured(crate::tls::config(self.root_certificates_pem.as_deref())?)
            }
            _ => client,
        };
        let http = client.build().map_err(|error| Error::invalid("the connection", chain(&error)))?;
        Ok(Service { base: base.into(), http, timeout: self.timeout })
    }
}

impl Service {
    /// The service at this address, with the default time-out: `http://host:port`, with an optional path before `/api`.
    ///
    /// # Errors
    /// As [`ServiceBuilder::build`].
    pub fn new(address: &str) -> Result<Self, Error> {
        Self::builder(address).build()
    }

    /// The service at this address, with further settings.
    pub fn builder(address: &str) -> ServiceBuilder {
        ServiceBuilder {
            address: address.to_owned(),
            timeout: TIMEOUT,
            #[cfg(feature = "tls")]
            root_certificates_pem: None,
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A request to a path of the API.
    pub(crate) fn request(&self, method: Method, path: &str, bearer: Option<&Bearer>) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match bearer {
            Some(Bearer(value)) => request.header(AUTHORIZATION, value.clone()),
            None => request,
        }
    }
}

/// Sends a request, and reads an answer of type `T`.
pub(crate) async fn call<T: DeserializeOwned>(request: RequestBuilder, within: Duration) -> Result<T, Error> {
    exchange(request, within).await?.read()
}

/// A whole answer.
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    /// Reads the body. `within` is the time-out for the error's text.
    pub(crate) async fn whole(mut response: Response, within: Duration) -> Result<Self, Error> {
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| failed(&error, within))? {
            if body.len() + chunk.len() > ANSWER_MAX_BYTES {
                return Err(Error::Unreadable(format!("it has more than {ANSWER_MAX_BYTES} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Self { status, headers, body })
    }

    /// The document of a successful answer; the problem of any other.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        if !self.status.is_success() {
            return Err(self.problem());
        }
        serde_json::from_slice(&self.body)
            .map_err(|error| Error::Unreadable(format!("{} with {error}", self.status.as_u16())))
    }

    pub(crate) fn problem(&self) -> Error {
        Error::Problem(Box::new(Problem::read(self.status, retry_after(&self.headers), &self.body)))
    }
}

/// Sends a request, and reads the whole answer.
pub(crate) async fn exchange(request: RequestBuilder, within: Duration) -> Result<Answer, Error> {
    let exchanging = async {
        let response = request.send().await.map_err(|error| failed(&error, within))?;
        Answer::whole(response, within).await
    };
    timeout(within, exchanging).await.unwrap_or(Err(Error::TimeOut(within)))
}

/// Classifies a request's error: a caller must know whether the request was sent.
pub(crate) fn failed(error: &reqwest::Error, within: Duration) -> Error {
    if error.is_builder() {
        Error::invalid("the request", chain(error))
    } else if error.is_connect() {
        Error::Connect(chain(error))
    } else if error.is_timeout() {
        Error::TimeOut(within)
    } else {
        Error::Lost(chain(error))
    }
}

/// An error with its causes: reqwest's own text has only the address.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The wait of `Retry-After`, up to a bound. A proxy may send it as a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let pause = seckill_webhook::retry_after(text(RETRY_AFTER)?, text(DATE))?;
    Some(pause.min(RETRY_AFTER_MAX))
}

fn check_address(address: &str) -> Result<String, Error> {
    let invalid = |why: &str| Error::invalid("the address", format_args!("{why}: {address}"));
    let url = Url::parse(address).map_err(|error| invalid(&error.to_string()))?;
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("may have a host, a port and a path, and nothing else"));
    }
    match url.scheme() {
        "http" => {}
        "https" if cfg!(feature = "tls") => {}
        "https" => return Err(invalid("needs the feature `tls` of seckill-client")),
        _ => return Err(invalid("must begin with http:// or https://")),
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// A token as its header value. It is never shown.
#[derive(Debug, Clone)]
pub(crate) struct Bearer(HeaderValue);

impl Bearer {
    pub(crate) fn new(token: &str) -> Result<Self, Error> {
        let wrong = || Error::invalid("the token", "must be visible ASCII characters");
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong());
        }
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| wrong())?;
        // Debug output hides the token.
        value.set_sensitive(true);
        Ok(Self(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_a_service_are_taken() {
        for address in ["127.0.0.1:8080", "ftp://shop", "http://", "http://u@shop", "http://shop/?a=b", "nonsense"] {
            assert!(matches!(check_address(address), Err(Error::Invalid { .. })), "{address}");
        }
        for (address, base) in [("http://shop/", "http://shop"), ("http://[::1]:8080/a/b/", "http://[::1]:8080/a/b")] {
            assert_eq!(check_address(address).unwrap(), base);
        }
        assert_eq!(check_address("https://shop").is_ok(), cfg!(feature = "tls"));
    }

    #[test]
    fn a_token_is_one_word_and_is_not_shown() {
        assert!(!format!("{:?}", Bearer::new("s3cret").unwrap()).contains("s3cret"));
        for token in ["", "two words", "line\nend", "ü"] {
            assert!(Bearer::new(token).is_err(), "{token:?}");
        }
    }

    #[test]
    fn retry_after_is_bounded() {
        let of =
            |text: &'static str| retry_after(&[(RETRY_AFTER, HeaderValue::from_static(text))].into_iter().collect());
        assert_eq!(of("3"), Some(Duration::from_secs(3)));
        assert_eq!(of("999999999999"), Some(Duration::from_secs(86_400)));
        assert_eq!(of("soon"), None);
        let headers = [
            (RETRY_AFTER, HeaderValue::from_static("Wed, 21 Oct 2026 07:28:00 GMT")),
            (DATE, HeaderValue::from_static("Wed, 21 Oct 2026 07:27:10 GMT")),
        ];
        assert_eq!(retry_after(&headers.into_iter().collect()), Some(Duration::from_secs(50)));
    }
}
