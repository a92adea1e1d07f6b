//! The one mapping of errors to HTTP: problem details (RFC 9457) with a code that docs/errors.md explains.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use actix_web::body::BoxBody;
use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use actix_web::web::{Bytes, Data};
use actix_web::{HttpRequest, HttpResponse, ResponseError};
use serde::Serialize;
use strum::VariantArray;
use utoipa::ToSchema;

use super::AppState;
use super::codes::Code;
use crate::admin::AdminError;
use crate::admin::password::HashingError;
use crate::domain::account::Denied;
use crate::domain::ids::{Invalid, OrderId};
use crate::domain::policy::WrongPolicy;
use crate::flow::FlowError;
use crate::pay::PayError;
use crate::picture::{FILE_BYTES_MAX, PictureError};
use crate::sale::SaleError;
use crate::sale::challenges::ChallengeRefusal;
use crate::sale::purchase::Refusal;
use crate::sale::quota::{CallerTooOften, TooOften};

/// An answer that tells the caller what went wrong. What the log should hold is logged where the error is mapped.
#[derive(Debug)]
pub struct Problem {
    code: Code,
    /// The code's, except for a gateway.
    status: StatusCode,
    detail: Option<Box<str>>,
    members: Members,
    headers: Vec<(HeaderName, String)>,
    /// Whether the request's body was not read to its end.
    is_unread: bool,
}

/// Members of a problem that depend on its code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
struct Members {
    /// With `already-purchased`: the newest of the buyer's orders.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    order_id: Option<OrderId>,
    /// With `not-started`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    starts_at_ms: Option<i64>,
    /// With `not-started`, where a challenge was asked for: from when on it can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    opens_at_ms: Option<i64>,
    /// With `level-too-low`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    min_level: Option<i64>,
}

/// Problem details (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct Body<'a> {
    /// `urn:seckill:problem:` and the code.
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    code: Code,
    /// More about this request, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<&'a str>,
    #[serde(flatten)]
    #[schema(inline)]
    members: Members,
}

impl Problem {
    fn new(code: Code) -> Self {
        let status = code.status();
        Self { code, status, detail: None, members: Members::default(), headers: Vec::new(), is_unread: false }
    }

    pub fn invalid(detail: impl fmt::Display) -> Self {
        Self::new(Code::InvalidRequest).detail(detail)
    }

    pub fn unauthenticated(detail: &'static str) -> Self {
        Self::new(Code::Unauthenticated).detail(detail).header(WWW_AUTHENTICATE, "Bearer")
    }

    pub fn forbidden(detail: &'static str) -> Self {
        Self::new(Code::Forbidden).detail(detail)
    }

    pub fn unknown_sale() -> Self {
        Self::new(Code::UnknownSale)
    }

    pub fn unknown_order() -> Self {
        Self::new(Code::UnknownOrder)
    }

    pub fn not_found() -> Self {
        Self::new(Code::NotFound)
    }

    pub fn too_large(max_bytes: usize) -> Self {
        Self::new(Code::BodyTooLarge).detail(format_args!("at most {max_bytes} bytes"))
    }

    pub fn too_slow() -> Self {
        Self::new(Code::TooSlow)
    }

    /// The request's body was not read to its end, so the connection is closed.
    pub fn unread(mut self) -> Self {
        self.is_unread = true;
        self
    }

    pub fn order_not_ready() -> Self {
        Self::new(Code::OrderNotReady)
    }

    pub fn illegal_state() -> Self {
        Self::new(Code::IllegalState)
    }

    /// A callback whose signature is wrong.
    pub fn not_believed(why: &impl fmt::Display) -> Self {
        Self::new(Code::NotBelieved).detail(why).header(WWW_AUTHENTICATE, "Signature")
    }

    pub fn misfit(why: &'static str) -> Self {
        Self::new(Code::Misfit).detail(why)
    }

    pub fn unavailable() -> Self {
        Self::new(Code::TemporarilyUnavailable).header(RETRY_AFTER, "1")
    }

    /// A caller has asked too often. `name` is what is counted: `buyer`, `address`.
    pub fn too_often(name: &'static str, TooOften { max, window, retry }: TooOften) -> Self {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self::limited(name, max.into(), millis(window), millis(retry))
    }

    /// A request that is answered unread, because too many of its kind have come.
    pub fn shed(what: &'static str) -> Self {
        metrics::counter!("seckill_shed_total", "what" => what).increment(1);
        Self::unavailable()
    }

    /// A limit is reached. `name` is what it counts: `buyer`, `address`, `sale`, `account`.
    fn limited(name: &str, max: i64, window_ms: u64, retry_ms: u64) -> Self {
        let seconds = retry_ms.div_ceil(1000).max(1);
        Self::new(Code::QuotaExceeded)
            .detail(format_args!("the limit of one {name} is reached"))
            .header(RETRY_AFTER, seconds.to_string())
            .header(
                HeaderName::from_static("ratelimit-policy"),
                format!("\"{name}\";q={max};w={}", window_ms.div_ceil(1000)),
            )
            .header(HeaderName::from_static("ratelimit"), format!("\"{name}\";r=0;t={seconds}"))
    }

