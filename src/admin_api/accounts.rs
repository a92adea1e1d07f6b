//! Accounts, for admins.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::admin::accounts::{Change, new_password};
use crate::domain::account::{AccountName, AccountRole};
use crate::domain::json_object;
use crate::http::AppState;
use crate::http::caller::as_caller;
use crate::http::codes::problems;
use crate::http::extract::Body;
use crate::http::problem::Problem;

/// An account.
#[derive(Serialize, ToSchema)]
struct ListedAccount {
    name: String,
    role: String,
    /// Whether the account cannot sign in.
    disabled: bool,
    /// Open sessions.
    sessions: i64,
    created_by: String,
    created_at_ms: i64,
}

/// All accounts.
#[derive(Serialize, ToSchema)]
struct Accounts {
    accounts: Vec<ListedAccount>,
}

/// An account to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewAccount {
    #[schema(pattern = "^[A-Za-z0-9_.@-]{1,64}$")]
    name: String,
    role: AccountRole,
    /// One that is guessed first (common words, the account's name, sequences) is refused.
    #[schema(min_length = 12, max_length = 256)]
    password: String,
}

/// The account that was created.
#[derive(Serialize, ToSchema)]
struct CreatedAccount {
    name: AccountName,
    role: AccountRole,
}

/// What is to change. What is left out stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AccountChange {
    role: Option<AccountRole>,
    /// Disabling an account ends its sessions.
    disabled: Option<bool>,
    /// A new password ends all sessions of the account. One that is guessed first is refused.
    #[schema(min_length = 12, max_length = 256)]
    password: Option<String>,
}

/// The change is done.
#[derive(Serialize, ToSchema)]
struct AccountChanged {
    name: AccountName,
}

problems!(NotListed: SignedOut, Forbidden, TemporarilyUnavailable);
problems! {
    NotCreated: InvalidRequest, SignedOut, Forbidden, ForgedRequest, TooSlow, Conflict, BodyTooLarge,
    TemporarilyUnavailable
}
problems! {
    NotChanged: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, Conflict, BodyTooLarge,
    TemporarilyUnavailable
}

/// All accounts, by name
///
/// For admins.
#[utoipa::path(
    get,
    path = "/api/v1/admin/accounts",
    operation_id = "list_accounts",
    tag = "admin",
    security(("session" = [])),
    responses((status = 200, description = "All accounts", body = Accounts), NotListed),
)]
pub async fn list(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let accounts = as_caller(request, &app_state, async move |console, caller| console.accounts(&caller.account).await);
    let accounts = accounts.await?.into_iter().map(|account| ListedAccount {
        name: account.name,
        role: account.role,
        disabled: account.disabled_at.is_some(),
        sessions: account.sessions,
        created_by: account.created_by,
        created_at_ms: account.created_at.timestamp_millis(),
    });
    Ok(HttpResponse::Ok().json(Accounts { accounts: accounts.collect() }))
}

/// Create an account
///
/// For admins.
#[utoipa::path(
    post,
    path = "/api/v1/admin/accounts",
    operation_id = "create_account",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    request_body = NewAccount,
    responses((status = 201, description = "Created", body = CreatedAccount), NotCreated),
)]
pub async fn create(
    request: HttpRequest,
    app_state: Data<AppState>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let created = as_caller(request, &app_state, async move |console, caller| {
        let NewAccount { name, role, password } = json_object::from_slice(&body)?;
        let name = AccountName::parse(&name, "name")?;
        let password = new_password(password, &name)?;
        console.create_account(&caller.account, &name, role, password).await?;
        Ok(CreatedAccount { name, role })
    });
    Ok(HttpResponse::Created().json(created.await?))
}

/// Change an account's role or password, disable or enable it
///
/// For admins. All parts of the change are made, or none. The last admin who can sign in stays one (409).
#[utoipa::path(
    put,
    path = "/api/v1/admin/accounts/{name}",
    operation_id = "change_account",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("name" = AccountName, Path, description = "The account")),
    request_body = AccountChange,
    responses((status = 200, description = "Done", body = AccountChanged), NotChanged),
)]
pub async fn change(
    request: HttpRequest,
    app_state: Data<AppState>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let changed = as_caller(request, &app_state, async move |console, caller| {
        let name = AccountName::parse(caller.request.match_info().query("name"), "name")?;
        let AccountChange { role, disabled, password } = json_object::from_slice(&body)?;
        let password = password.map(|text| new_password(text, &name)).transpose()?;
        let change = Change { role, disabled, password };
        console.change_account(&caller.account, &name, change).await?;
        Ok(AccountChanged { name })
    });
    Ok(HttpResponse::Ok().json(changed.await?))
}
