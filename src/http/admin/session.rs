//! Signing in and out.

use actix_web::cookie::time::Duration;
use actix_web::cookie::{Cookie, SameSite};
use actix_web::http::header::CACHE_CONTROL;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{COOKIE_NAME, as_caller, check_same_site};
use crate::domain::account::{AccountName, AccountRole};
use crate::http::AppState;
use crate::http::codes::problems;
use crate::http::extract::{Body, client_address};
use crate::http::problem::Problem;

/// A name and a password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Credentials {
    #[schema(pattern = "^[A-Za-z0-9_.@-]{1,64}$")]
    name: String,
    #[schema(max_length = 1024)]
    password: String,
}

/// A session.
#[derive(Serialize, ToSchema)]
struct Session {
    name: AccountName,
    role: AccountRole,
    /// Send this as `X-CSRF-Token` with every request but GET.
    csrf_token: String,
    /// The latest end of the session. It ends earlier without requests.
    expires_at_ms: i64,
}

/// The session is closed.
#[derive(Serialize, ToSchema)]
struct SignedOut {
    signed_out: bool,
}

problems! {
    NotSignedIn: InvalidRequest, WrongCredentials, ForgedRequest, TooSlow, BodyTooLarge, QuotaExceeded,
    TemporarilyUnavailable
}
problems!(NoSession: SignedOut, TemporarilyUnavailable);
problems!(NotSignedOut: SignedOut, ForgedRequest, TooSlow, BodyTooLarge, TemporarilyUnavailable);

/// Sign in
///
/// Attempts are limited by account and by address.
#[utoipa::path(
    post,
    path = "/api/v1/admin/session",
    operation_id = "sign_in",
    tag = "admin",
    request_body = Credentials,
    responses(
        (
            status = 200, description = "Signed in", body = Session,
            headers(("Set-Cookie" = String, description = "The session"), ("Cache-Control" = String, description = "`no-store`")),
        ),
        NotSignedIn,
    ),
)]
pub async fn create(
    request: HttpRequest,
    app_state: Data<AppState>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    // There is no session yet to misuse, but another site must not sign its visitors in to an account of its own.
    check_same_site(&request)?;
    let Credentials { name, password } = serde_json::from_slice(&body).map_err(Problem::invalid)?;
    let address = client_address(&request, &app_state.trusted_proxies);
    let attempt = app_state.console.attempt(&name, password, address).await?;
    let signed_in = app_state.bulkheads.sign_ins.run(app_state.console.sign_in(attempt)).await?;
    let cookie = session_cookie(&app_state, signed_in.token.as_str());
    let session = Session {
        name: AccountName::parse(&name, "name")?,
        role: signed_in.role,
        csrf_token: signed_in.token.csrf(),
        expires_at_ms: signed_in.expires_at_ms,
    };
    Ok(HttpResponse::Ok().cookie(cookie).insert_header((CACHE_CONTROL, "no-store")).json(session))
}

/// Show the session
#[utoipa::path(
    get,
    path = "/api/v1/admin/session",
    operation_id = "show_session",
    tag = "admin",
    security(("session" = [])),
    responses(
        (
            status = 200, description = "The session", body = Session,
            headers(("Cache-Control" = String, description = "`no-store`")),
        ),
        NoSession,
    ),
)]
pub async fn show(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let session = as_caller(&request, &app_state, async |caller| {
        Ok(Session {
            name: caller.account.name.clone(),
            role: caller.account.role,
            csrf_token: caller.token.csrf(),
            expires_at_ms: caller.expires_at_ms,
        })
    });
    Ok(HttpResponse::Ok().insert_header((CACHE_CONTROL, "no-store")).json(session.await?))
}

/// Sign out
#[utoipa::path(
    delete,
    path = "/api/v1/admin/session",
    operation_id = "sign_out",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    responses(
        (
            status = 200, description = "Signed out", body = SignedOut,
            headers(("Set-Cookie" = String, description = "Removes the session's cookie")),
        ),
        NotSignedOut,
    ),
)]
pub async fn delete(request: HttpRequest, app_state: Data<AppState>, _: Body) -> Result<HttpResponse, Problem> {
    as_caller(&request, &app_state, async |caller| app_state.console.sign_out(&caller.token).await).await?;
    let mut cookie = session_cookie(&app_state, "");
    cookie.set_max_age(Duration::ZERO);
    Ok(HttpResponse::Ok().cookie(cookie).json(SignedOut { signed_out: true }))
}

/// The cookie goes to this host only, is hidden from scripts, is not sent with requests from other sites, and needs TLS
/// outside development mode.
fn session_cookie<'a>(app_state: &AppState, token: &'a str) -> Cookie<'a> {
    let cookie = Cookie::build(COOKIE_NAME, token).path("/").http_only(true).same_site(SameSite::Strict);
    cookie.secure(!app_state.dev).finish()
}
