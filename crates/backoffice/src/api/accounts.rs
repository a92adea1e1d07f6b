//! Accounts, for admins.

use actix_web::HttpResponse;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Answer, NotChanged, NotMade, NotReadGuarded};
use crate::admin::accounts::{ListedAccount, new_password};
use crate::api::Ask;
use seckill_domain::account::{AccountName, AccountRole};

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
    /// Passwords that are easy to guess (common words, the account's name, sequences) are refused.
    #[schema(min_length = 12, max_length = 256)]
    password: String,
}

/// The account that was created.
#[derive(Serialize, ToSchema)]
struct CreatedAccount {
    name: AccountName,
    role: AccountRole,
}

/// The changes. Fields that are left out change nothing.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AccountChange {
    pub role: Option<AccountRole>,
    /// Disabling an account ends its sessions.
    pub disabled: Option<bool>,
    /// A new password ends all sessions of the account. An easily guessed password is refused.
    #[schema(min_length = 12, max_length = 256)]
    password: Option<String>,
}

/// The change is done.
#[derive(Serialize, ToSchema)]
struct AccountChanged {
    name: AccountName,
}

/// All accounts, by name
///
/// For admins.
#[utoipa::path(
    get,
    path = "/api/v1/admin/accounts",
    responses((status = 200, description = "All accounts", body = Accounts), NotReadGuarded),
)]
pub(super) async fn list_accounts(ask: Ask) -> Answer {
    ask.answer(async |office, caller| Ok(Accounts { accounts: office.accounts(&caller.account).await? })).await
}

/// Create an account
///
/// For admins.
#[utoipa::path(
    post,
    path = "/api/v1/admin/accounts",
    request_body = NewAccount,
    responses((status = 201, description = "Created", body = CreatedAccount), NotMade),
)]
pub(super) async fn create_account(ask: Ask) -> Answer {
    let created = ask.act(async |office, caller| {
        let NewAccount { name, role, password } = caller.body()?;
        let name = AccountName::parse(&name, "name")?;
        let password = new_password(password, &name)?;
        office.create_account(&caller.account, &name, role, password).await?;
        Ok(CreatedAccount { name, role })
    });
    Ok(HttpResponse::Created().json(created.await?))
}

/// Change an account's role or password, disable or enable it
///
/// For admins. All parts of the change are made, or none. The last admin who can sign in stays one, and nobody changes the role of the own
/// account (409).
#[utoipa::path(
    put,
    path = "/api/v1/admin/accounts/{name}",
    params(("name" = AccountName, Path, description = "The account")),
    request_body = AccountChange,
    responses((status = 200, description = "Done", body = AccountChanged), NotChanged),
)]
pub(super) async fn change_account(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let name = AccountName::parse(caller.part("name"), "name")?;
        let AccountChange { role, disabled, password } = caller.body()?;
        let password = password.map(|text| new_password(text, &name)).transpose()?;
        office.change_account(&caller.account, &name, role, disabled, password).await?;
        Ok(AccountChanged { name })
    })
    .await
}
