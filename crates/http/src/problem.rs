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
use serde_json::Value;
use strum::VariantArray;
use utoipa::ToSchema;
use uuid::Uuid;

use super::codes::Code;
use super::{Answer, AppState};
use crate::quota::TooOften;
use seckill_domain::ids::{Invalid, OrderId};

/// An error answer, as the caller sees it. Details for the log are logged where the error is mapped.
#[derive(Debug)]
pub struct Problem {
    code: Code,
    status: StatusCode,
    detail: Option<Box<Detail>>,
    members: Members,
    headers: Vec<(HeaderName, String)>,
    is_unread: bool,
}

/// Members of a problem that depend on its code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Members {
    /// With `already-purchased`: the newest of the buyer's orders.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub order_id: Option<OrderId>,
    /// With `not-started`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub starts_at_ms: Option<i64>,
    /// With `not-started` of a challenge: when challenges become available.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub opens_at_ms: Option<i64>,
    /// With `level-too-low`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub min_level: Option<i64>,
}

/// The details of a problem. Boxed: most problems have none, and a `Problem` stays small.
#[derive(Debug)]
struct Detail {
    field: Option<&'static str>,
    text: Box<str>,
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
    /// With `invalid-request` and `unworkable-terms`: the field or parameter that is wrong, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    field: Option<&'static str>,
    #[serde(flatten)]
    #[schema(inline)]
    members: Members,
}

impl From<Code> for Problem {
    fn from(code: Code) -> Self {
        let status = code.status();
        Self { code, status, detail: None, members: Members::default(), headers: Vec::new(), is_unread: false }
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::from(Code::InvalidRequest).about(&invalid)
    }
}

impl Problem {
    pub fn invalid(detail: impl fmt::Display) -> Self {
        Self::from(Code::InvalidRequest).detail(detail)
    }

    pub fn unauthenticated(detail: impl fmt::Display) -> Self {
        Self::from(Code::Unauthenticated).detail(detail).header(WWW_AUTHENTICATE, "Bearer")
    }

    pub fn too_large(max_bytes: usize) -> Self {
        Self::from(Code::BodyTooLarge).detail(format_args!("at most {max_bytes} bytes"))
    }

    /// The request's body was not read to its end, so the connection is closed.
    pub fn unread(mut self) -> Self {
        self.is_unread = true;
        self
    }

    pub fn not_believed(why: &impl fmt::Display) -> Self {
        Self::from(Code::NotBelieved).detail(why).header(WWW_AUTHENTICATE, "Signature")
    }

    pub fn unavailable() -> Self {
        Self::from(Code::TemporarilyUnavailable).header(RETRY_AFTER, "1")
    }

    pub fn too_often(name: &'static str, TooOften { max, window, retry }: TooOften) -> Self {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self::limited(name, max.into(), millis(window), millis(retry))
    }

    /// A request that is answered unread, because too many of its kind have come.
    pub fn shed(what: &'static str) -> Self {
        metrics::counter!("seckill_shed_total", "what" => what).increment(1);
        Self::unavailable()
    }

    /// A limit is reached. `name` is the limit: `buyer`, `address`, `sale`, `account`.
    pub fn limited(name: &str, max: i64, window_ms: u64, retry_ms: u64) -> Self {
        let seconds = retry_ms.div_ceil(1000).max(1);
        Self::from(Code::QuotaExceeded)
            .detail(format_args!("the limit of one {name} is reached"))
            .header(RETRY_AFTER, seconds.to_string())
            .header(
                HeaderName::from_static("ratelimit-policy"),
                format!("\"{name}\";q={max};w={}", window_ms.div_ceil(1000)),
            )
            .header(HeaderName::from_static("ratelimit"), format!("\"{name}\";r=0;t={seconds}"))
    }

    pub fn no_permit(status: StatusCode, why: impl fmt::Display, headers: Vec<(HeaderName, String)>) -> Self {
        Self { status, headers, ..Self::from(Code::QuotaExceeded) }.detail(why)
    }

