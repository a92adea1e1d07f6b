//! Applications, and the accounts that may see or change their policies.

use actix_web::http::header::CACHE_CONTROL;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::app;
use crate::domain::account::{AccountName, AppToken, Granted};
use crate::domain::json_object;
use crate::domain::policy::{Name, Role};
use crate::domain::whole_number;
use crate::http::AppState;
use crate::http::caller::as_caller;
use crate::http::codes::problems;
use crate::http::extract::Body;
use crate::http::problem::Problem;

/// An application that may ask for permits.
#[derive(Serialize, ToSchema)]
struct App {
    name: Name,
    created_by: String,
    created_at_ms: i64,
    /// All grants for an admin; for others only their own.
    grants: Vec<Granted>,
    /// The valid tokens, the newest first, without what is secret. There are two while a token is replaced.
    tokens: Vec<AppToken>,
}

/// The applications that the account sees.
#[derive(Serialize, ToSchema)]
struct Apps {
    apps: Vec<App>,
}

/// An application to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewApp {
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    name: String,
}

/// An application, and its token.
#[derive(Serialize, ToSchema)]
struct Created {
    name: Name,
    /// The token that the application asks for permits with. It is shown only here.
    token: String,
}

/// How the tokens overlap.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewToken {
    /// How long the old token is valid besides the new one. With 0, all earlier tokens end at once.
    #[serde(deserialize_with = "whole_number::required")]
    #[schema(minimum = 0, maximum = 2_592_000_000_i64)]
    overlap_ms: i64,
}

/// The application's new token, and the end of its old one.
#[derive(Serialize, ToSchema)]
struct Rotated {
    name: Name,
    /// The new token. It is shown only here.
    token: String,
    old_token_ends_at_ms: i64,
    /// Whether every instance already knows the new token.
    everywhere: bool,
}

/// What an account is allowed to do with an application's policies.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Grant {
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    app: String,
    #[schema(pattern = "^[A-Za-z0-9_.@-]{1,64}$")]
    account: String,
    /// `viewer` sees the policies, `owner` also changes and deletes them; null revokes the grant.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required)]
    role: Option<Role>,
}

/// The grant as it is now.
#[derive(Serialize, ToSchema)]
struct GrantSet {
    app: Name,
    account: AccountName,
    role: Option<Role>,
}

problems!(NotListed: SignedOut, TemporarilyUnavailable);
problems! {
    NotCreated: InvalidRequest, SignedOut, Forbidden, ForgedRequest, TooSlow, Conflict, BodyTooLarge,
    TemporarilyUnavailable
}
problems! {
    NotRotated: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, Conflict, BodyTooLarge,
    TemporarilyUnavailable
}
problems! {
    NotGranted: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, BodyTooLarge,
    TemporarilyUnavailable
}

/// The applications that the account sees
#[utoipa::path(
    get,
    path = "/api/v1/admin/apps",
    operation_id = "list_apps",
    tag = "admin",
    security(("session" = [])),
    responses((status = 200, description = "All of them, by name", body = Apps), NotListed),
)]
pub async fn list(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let apps = as_caller(request, &app_state, async move |console, caller| console.apps(&caller.account).await).await?;
    let apps = apps.into_iter().map(|app| App {
        name: app.name,
        created_by: app.created_by,
        created_at_ms: app.created_at.timestamp_millis(),
        grants: app.grants,
        tokens: app.tokens,
    });
    Ok(HttpResponse::Ok().json(Apps { apps: apps.collect() }))
}

/// Create an application
///
/// For admins.
#[utoipa::path(
    post,
    path = "/api/v1/admin/apps",
    operation_id = "create_app",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    request_body = NewApp,
    responses(
        (
            status = 201, description = "Created", body = Created,
            headers(("Cache-Control" = String, description = "`no-store`")),
        ),
        NotCreated,
    ),
)]
pub async fn create(
    request: HttpRequest,
    app_state: Data<AppState>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let created = as_caller(request, &app_state, async move |console, caller| {
        let new: NewApp = json_object::from_slice(&body)?;
        let name = app(&new.name)?;
        let token = console.create_app(&caller.account, &name).await?;
        Ok(Created { name, token })
    });
    Ok(HttpResponse::Created().insert_header((CACHE_CONTROL, "no-store")).json(created.await?))
}

/// Replace an application's token
///
/// For admins. For a time both tokens are valid; then the old one ends by itself.
#[utoipa::path(
    post,
    path = "/api/v1/admin/apps/{name}/tokens",
    operation_id = "rotate_app_token",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("name" = Name, Path, description = "The application")),
    request_body = NewToken,
    responses(
        (
            status = 201, description = "Replaced", body = Rotated,
            headers(("Cache-Control" = String, description = "`no-store`")),
        ),
        NotRotated,
    ),
)]
pub async fn rotate_token(
    request: HttpRequest,
    app_state: Data<AppState>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let rotated = as_caller(request, &app_state, async move |console, caller| {
        let name = app(caller.request.match_info().query("name"))?;
        let NewToken { overlap_ms } = json_object::from_slice(&body)?;
        let new = console.rotate_token(&caller.account, &name, overlap_ms).await?;
        let (token, everywhere) = (new.token, new.everywhere);
        Ok(Rotated { name, token, old_token_ends_at_ms: new.old_ends_at_ms, everywhere })
    });
    Ok(HttpResponse::Created().insert_header((CACHE_CONTROL, "no-store")).json(rotated.await?))
}

/// Let an account see an application's policies, or change them
///
/// For admins.
#[utoipa::path(
    put,
    path = "/api/v1/admin/grants",
    operation_id = "set_grant",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    request_body = Grant,
    responses((status = 200, description = "Done", body = GrantSet), NotGranted),
)]
pub async fn grant(request: HttpRequest, app_state: Data<AppState>, Body(body): Body) -> Result<HttpResponse, Problem> {
    let granted = as_caller(request, &app_state, async move |console, caller| {
        let grant: Grant = json_object::from_slice(&body)?;
        let (app, role) = (app(&grant.app)?, grant.role);
        let account = AccountName::parse(&grant.account, "account")?;
        console.grant(&caller.account, &app, &account, role).await?;
        Ok(GrantSet { app, account, role })
    });
    Ok(HttpResponse::Ok().json(granted.await?))
}
