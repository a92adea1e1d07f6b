//! Permits for gateways: nginx's `auth_request`, and Envoy's `ext_authz` over HTTP. A gateway reads no body, so status and headers have
//! the contents of the body of `flow::acquire`. docs/limits.md has the configurations of both.

mod question;

use actix_web::body::BoxBody;
use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, ResponseError};
use serde_json::Value;

use super::permits::{caller, check_app, limit_headers};
use crate::permit_request::{PermitAnswer, PermitRequest, Reason};
use crate::permits::Permits;
use question::{Question, QuestionFrom};
use seckill_http::AppState;
use seckill_http::codes::problems;
use seckill_http::extract::Body;
use seckill_http::problem::{self, Problem};

const CODE: &str = "x-seckill-code";
/// Why, as `reason` of `flow::acquire`.
const REASON: &str = "x-seckill-reason";
const ANSWER: &str = "x-seckill-answer";
const LEASE: &str = "x-seckill-lease";
/// How long to wait before proceeding, from a leaky bucket.
const DELAY: &str = "x-seckill-delay-ms";

/// The longest header for a prepared answer, in bytes. nginx reads all headers into one buffer (`proxy_buffer_size`).
const ANSWER_MAX: usize = 4096;

problems!(NoToken: Unauthenticated);

/// Ask for permits by status
///
/// For `auth_request` of nginx, which knows 2xx, 401 and 403 only. Any method is answered alike. The terms are read from headers, or
/// all of them from the query (`app`, `policy`, `key`, `permits`, `deny`) if that names the policy.
#[utoipa::path(
    get,
    path = "/api/v1/flow/authorize",
    tag = "flow control",
    security(("app" = [])),
    params(
        ("X-Seckill-Policy" = Option<String>, Header, description = "The policy"),
        ("X-Seckill-Key" = Option<String>, Header, description = "What is counted. Without a key, all callers are counted together"),
        ("X-Seckill-Permits" = Option<i64>, Header, description = "1 by default"),
        ("X-Seckill-App" = Option<String>, Header, description = "The token's application, by default"),
        ("X-Seckill-Deny" = Option<u16>, Header, description = "The status of a refusal: 403, the default, or 429"),
    ),
    responses(
        (
            status = 204, description = "Granted (`X-Seckill-Code: granted`) or not configured (`not-configured`). `X-Seckill-Reason`, \
                `X-Seckill-Lease`, `X-Seckill-Delay-Ms`, `RateLimit-Policy` and `RateLimit` as far as they apply",
            headers(("X-Seckill-Code" = String, description = "`granted` or `not-configured`")),
        ),
        (
            status = 403, description = "Refused (`X-Seckill-Code: quota-exceeded`, with `Retry-After`, `RateLimit-Policy`, `RateLimit`, \
                `X-Seckill-Reason`, and a prepared answer in `X-Seckill-Answer` and as the body), or a mistake of the gateway \
                (any other code)",
            content((problem::Body = "application/problem+json"), (Value = "application/json")),
            headers(("X-Seckill-Code" = String, description = "Why: a code of docs/errors.md")),
        ),
        (
            status = 429, description = "Refused, if the gateway asked for this status",
            content((problem::Body = "application/problem+json"), (Value = "application/json")),
            headers(("X-Seckill-Code" = String, description = "`quota-exceeded`")),
        ),
        NoToken,
    ),
)]
pub(super) async fn authorize(
    request: HttpRequest,
    app_state: Data<AppState>,
    permits: Data<Permits>,
    body: Result<Body, Problem>,
) -> HttpResponse {
    let decided = decide(&request, &app_state, &permits, body, QuestionFrom::HeadersOrQuery).await;
    answer(decided, StatusCode::NO_CONTENT)
}