    /// The same problem for a gateway. A gateway knows 401 and 403, and takes every other status for a failure of this service. So the
    /// caller's mistakes become 403, and only real failures stay 5xx.
    pub fn for_gateway(mut self) -> Self {
        if self.status.is_client_error() && self.status != StatusCode::UNAUTHORIZED {
            self.status = StatusCode::FORBIDDEN;
        }
        self
    }

    pub fn code(&self) -> &'static str {
        self.code.into_str()
    }

    pub fn title(&self) -> &'static str {
        self.code.title()
    }

    pub fn text(&self) -> Option<&str> {
        self.detail.as_ref().map(|detail| &*detail.text)
    }

    pub fn detail(mut self, detail: impl fmt::Display) -> Self {
        self.detail = Some(Box::new(Detail { field: None, text: detail.to_string().into() }));
        self
    }

    /// Names the field that is wrong, and what is wrong with it.
    pub fn about(mut self, invalid: &Invalid) -> Self {
        self.detail = Some(Box::new(Detail { field: Some(invalid.field), text: invalid.to_string().into() }));
        self
    }

    pub fn with(mut self, members: Members) -> Self {
        self.members = members;
        self
    }

    pub fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The body as it is sent. If it has only a code, as in nearly all answers to a crowd, it is made once and kept for ever.
    fn json(&self) -> Bytes {
        static BARE: OnceLock<Vec<Bytes>> = OnceLock::new();
        let is_bare = self.detail.is_none() && self.members == Members::default() && self.status == self.code.status();
        // The body holds only strings and numbers, so serializing cannot fail.
        let written = |problem: &Self| serde_json::to_vec(&problem.body()).unwrap_or_default();
        if !is_bare {
            return written(self).into();
        }
        // Bytes that are never freed are shared without reference counts.
        let kept = |code: &Code| Bytes::from_static(written(&Self::from(*code)).leak());
        let bare = BARE.get_or_init(|| Code::VARIANTS.iter().map(kept).collect());
        bare.get(self.code as usize).cloned().unwrap_or_default()
    }

    /// A problem with this code, for the API's document.
    pub(super) fn example(code: Code) -> serde_json::Result<Value> {
        let members = match code {
            Code::AlreadyPurchased => Members { order_id: Some(OrderId(Uuid::nil())), ..Members::default() },
            Code::NotStarted => Members { starts_at_ms: Some(1_767_225_600_000), ..Members::default() },
            Code::LevelTooLow => Members { min_level: Some(2), ..Members::default() },
            _ => Members::default(),
        };
        serde_json::to_value(Self::from(code).with(members).body())
    }

    fn body(&self) -> Body<'_> {
        Body {
            kind: format!("urn:seckill:problem:{}", self.code.into_str()),
            title: self.code.title(),
            status: self.status.as_u16(),
            code: self.code,
            detail: self.text(),
            field: self.detail.as_ref().and_then(|detail| detail.field),
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
        // The rest of the body must not be read as the next request.
        if self.is_unread {
            response.force_close();
        }
        for (name, value) in &self.headers {
            response.insert_header((name.clone(), value.as_str()));
        }
        response.body(self.json())
    }
}

/// The answer to methods that an address does not support. `Allow` lists the supported ones.
pub(crate) async fn method_not_allowed(request: HttpRequest, app_state: Data<AppState>) -> Answer {
    let pattern = request.match_pattern();
    // Pages and files are not in the document.
    let allowed = pattern.and_then(|path| app_state.api.methods(&path)).unwrap_or("GET, HEAD");
    Err(Problem::from(Code::MethodNotAllowed).header(ALLOW, allowed))
}

pub async fn unknown_address(request: HttpRequest) -> Answer {
    tracing::debug!(path = request.path(), "unknown address");
    Err(Code::NotFound.into())
}