    /// A policy refuses a permit. The gateway that asked for it chose the status.
    pub fn no_permit(status: StatusCode, why: impl fmt::Display, headers: Vec<(HeaderName, String)>) -> Self {
        Self { status, headers, ..Self::new(Code::QuotaExceeded) }.detail(why)
    }

    /// The same problem for a gateway. It knows 401 and 403, and takes any other status for a failure of this service; so mistakes
    /// of the caller are 403, and only real failures stay 5xx.
    pub fn for_gateway(mut self) -> Self {
        if self.status.is_client_error() && self.status != StatusCode::UNAUTHORIZED {
            self.status = StatusCode::FORBIDDEN;
        }
        self
    }

    pub fn code(&self) -> &'static str {
        self.code.into_str()
    }

    /// What went wrong, for people.
    pub fn title(&self) -> &'static str {
        self.code.title()
    }

    /// More about this request, for people.
    pub fn text(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    fn detail(mut self, detail: impl fmt::Display) -> Self {
        self.detail = Some(detail.to_string().into());
        self
    }

    fn with(mut self, members: Members) -> Self {
        self.members = members;
        self
    }

    fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The body as it is sent. Where nothing but the code is told, as to nearly all of a crowd, it is made once and kept for ever.
    fn json(&self) -> Bytes {
        static BARE: OnceLock<Vec<Bytes>> = OnceLock::new();
        let is_bare = self.detail.is_none() && self.members == Members::default() && self.status == self.code.status();
        // The body holds only strings and numbers, so serializing cannot fail.
        let written = |problem: &Self| serde_json::to_vec(&problem.body()).unwrap_or_default();
        if !is_bare {
            return written(self).into();
        }
        // Bytes that are never freed are shared without counting who uses them.
        let kept = |code: &Code| Bytes::from_static(written(&Self::new(*code)).leak());
        let bare = BARE.get_or_init(|| Code::VARIANTS.iter().map(kept).collect());
        bare.get(self.code as usize).cloned().unwrap_or_default()
    }

    fn body(&self) -> Body<'_> {
        Body {
            kind: format!("urn:seckill:problem:{}", self.code.into_str()),
            title: self.code.title(),
            status: self.status.as_u16(),
            code: self.code,
            detail: self.detail.as_deref(),
            members: self.members,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code.into_str())
    }
}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse<BoxBody> {
        self.code.count();
        let mut response = HttpResponse::build(self.status);
        response.insert_header((CONTENT_TYPE, HeaderValue::from_static("application/problem+json")));
        // The rest of the body must not be taken for the next request.
        if self.is_unread {
            response.force_close();
        }
        for (name, value) in &self.headers {
            response.insert_header((name.clone(), value.as_str()));
        }
        response.body(self.json())
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid)
    }
}

impl From<SaleError> for Problem {
    fn from(error: SaleError) -> Self {
        if let SaleError::Overloaded(what) = error {
            return Self::shed(what);
        }
        tracing::warn!(%error, "request failed");
        Self::unavailable()
    }
}

impl From<PayError> for Problem {
    fn from(error: PayError) -> Self {
        tracing::warn!(%error, "request failed");
        Self::unavailable()
    }
}

impl From<AdminError> for Problem {
    fn from(error: AdminError) -> Self {
        let signed_out = |code| Self::new(code).header(WWW_AUTHENTICATE, "Cookie");
        match error {
            AdminError::Flow(error) => error.into(),
            AdminError::Invalid(invalid) => Self::invalid(invalid),
            AdminError::Malformed(malformed) => Self::invalid(malformed),
            AdminError::WrongCredentials => signed_out(Code::WrongCredentials),
            AdminError::SignedOut => signed_out(Code::SignedOut),
            AdminError::TooMany { limit, max, window_ms, retry_ms } => Self::limited(limit, max, window_ms, retry_ms),
            AdminError::Forged(why) => Self::new(Code::ForgedRequest).detail(why),
            AdminError::Denied(Denied::Forbidden) => Self::new(Code::Forbidden),
            // The answer does not say which of the two it is.
            AdminError::Denied(Denied::Hidden) | AdminError::Unknown(_) => Self::not_found(),
            AdminError::Conflict(why) => Self::new(Code::Conflict).detail(why),
            AdminError::Unworkable(why) => Self::new(Code::UnworkableTerms).detail(why),
            AdminError::Picture(PictureError::Busy) => Self::shed("pictures"),
            AdminError::Picture(PictureError::TooLong) => Self::too_large(FILE_BYTES_MAX),
            AdminError::Picture(wrong) => Self::invalid(wrong),
            AdminError::Sale(error) => error.into(),
            AdminError::IllegalState(why) => Self::illegal_state().detail(why),
            AdminError::Busy(what) => Self::shed(what),
            AdminError::Pay(error) => error.into(),
            AdminError::Hashing(HashingError::Busy) => Self::shed("sign-ins"),
            AdminError::Gate(_) | AdminError::Ledger(_) | AdminError::Hashing(_) => {
                tracing::warn!(%error, "request failed");
                Self::unavailable()
            }
        }
    }
}

