//! Permits for other applications.

use actix_web::http::header::{AUTHORIZATION, HeaderName, RETRY_AFTER};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::AppState;
use super::codes::problems;
use super::extract::Body;
use super::problem::Problem;
use crate::domain::policy::Name;
use crate::flow::permit_request::{Lease, PermitAnswer, PermitRequest, Reason};

/// One policy to be asked, and for whom.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Dimension {
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    policy: String,
    /// Who or what is counted: a user, an address, an interface… Everybody together where it is missing.
    #[serde(default)]
    #[schema(max_length = 128)]
    key: String,
    /// 1 where it is missing; at most the policy's limit or capacity.
    #[schema(minimum = 1)]
    permits: Option<i64>,
}

/// What is asked for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Acquire {
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    app: String,
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    policy: String,
    /// Who or what is counted: a user, an address, an interface… Everybody together where it is missing.
    #[serde(default)]
    #[schema(max_length = 128)]
    key: String,
    /// 1 where it is missing; at most the policy's limit or capacity.
    #[schema(minimum = 1)]
    permits: Option<i64>,
    /// More policies that must grant too: all of them do, or none is used up.
    #[serde(default)]
    #[schema(max_items = 8)]
    also: Vec<Dimension>,
}

/// What became of it.
#[derive(Debug, Serialize, ToSchema)]
struct Verdict {
    /// 1 granted, -1 refused, 0 not configured: the application has no such policy, and goes on.
    #[schema(minimum = -1, maximum = 1)]
    code: i8,
    /// Permits that are left; -1 where there is no limit to tell.
    remaining: i64,
    /// When it is worth asking again; 0 where it is granted.
    retry_after_ms: u64,
    /// Of a concurrency policy, or one with a breaker: to be given back by `release`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    lease: Option<String>,
    /// The policy that refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = String)]
    policy: Option<Name>,
    /// Why: `limit`, `breaker`, `queue-full`, `limiter-down`. With code 1: `shadow` (it would have been refused), or
    /// `limiter-down` (let through, or counted by this instance alone).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = String)]
    reason: Option<Reason>,
    /// The policy's prepared answer to the excess.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    answer: Option<Value>,
    /// Of a leaky bucket: how long to wait for one's turn, so that the outflow is constant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    delay_ms: Option<u64>,
}

/// How a call ended that was made under a lease.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum Ended {
    Ok,
    Error,
}

/// A lease that is given back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Release {
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    app: String,
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    policy: String,
    /// As it was when the permit was asked for.
    #[serde(default)]
    #[schema(max_length = 128)]
    key: String,
    #[schema(max_length = 64)]
    lease: String,
    /// For the policy's breaker.
    outcome: Option<Ended>,
    /// How long the call took; since the grant, where it is missing.
    took_ms: Option<u64>,
}

/// Whether there was something to give back.
#[derive(Debug, Serialize, ToSchema)]
struct Released {
    /// False where the lease was given back before, or has run out.
    released: bool,
}

problems!(NoPermit: InvalidRequest, Unauthenticated, Forbidden, TooSlow, BodyTooLarge);

/// Ask for permits
///
/// A refusal is an answer (200 with code -1), and uses up nothing.
#[utoipa::path(
    post,
    path = "/api/v1/flow/acquire",
    operation_id = "acquire",
    tag = "flow control",
    security(("app" = [])),
    request_body = Acquire,
    responses(
        (
            status = 200, description = "Granted, refused, or not configured. Headers say how the policy stands: `RateLimit-Policy` (its quota, its \
                window in seconds), `RateLimit` (what is left, in how many seconds there is more), and with a refusal \
                `Retry-After` (seconds)", body = Verdict,
        ),
        NoPermit,
    ),
)]
pub async fn acquire(
    request: HttpRequest,
    app_state: Data<AppState>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let caller = caller(&request, &app_state)?;
    let asked: Acquire = serde_json::from_slice(&body).map_err(Problem::invalid)?;
    let app = own(caller, &asked.app)?;
    let first = Dimension { policy: asked.policy, key: asked.key, permits: asked.permits };
    let asks = std::iter::once(first).chain(asked.also);
    let asks = asks.map(|one| PermitRequest::new(&one.policy, one.key, one.permits)).collect::<Result<Vec<_>, _>>()?;
    let answer = app_state.permits.acquire(&app, &asks).await?;
    Ok(render(answer))
}

/// Give a lease back
#[utoipa::path(
    post,
    path = "/api/v1/flow/release",
    operation_id = "release",
    tag = "flow control",
    security(("app" = [])),
    request_body = Release,
    responses((status = 200, description = "Given back, or gone before", body = Released), NoPermit),
)]
pub async fn release(
    request: HttpRequest,
    app_state: Data<AppState>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let caller = caller(&request, &app_state)?;
    let given: Release = serde_json::from_slice(&body).map_err(Problem::invalid)?;
    let app = own(caller, &given.app)?;
    let ask = PermitRequest::new(&given.policy, given.key, None)?;
    let lease = Lease::parse(&given.lease)?;
    let failed = given.outcome.map(|outcome| matches!(outcome, Ended::Error));
    let released = app_state.permits.release(&app, &ask, lease, failed, given.took_ms).await?;
    Ok(HttpResponse::Ok().json(Released { released }))
}

/// The application whose token the request carries.
fn caller(request: &HttpRequest, app_state: &AppState) -> Result<Name, Problem> {
    let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let header = header.ok_or(Problem::unauthenticated("no Authorization header"))?;
    let (scheme, token) = header.split_once(' ').unwrap_or_default();
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Problem::unauthenticated("not a bearer token"));
    }
    app_state.permits.policies().app_of(token.trim()).ok_or(Problem::unauthenticated("not an application's token"))
}

/// An application asks for itself, and for nobody else.
fn own(caller: Name, app: &str) -> Result<Name, Problem> {
    if caller.as_str() == app { Ok(caller) } else { Err(Problem::forbidden("the token is another application's")) }
}

fn render(answer: PermitAnswer) -> HttpResponse {
    let mut response = HttpResponse::Ok();
    if let Some(quota) = &answer.quota {
        let name = &quota.policy;
        let window = quota.window_s.map(|s| format!(";w={s}")).unwrap_or_default();
        response.insert_header((
            HeaderName::from_static("ratelimit-policy"),
            format!("\"{name}\";q={}{window}", quota.permits),
        ));
        let reset = quota.reset_ms.div_ceil(1000);
        let left = answer.remaining.max(0);
        response.insert_header((HeaderName::from_static("ratelimit"), format!("\"{name}\";r={left};t={reset}")));
    }
    if answer.code < 0 {
        response.insert_header((RETRY_AFTER, answer.retry_after_ms.div_ceil(1000).max(1).to_string()));
    }
    response.json(Verdict {
        code: answer.code,
        remaining: answer.remaining,
        retry_after_ms: answer.retry_after_ms,
        lease: answer.lease.map(|lease| lease.to_string()),
        policy: answer.policy,
        reason: answer.reason,
        answer: answer.body,
        delay_ms: answer.delay_ms,
    })
}
