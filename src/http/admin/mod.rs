//! The admin API, for people who are signed in: a cookie names the session, and every request that changes something
//! carries a token against forgery (CSRF).

pub mod apps;
mod cookies;
pub mod log;
pub mod policies;
pub mod session;

pub use cookies::CookieNames;

use actix_web::HttpRequest;
use actix_web::http::Method;
use actix_web::http::header::{CONTENT_TYPE, HOST, ORIGIN};
use actix_web::web::Data;

use super::AppState;
use super::problem::Problem;
use crate::admin::session::SessionToken;
use crate::admin::{AdminError, Console};
use crate::domain::account::Account;
use crate::domain::policy::Name;

const CSRF_HEADER: &str = "x-csrf-token";
/// The audit log holds this much of a path.
const PATH_MAX_CHARS: usize = 200;

/// An account that is signed in, its session, and its request.
struct Caller {
    request: HttpRequest,
    account: Account,
    token: SessionToken,
    expires_at_ms: i64,
}

/// Acts for the account whose session the cookie names. A refusal is written to the audit log before it is answered.
async fn as_caller<T: 'static>(
    request: HttpRequest,
    app_state: &Data<AppState>,
    act: impl AsyncFnOnce(&Console, &Caller) -> Result<T, AdminError> + 'static,
) -> Result<T, Problem> {
    let token = cookies::cookie(&request, app_state.cookies.session).ok_or(AdminError::SignedOut)?;
    // An invented one stands in no line.
    let token = app_state.console.received(token)?;
    app_state.bulkheads.admin.run(act_with_token(request, token, app_state.clone(), act)).await
}

async fn act_with_token<T>(
    request: HttpRequest,
    token: SessionToken,
    app_state: Data<AppState>,
    act: impl AsyncFnOnce(&Console, &Caller) -> Result<T, AdminError>,
) -> Result<T, AdminError> {
    let console = &app_state.console;
    let (account, expires_at_ms) = console.account(&token).await?;
    let caller = Caller { request, account, token, expires_at_ms };
    let outcome = match check_not_forged(&caller.request, &caller.token) {
        Ok(()) => act(console, &caller).await,
        Err(forged) => Err(forged),
    };
    if let Err(error) = &outcome
        && let Some(why) = error.refusal()
    {
        let path: String = caller.request.path().chars().take(PATH_MAX_CHARS).collect();
        let attempt = format!("{} {path}", caller.request.method());
        console.record_refusal(&caller.account, &attempt, why).await?;
    }
    outcome
}

/// Refuses a request that changes something unless a page of ours sent it.
fn check_not_forged(request: &HttpRequest, token: &SessionToken) -> Result<(), AdminError> {
    if request.method() == Method::GET {
        return Ok(());
    }
    check_same_site(request)?;
    let given = request.headers().get(CSRF_HEADER).and_then(|value| value.to_str().ok());
    match given {
        Some(given) if token.is_csrf(given) => Ok(()),
        Some(_) => Err(AdminError::Forged("X-CSRF-Token is not this session's")),
        None => Err(AdminError::Forged("X-CSRF-Token is missing")),
    }
}

/// Refuses what another site's page could send without the browser's permission: other types than JSON, and a foreign
/// Origin.
fn check_same_site(request: &HttpRequest) -> Result<(), AdminError> {
    let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    // The body of a DELETE is not used, so it needs no type.
    let content_type = header(CONTENT_TYPE.as_str()).map(|value| value.split(';').next().unwrap_or_default().trim());
    let is_json = content_type.is_some_and(|value| value.eq_ignore_ascii_case("application/json"));
    let needs_none = request.method() == Method::DELETE && content_type.is_none();
    if !is_json && !needs_none {
        return Err(AdminError::Forged("Content-Type must be application/json"));
    }
    let Some(origin) = header(ORIGIN.as_str()) else { return Ok(()) };
    let host = header(HOST.as_str()).unwrap_or_default();
    let origins = ["http://", "https://"].iter().filter_map(|scheme| origin.strip_prefix(scheme));
    if origins.into_iter().any(|origin| !host.is_empty() && origin.eq_ignore_ascii_case(host)) {
        Ok(())
    } else {
        Err(AdminError::Forged("Origin is another site's"))
    }
}

fn app(text: &str) -> Result<Name, AdminError> {
    Ok(Name::parse(text, "app")?)
}
