//! The admin API: for people, by a session cookie, and a token against forgery (CSRF) with everything that changes
//! something.

pub mod apps;
pub mod log;
pub mod policies;
pub mod session;

use actix_web::HttpRequest;
use actix_web::http::Method;
use actix_web::http::header::{CONTENT_TYPE, COOKIE, HOST, ORIGIN};

use super::AppState;
use super::problem::Problem;
use crate::admin::AdminError;
use crate::admin::session::SessionToken;
use crate::domain::account::Account;
use crate::domain::policy::Name;

/// The session's cookie.
pub const COOKIE_NAME: &str = "seckill_session";
const CSRF_HEADER: &str = "x-csrf-token";
/// As much of an address as the audit log takes.
const ADDRESS_MAX_CHARS: usize = 200;

/// Who asks.
struct Caller {
    account: Account,
    token: SessionToken,
    expires_at_ms: i64,
}

/// Does something for whoever is signed in. What is refused to an account is written down before it is answered.
async fn as_caller<T>(
    request: &HttpRequest,
    app_state: &AppState,
    act: impl AsyncFnOnce(&Caller) -> Result<T, AdminError>,
) -> Result<T, Problem> {
    let token = cookie(request).ok_or(AdminError::SignedOut)?;
    let (account, expires_at_ms) = app_state.console.account(&token).await?;
    let caller = Caller { account, token, expires_at_ms };
    let outcome = match meant(request, &caller.token) {
        Ok(()) => act(&caller).await,
        Err(forged) => Err(forged),
    };
    if let Err(error) = &outcome
        && let Some(why) = error.refusal()
    {
        let address = request.path().chars().take(ADDRESS_MAX_CHARS);
        let what = format!("{} {}", request.method(), address.collect::<String>());
        app_state.console.refused(&caller.account, &what, why).await?;
    }
    Ok(outcome?)
}

fn cookie(request: &HttpRequest) -> Option<SessionToken> {
    let pairs = request.headers().get_all(COOKIE).filter_map(|value| value.to_str().ok());
    let mut pairs = pairs.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE_NAME).map(|(_, token)| SessionToken::received(token))
}

/// Whether this is what the person at the browser meant, and not another site's doing in their name.
fn meant(request: &HttpRequest, token: &SessionToken) -> Result<(), AdminError> {
    if request.method() == Method::GET {
        return Ok(());
    }
    from_here(request)?;
    let given = request.headers().get(CSRF_HEADER).and_then(|value| value.to_str().ok());
    match given {
        Some(given) if token.is_csrf(given) => Ok(()),
        Some(_) => Err(AdminError::Forged("X-CSRF-Token is not this session's")),
        None => Err(AdminError::Forged("X-CSRF-Token is missing")),
    }
}

/// What another site cannot send without being asked about first: JSON, and an Origin that is our own.
fn from_here(request: &HttpRequest) -> Result<(), AdminError> {
    let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    // Nothing is taken from the body of a DELETE, so that it needs no type.
    let kind = header(CONTENT_TYPE.as_str()).map(|kind| kind.split(';').next().unwrap_or_default().trim());
    let is_json = kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"));
    let needs_none = request.method() == Method::DELETE && kind.is_none();
    if !is_json && !needs_none {
        return Err(AdminError::Forged("Content-Type must be application/json"));
    }
    let Some(origin) = header(ORIGIN.as_str()) else { return Ok(()) };
    let host = header(HOST.as_str()).unwrap_or_default();
    let ours = ["http://", "https://"].iter().filter_map(|scheme| origin.strip_prefix(scheme));
    if ours.into_iter().any(|origin| !host.is_empty() && origin.eq_ignore_ascii_case(host)) {
        Ok(())
    } else {
        Err(AdminError::Forged("Origin is another site's"))
    }
}

fn app(text: &str) -> Result<Name, AdminError> {
    Ok(Name::parse(text, "app")?)
}
