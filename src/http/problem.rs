//! The one mapping of errors to HTTP: problem details (RFC 9457), with a code from the README's catalogue.

use std::fmt;

use actix_web::body::BoxBody;
use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use actix_web::{HttpRequest, HttpResponse, ResponseError};
use serde_json::{Value, json};

use crate::domain::ids::Invalid;
use crate::sale::SaleError;
use crate::sale::purchase::Refusal;

/// An answer that says what is wrong, to the caller; what it says to the log is the log's business.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: Option<String>,
    /// Further members of the body.
    members: Vec<(&'static str, Value)>,
    headers: Vec<(HeaderName, String)>,
}

impl Problem {
    const fn new(status: StatusCode, code: &'static str, title: &'static str) -> Self {
        Self { status, code, title, detail: None, members: Vec::new(), headers: Vec::new() }
    }

    pub fn invalid(detail: impl fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid-request", "The request is not valid").detail(detail)
    }

    pub fn unauthenticated(detail: &'static str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", "A valid bearer token is needed")
            .detail(detail)
            .header(actix_web::http::header::WWW_AUTHENTICATE, "Bearer")
    }

    pub const fn unknown_sale() -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown-sale", "There is no such sale")
    }

    pub const fn unknown_order() -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown-order", "You have no such order")
    }

    pub const fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "There is nothing here")
    }

    pub fn too_large(max_bytes: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large")
            .detail(format_args!("at most {max_bytes} bytes"))
    }

    pub const fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "too-slow", "The body did not come in time")
    }

    pub const fn wrong_method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "This address does not take this method")
    }

    pub const fn order_not_ready() -> Self {
        Self::new(StatusCode::CONFLICT, "order-not-ready", "The order is still being made; try again shortly")
    }

    pub const fn illegal_state() -> Self {
        Self::new(StatusCode::CONFLICT, "illegal-state", "The order's status does not allow this")
    }

    pub fn unavailable() -> Self {
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "temporarily-unavailable", "Please try again shortly");
        problem.header(RETRY_AFTER, "1")
    }

    fn detail(mut self, detail: impl fmt::Display) -> Self {
        self.detail = Some(detail.to_string());
        self
    }

    fn member(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.members.push((name, value.into()));
        self
    }

    fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code)
    }
}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse<BoxBody> {
        metrics::counter!("seckill_problems_total", "code" => self.code).increment(1);
        let mut body = json!({
            "type": format!("urn:seckill:problem:{}", self.code),
            "title": self.title,
            "status": self.status.as_u16(),
            "code": self.code,
        });
        if let Some(members) = body.as_object_mut() {
            members.extend(self.detail.iter().map(|detail| ("detail".to_owned(), detail.as_str().into())));
            members.extend(self.members.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        }
        let mut response = HttpResponse::build(self.status);
        response.insert_header((CONTENT_TYPE, HeaderValue::from_static("application/problem+json")));
        // What is left of a body that was not read whole must not be taken for the next request.
        if matches!(self.status, StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE) {
            response.force_close();
        }
        for (name, value) in &self.headers {
            response.insert_header((name.clone(), value.as_str()));
        }
        response.body(body.to_string())
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid)
    }
}

impl From<SaleError> for Problem {
    fn from(error: SaleError) -> Self {
        tracing::warn!(%error, "request failed");
        Self::unavailable()
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let forbidden = |code, title| Self::new(StatusCode::FORBIDDEN, code, title);
        let conflict = |code, title| Self::new(StatusCode::CONFLICT, code, title);
        match refusal {
            Refusal::TooMany { per_user } => {
                Self::invalid(format_args!("quantity may be at most {} in this sale", per_user.get()))
            }
            Refusal::UnknownSale => Self::unknown_sale(),
            Refusal::NotStarted { starts_at_ms } => {
                forbidden("not-started", "The sale has not started").member("starts_at_ms", starts_at_ms)
            }
            Refusal::Ended => forbidden("ended", "The sale has ended"),
            Refusal::WrongKey => forbidden("wrong-key", "The purchase key is not the open sale's"),
            Refusal::LevelTooLow { min_level } => {
                forbidden("level-too-low", "This sale is for higher levels").member("min_level", min_level)
            }
            Refusal::SoldOut => conflict("sold-out", "Sold out"),
            Refusal::AlreadyPurchased { order } => {
                let problem = conflict("already-purchased", "You have bought all that one buyer may");
                match order {
                    Some(order) => problem.member("order_id", order.to_string()),
                    None => problem,
                }
            }
            Refusal::IdempotencyMismatch => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency-mismatch",
                "This Idempotency-Key was used for another request",
            ),
            Refusal::Limited { limit, window, retry_ms } => {
                let (name, seconds) = (limit.as_str(), retry_ms.div_ceil(1000).max(1));
                Self::new(StatusCode::TOO_MANY_REQUESTS, "quota-exceeded", "Too many requests")
                    .detail(format_args!("the limit of one {name} is reached"))
                    .header(RETRY_AFTER, seconds.to_string())
                    .header(
                        HeaderName::from_static("ratelimit-policy"),
                        format!("\"{name}\";q={};w={}", window.max, window.window_ms.unsigned_abs().div_ceil(1000)),
                    )
                    .header(HeaderName::from_static("ratelimit"), format!("\"{name}\";r=0;t={seconds}"))
            }
            Refusal::Unavailable => Self::unavailable(),
        }
    }
}

/// The answer to methods that an address does not take.
pub async fn no_such_method() -> Result<HttpResponse, Problem> {
    Err(Problem::wrong_method())
}

/// The answer at addresses that do not exist.
pub async fn no_such_page(request: HttpRequest) -> Result<HttpResponse, Problem> {
    tracing::debug!(path = request.path(), "no such page");
    Err(Problem::not_found())
}