impl From<FlowError> for Problem {
    fn from(error: FlowError) -> Self {
        match &error {
            FlowError::Invalid(invalid) => Self::invalid(invalid),
            FlowError::Policy(wrong @ WrongPolicy::Unworkable(_)) => Self::new(Code::UnworkableTerms).detail(wrong),
            FlowError::Policy(wrong) => Self::invalid(wrong),
            FlowError::Pace(wrong) => Self::invalid(wrong),
            FlowError::Unknown(_) => Self::not_found(),
            FlowError::Ambiguous | FlowError::Exists(_) | FlowError::TwoTokens { .. } => {
                Self::new(Code::Conflict).detail(error)
            }
            FlowError::NotOwned => Self::new(Code::Forbidden).detail(error),
            FlowError::Gate(_) | FlowError::Ledger(_) => {
                tracing::warn!(%error, "request failed");
                Self::unavailable()
            }
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TooMany { per_user } => {
                Self::invalid(format_args!("quantity may be at most {} in this sale", per_user.get()))
            }
            Refusal::UnknownSale => Self::unknown_sale(),
            Refusal::NotStarted { starts_at_ms } => {
                Self::new(Code::NotStarted).with(Members { starts_at_ms: Some(starts_at_ms), ..Members::default() })
            }
            Refusal::Ended => Self::new(Code::Ended),
            Refusal::WrongKey => Self::new(Code::WrongKey),
            Refusal::LevelTooLow { min_level } => {
                Self::new(Code::LevelTooLow).with(Members { min_level: Some(min_level), ..Members::default() })
            }
            Refusal::PassInvalid => Self::new(Code::PassInvalid),
            Refusal::SoldOut => Self::new(Code::SoldOut),
            Refusal::AlreadyPurchased { order } => {
                Self::new(Code::AlreadyPurchased).with(Members { order_id: order, ..Members::default() })
            }
            Refusal::IdempotencyMismatch => Self::new(Code::IdempotencyMismatch),
            Refusal::Limited { limit, window, retry_ms } => {
                Self::limited(limit.as_str(), window.max, window.window_ms.unsigned_abs(), retry_ms)
            }
            Refusal::Lapsed { allowed, retry_ms } => {
                Self::limited("lapsed-holds", allowed.max, allowed.window_ms.unsigned_abs(), retry_ms)
                    .detail("you reserved several times and did not pay in time; please wait before the next time")
            }
            Refusal::Unavailable => Self::unavailable(),
        }
    }
}

impl From<ChallengeRefusal> for Problem {
    fn from(refusal: ChallengeRefusal) -> Self {
        match refusal {
            ChallengeRefusal::UnknownSale => Self::unknown_sale(),
            ChallengeRefusal::NotStarted { starts_at_ms, opens_at_ms } => {
                let members =
                    Members { starts_at_ms: Some(starts_at_ms), opens_at_ms: Some(opens_at_ms), ..Members::default() };
                Self::new(Code::NotStarted).with(members)
            }
            ChallengeRefusal::Ended => Self::new(Code::Ended),
            ChallengeRefusal::NoChallenge => Self::new(Code::NoChallenge),
            ChallengeRefusal::Failed => Self::new(Code::ChallengeFailed),
            ChallengeRefusal::TooOften(CallerTooOften::Buyer(too_often)) => Self::too_often("buyer", too_often),
            ChallengeRefusal::TooOften(CallerTooOften::Address(too_often)) => Self::too_often("address", too_often),
            ChallengeRefusal::PoolEmpty => Self::shed("challenges"),
            ChallengeRefusal::Unavailable => Self::unavailable(),
        }
    }
}

/// The answer to methods that an address does not support. `Allow` lists those that it does.
pub async fn method_not_allowed(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let problem = Problem::new(Code::MethodNotAllowed);
    let allowed = request.match_pattern().and_then(|path| app_state.api.methods(&path));
    Err(match allowed {
        Some(methods) => problem.header(ALLOW, methods),
        None => problem,
    })
}

/// The answer at addresses that do not exist.
pub async fn unknown_address(request: HttpRequest) -> Result<HttpResponse, Problem> {
    tracing::debug!(path = request.path(), "unknown address");
    Err(Problem::not_found())
}
