//! Signing in and out.

use actix_web::http::header::{CACHE_CONTROL, SET_COOKIE};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{COOKIE_NAME, as_caller, from_here};
use crate::domain::account::{AccountName, AccountRole};
use crate::http::AppState;
use crate::http::codes::problems;
use crate::http::extract::{Body, caller_address};
use crate::http::problem::Problem;

/// Who wants to sign in.
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
    /// To be sent as `X-CSRF-Token` with everything that is not a GET.
    csrf_token: String,
    /// At the latest; earlier where nothing is asked for a while.
    expires_at_ms: i64,
}

/// That somebody is signed out.
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
    // There is no session yet that could be misused; but nobody is to be signed in as somebody else by another site.
    from_here(&request)?;
    let Credentials { name, password } = serde_json::from_slice(&body).map_err(Problem::invalid)?;
    let address = caller_address(&request, &app_state.trusted_proxies);
    let signed_in = app_state.console.sign_in(&name, password, &address).await?;
    let cookie = cookie(&app_state, signed_in.token.as_str(), "");
    Ok(HttpResponse::Ok().insert_header((SET_COOKIE, cookie)).insert_header((CACHE_CONTROL, "no-store")).json(
        Session {
            name: AccountName::parse(&name, "name")?,
            role: signed_in.role,
            csrf_token: signed_in.token.csrf(),
            expires_at_ms: signed_in.expires_at_ms,
        },
    ))
}

/// Who is signed in
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
            headers(("Set-Cookie" = String, description = "Takes the session's back")),
        ),
        NotSignedOut,
    ),
)]
pub async fn delete(request: HttpRequest, app_state: Data<AppState>, _: Body) -> Result<HttpResponse, Problem> {
    as_caller(&request, &app_state, async |caller| app_state.console.sign_out(&caller.token).await).await?;
    let cookie = cookie(&app_state, "", "; Max-Age=0");
    Ok(HttpResponse::Ok().insert_header((SET_COOKIE, cookie)).json(SignedOut { signed_out: true }))
}

/// For this host alone, never for scripts, never sent by another site, and over TLS except in development.
fn cookie(app_state: &AppState, token: &str, more: &str) -> String {
    let secure = if app_state.dev { "" } else { "; Secure" };
    format!("{COOKIE_NAME}={token}; Path=/; HttpOnly; SameSite=Strict{secure}{more}")
}