/// Ask for permits by status, with the caller's path
///
/// For `ext_authz` of Envoy, which appends the path and query that its caller sent, and takes no other status than 200 for a grant.
/// Any method is answered alike. Terms are read from headers alone: path and query are the caller's.
#[utoipa::path(
    get,
    path = "/api/v1/flow/authorize/{path}",
    tag = "flow control",
    security(("app" = [])),
    params(
        ("path" = String, Path, description = "The caller's path, of any length. It decides nothing"),
        ("X-Seckill-Policy" = String, Header, description = "The policy"),
        ("X-Seckill-Key" = Option<String>, Header, description = "What is counted. Without a key, all callers are counted together"),
        ("X-Seckill-Permits" = Option<i64>, Header, description = "1 by default"),
        ("X-Seckill-App" = Option<String>, Header, description = "The token's application, by default"),
        ("X-Seckill-Deny" = Option<u16>, Header, description = "The status of a refusal: 403, the default, or 429"),
    ),
    responses(
        (
            status = 200, description = "Granted or not configured, with an empty body and the headers of a 204 of `authorize`",
            headers(("X-Seckill-Code" = String, description = "`granted` or `not-configured`")),
        ),
        (
            status = 403, description = "As for `authorize`",
            content((problem::Body = "application/problem+json"), (Value = "application/json")),
            headers(("X-Seckill-Code" = String, description = "Why: a code of docs/errors.md")),
        ),
        (
            status = 429, description = "As for `authorize`",
            content((problem::Body = "application/problem+json"), (Value = "application/json")),
            headers(("X-Seckill-Code" = String, description = "`quota-exceeded`")),
        ),
        NoToken,
    ),
)]
pub(super) async fn authorize_path(
    request: HttpRequest,
    app_state: Data<AppState>,
    permits: Data<Permits>,
    body: Result<Body, Problem>,
) -> HttpResponse {
    let decided = decide(&request, &app_state, &permits, body, QuestionFrom::Headers).await;
    answer(decided, StatusCode::OK)
}

/// The policy's answer, and the status of a refusal.
async fn decide(
    request: &HttpRequest,
    app_state: &AppState,
    permits: &Permits,
    body: Result<Body, Problem>,
    from: QuestionFrom,
) -> Result<(PermitAnswer, StatusCode), Problem> {
    let app = caller(request, app_state, permits)?;
    // A body means nothing, but must be read before the answer.
    body?;
    let question = Question::read(request, from)?;
    let app = match &question.app {
        Some(named) => check_app(app, named)?,
        None => app,
    };
    let asked = PermitRequest::new(&question.policy, question.key, question.permits)?;
    let answer = permits.acquire(&app, &[asked]).await?;
    Ok((answer, question.deny))
}

fn answer(decided: Result<(PermitAnswer, StatusCode), Problem>, allow: StatusCode) -> HttpResponse {
    match decided {
        Ok((answer, deny)) if answer.code < 0 => refused(&answer, deny),
        Ok((answer, _)) => allowed(&answer, allow),
        Err(problem) => {
            let problem = problem.for_gateway();
            with_headers(problem.error_response(), [(CODE, problem.code().to_owned())])
        }
    }
}

fn allowed(answer: &PermitAnswer, status: StatusCode) -> HttpResponse {
    let mut response = HttpResponse::build(status);
    for header in limit_headers(answer) {
        response.insert_header(header);
    }
    let code = if answer.code > 0 { "granted" } else { "not-configured" };
    let optional = [
        (REASON, answer.reason.map(|reason| reason.as_str().to_owned())),
        (LEASE, answer.lease.map(|lease| lease.to_string())),
        (DELAY, answer.delay_ms.map(|ms| ms.to_string())),
    ];
    let headers = optional.into_iter().filter_map(|(name, value)| Some((name, value?)));
    with_headers(response.finish(), std::iter::once((CODE, code.to_owned())).chain(headers))
}

fn refused(answer: &PermitAnswer, deny: StatusCode) -> HttpResponse {
    let reason = answer.reason.map_or("limit", Reason::as_str);
    let why = format!("the policy refuses: {reason}");
    let problem = Problem::no_permit(deny, why, limit_headers(answer).collect());
    let code = (CODE, problem.code().to_owned());
    let response = with_headers(problem.error_response(), [code, (REASON, reason.to_owned())]);
    let Some(prepared) = &answer.answer else { return response };
    let response = with_headers(response, ascii_json(prepared).map(|json| (ANSWER, json)));
    let mut response = response.set_body(BoxBody::new(prepared.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Adds headers whose values are printable ASCII, as all of ours are.
fn with_headers(mut response: HttpResponse, headers: impl IntoIterator<Item = (&'static str, String)>) -> HttpResponse {
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// A JSON document in printable ASCII, which a gateway can hand out as it is; `None` if it is too long for a header. Other characters
/// occur only in strings, where JSON has an escape for each.
fn ascii_json(document: &Value) -> Option<String> {
    let mut text = String::new();
    for c in document.to_string().chars() {
        if (' '..='~').contains(&c) {
            text.push(c);
        } else {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
        }
        if text.len() > ANSWER_MAX {
            return None;
        }
    }
    Some(text)
}
