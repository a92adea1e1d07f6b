//! Permits for other applications.

use actix_web::http::header::{HeaderName, RETRY_AFTER};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::permit_request::{Lease, PermitAnswer, PermitRequest};
use crate::permits::Permits;
use seckill_domain::json_object;
use seckill_domain::policy::Name;
use seckill_http::codes::{Code, problems};
use seckill_http::extract::{Body, bearer_token};
use seckill_http::problem::Problem;
use seckill_http::{Answer, AppState};

/// The greatest exact whole number of every JSON reader.
const TOOK_MAX_MS: u64 = (1 << 53) - 1;

/// A policy, and the key that it counts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Dimension {
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    policy: String,
    /// The key that is counted: a user, an address, an interface… Without a key, all callers are counted together.
    #[serde(default)]
    #[schema(max_length = 128)]
    key: String,
    /// 1 by default. More than the policy's limit or capacity is answered 400.
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    permits: Option<i64>,
}

/// A request for permits.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Acquire {
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    app: String,
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    policy: String,
    /// The key that is counted: a user, an address, an interface… Without a key, all callers are counted together.
    #[serde(default)]
    #[schema(max_length = 128)]
    key: String,
    /// 1 by default. More than the policy's limit or capacity is answered 400.
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    permits: Option<i64>,
    /// More policies that must grant as well: either all of them grant, or no permit is used. None with a key that it has here
    /// already.
    #[serde(default, deserialize_with = "json_object::list")]
    #[schema(max_items = 8)]
    also: Vec<Dimension>,
}

/// How the call ended that the lease was for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum Ended {
    Ok,
    Error,
}

/// A lease to return.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Release {
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    app: String,
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    policy: String,
    /// The key that the permit was asked for with.
    #[serde(default)]
    #[schema(max_length = 128)]
    key: String,
    #[schema(pattern = "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}[.][0-9A-Fa-f]{1,16}([.]p)?$")]
    lease: String,
    /// For the policy's breaker.
    outcome: Option<Ended>,
    /// How long the call took; the time since the grant by default.
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    took_ms: Option<u64>,
}

/// Whether a lease was returned.
#[derive(Debug, Serialize, ToSchema)]
struct Released {
    /// False if the lease was returned before, or has expired.
    released: bool,
}

problems!(NoPermit: InvalidRequest, Unauthenticated, Forbidden, TooSlow, BodyTooLarge);
problems!(NotReleased: InvalidRequest, Unauthenticated, Forbidden, TooSlow, BodyTooLarge, TemporarilyUnavailable);

/// Ask for permits
///
/// A refusal is a normal answer (200 with code -1) and uses no permit.
#[utoipa::path(
    post,
    path = "/api/v1/flow/acquire",
    tag = "flow control",
    security(("app" = [])),
    request_body = Acquire,
    responses(
        (
            status = 200, description = "Granted, refused, or not configured. Headers show the policy's state: `RateLimit-Policy` (its quota, its \
                window in seconds), `RateLimit` (permits left, seconds until there are more), and with a refusal \
                `Retry-After` (seconds)", body = PermitAnswer,
        ),
        NoPermit,
    ),
)]
pub(super) async fn acquire(
    request: HttpRequest,
    app_state: Data<AppState>,
    permits: Data<Permits>,
    Body(body): Body,
) -> Answer {
    let caller = caller(&request, &app_state, &permits)?;
    let asked: Acquire = json_object::from_body(&body).map_err(Problem::invalid)?;
    let app = check_app(caller, &asked.app)?;
    let first = Dimension { policy: asked.policy, key: asked.key, permits: asked.permits };
    let asked = std::iter::once(first).chain(asked.also);
    let requests = asked.map(|asked| PermitRequest::new(&asked.policy, asked.key, asked.permits));
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    let answer = permits.acquire(&app, &requests).await?;
    let mut response = HttpResponse::Ok();
    for header in limit_headers(&answer) {
        response.insert_header(header);
    }
    Ok(response.json(answer))
}

/// Return a lease
#[utoipa::path(
    post,
    path = "/api/v1/flow/release",
    tag = "flow control",
    security(("app" = [])),
    request_body = Release,
    responses((status = 200, description = "Returned, or gone before", body = Released), NotReleased),
)]
pub(super) async fn release(
    request: HttpRequest,
    app_state: Data<AppState>,
    permits: Data<Permits>,
    Body(body): Body,
) -> Answer {
    let caller = caller(&request, &app_state, &permits)?;
    let given: Release = json_object::from_body(&body).map_err(Problem::invalid)?;
    let app = check_app(caller, &given.app)?;
    let request = PermitRequest::new(&given.policy, given.key, None)?;
    let lease = Lease::parse(&given.lease)?;
    if given.took_ms.is_some_and(|ms| ms > TOOK_MAX_MS) {
        return Err(Problem::invalid("took_ms must be at most 9007199254740991"));
    }
    let failed = given.outcome.map(|outcome| matches!(outcome, Ended::Error));
    let released = permits.release(&app, &request, lease, failed, given.took_ms).await?;
    Ok(HttpResponse::Ok().json(Released { released }))
}

pub(super) fn caller(request: &HttpRequest, app_state: &AppState, permits: &Permits) -> Result<Name, Problem> {
    let app = permits.policies().app_of(bearer_token(request.head())?, app_state.clock.now_ms());
    app.ok_or_else(|| Problem::unauthenticated("not an application's token"))
}

pub(super) fn check_app(caller: Name, app: &str) -> Result<Name, Problem> {
    match caller.as_str() == app {
        true => Ok(caller),
        false => Err(Problem::from(Code::Forbidden).detail("the token belongs to another application")),
    }
}

/// The headers of the policy's state: its quota, the permits left, and the retry delay of a refusal.
pub(super) fn limit_headers(answer: &PermitAnswer) -> impl Iterator<Item = (HeaderName, String)> {
    let quota = answer.quota.as_ref();
    let policy = quota.map(|quota| {
        let window = quota.window_s.map(|s| format!(";w={s}")).unwrap_or_default();
        let text = format!("\"{}\";q={}{window}", quota.policy, quota.permits);
        (HeaderName::from_static("ratelimit-policy"), text)
    });
    let state = quota.map(|quota| {
        let (left, reset) = (answer.remaining.max(0), quota.reset_ms.div_ceil(1000));
        (HeaderName::from_static("ratelimit"), format!("\"{}\";r={left};t={reset}", quota.policy))
    });
    let retry = (answer.code < 0).then(|| (RETRY_AFTER, answer.retry_after_ms.div_ceil(1000).max(1).to_string()));
    [policy, state, retry].into_iter().flatten()
}
