//! Signing in and out.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Answer, Backoffice, NotDoneToOne, NotRead};
use crate::admin::session::Source;
use crate::api::Ask;
use crate::api::caller::check_same_site;
use crate::api::cookies::cookie;
use seckill_domain::account::{AccountName, AccountRole};
use seckill_domain::json_object;
use seckill_http::codes::problems;
use seckill_http::extract::{Body, client_address};
use seckill_http::{AppState, Problem};

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

/// All sessions of the account are closed.
#[derive(Serialize, ToSchema)]
struct SignedOutEverywhere {
    /// How many there were.
    ended: u64,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AccountQuery {
    /// The account; for admins. Without it, the caller's own.
    #[param(pattern = "^[A-Za-z0-9_.@-]{1,64}$", nullable = false)]
    account: Option<String>,
}

problems! {
    NotSignedIn: InvalidRequest, WrongCredentials, ForgedRequest, TooSlow, BodyTooLarge, QuotaExceeded,
    TemporarilyUnavailable
}
problems!(NotSignedOut: SignedOut, ForgedRequest, TooSlow, BodyTooLarge, TemporarilyUnavailable);

/// Sign in
///
/// Attempts are limited by account and address, by address, and, for strangers, by account.
/// A browser that has signed in to the account before has a limit of its own.
#[utoipa::path(
    post,
    path = "/api/v1/admin/session",
    request_body = Credentials,
    responses(
        (
            status = 200, description = "Signed in", body = Session,
            headers(
                ("Set-Cookie" = String, description = "The session, and in a second one the browser"),
            ),
        ),
        NotSignedIn,
    ),
)]
pub(super) async fn sign_in(
    request: HttpRequest,
    app_state: Data<AppState>,
    backoffice: Data<Backoffice>,
    Body(body): Body,
) -> Answer {
    // There is no session yet to misuse, but another site must not sign its visitors in to an account of its own.
    check_same_site(&request)?;
    let Credentials { name, password } = json_object::from_slice(&body).map_err(Problem::invalid)?;
    let source = Source {
        address: client_address(request.head(), &app_state.trusted_proxies).to_string(),
        device_token: cookie(&request, backoffice.cookies.device),
        now_ms: app_state.clock.now_ms(),
    };
    let (lines, looks_up, signs_in) = (&app_state.bulkheads, backoffice.clone(), backoffice.clone());
    let line = |is_known| if is_known { &lines.known_sign_ins } else { &lines.sign_ins };
    let attempt = backoffice.office.attempt(&name, password, source).await?;
    // The lines are for PostgreSQL. Passwords are checked outside, where they have a line of their own.
    let candidate =
        line(attempt.has_known_browser()).run(async move { looks_up.office.look_up(attempt).await }).await?;
    let checked = backoffice.office.check_password(candidate).await?;
    let signed_in = line(checked.is_right()).run(async move { signs_in.office.sign_in(checked).await }).await?;
    let session = Session {
        name: AccountName::parse(&name, "name")?,
        role: signed_in.role,
        csrf_token: signed_in.token.csrf(),
        expires_at_ms: signed_in.expires_at_ms,
    };
    let cookies = &backoffice.cookies;
    Ok(HttpResponse::Ok()
        .cookie(cookies.session(signed_in.token.as_str()))
        .cookie(cookies.device(&signed_in.device_token))
        .json(session))
}

/// Show the session
#[utoipa::path(
    get,
    path = "/api/v1/admin/session",
    responses((status = 200, description = "The session", body = Session), NotRead),
)]
pub(super) async fn show_session(ask: Ask) -> Answer {
    let session = ask.act(async |_, caller| {
        Ok(Session {
            name: caller.account.name.clone(),
            role: caller.account.role,
            csrf_token: caller.token.csrf(),
            expires_at_ms: caller.expires_at_ms,
        })
    });
    Ok(HttpResponse::Ok().json(session.await?))
}

/// Sign out
#[utoipa::path(
    delete,
    path = "/api/v1/admin/session",
    responses(
        (
            status = 200, description = "Signed out", body = SignedOut,
            headers(("Set-Cookie" = String, description = "Removes the session's cookie")),
        ),
        NotSignedOut,
    ),
)]
pub(super) async fn sign_out(ask: Ask) -> Answer {
    let no_session = ask.backoffice.cookies.no_session();
    ask.act(async |office, caller| office.sign_out(&caller.token).await).await?;
    Ok(HttpResponse::Ok().cookie(no_session).json(SignedOut { signed_out: true }))
}

/// Sign out everywhere
///
/// Ends all sessions of the account, this one too. Admins can end the sessions of another account.
#[utoipa::path(
    delete,
    path = "/api/v1/admin/sessions",
    params(AccountQuery),
    responses(
        (status = 200, description = "Their next requests are answered `signed-out`", body = SignedOutEverywhere),
        NotDoneToOne,
    ),
)]
pub(super) async fn sign_out_everywhere(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let account = caller.query::<AccountQuery>()?.account;
        let account = account.map(|name| AccountName::parse(&name, "account")).transpose()?;
        Ok(SignedOutEverywhere { ended: office.sign_out_everywhere(&caller.account, account.as_ref()).await? })
    })
    .await
}
