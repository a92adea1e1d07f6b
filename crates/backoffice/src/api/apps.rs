//! Applications, and the accounts that may see or change their policies.

use actix_web::HttpResponse;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Answer, NotChanged, NotDoneToOne, NotMade, NotRead, app};
use crate::admin::policies::App;
use crate::api::Ask;
use seckill_domain::account::AccountName;
use seckill_domain::policy::{Name, Role};

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
    /// How long both tokens are valid. With 0, all earlier tokens end at once.
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

/// The applications that the account sees
#[utoipa::path(
    get,
    path = "/api/v1/admin/apps",
    responses((status = 200, description = "All of them, by name", body = Apps), NotRead),
)]
pub(super) async fn list_apps(ask: Ask) -> Answer {
    ask.answer(async |office, caller| Ok(Apps { apps: office.apps(&caller.account).await? })).await
}

/// Create an application
///
/// For admins.
#[utoipa::path(
    post,
    path = "/api/v1/admin/apps",
    request_body = NewApp,
    responses((status = 201, description = "Created", body = Created), NotMade),
)]
pub(super) async fn create_app(ask: Ask) -> Answer {
    let created = ask.act(async |office, caller| {
        let new: NewApp = caller.body()?;
        let name = app(&new.name)?;
        let token = office.create_app(&caller.account, &name).await?;
        Ok(Created { name, token })
    });
    Ok(HttpResponse::Created().json(created.await?))
}

/// Replace an application's token
///
/// For admins. For a time both tokens are valid; then the old one ends by itself.
#[utoipa::path(
    post,
    path = "/api/v1/admin/apps/{name}/tokens",
    params(("name" = Name, Path, description = "The application")),
    request_body = NewToken,
    responses((status = 201, description = "Replaced", body = Rotated), NotChanged),
)]
pub(super) async fn rotate_app_token(ask: Ask) -> Answer {
    let rotated = ask.act(async |office, caller| {
        let name = app(caller.part("name"))?;
        let NewToken { overlap_ms } = caller.body()?;
        let new = office.rotate_token(&caller.account, &name, overlap_ms).await?;
        let (token, everywhere) = (new.token, new.everywhere);
        Ok(Rotated { name, token, old_token_ends_at_ms: new.old_ends_at_ms, everywhere })
    });
    Ok(HttpResponse::Created().json(rotated.await?))
}

/// Let an account see an application's policies, or change them
///
/// For admins.
#[utoipa::path(
    put,
    path = "/api/v1/admin/grants",
    request_body = Grant,
    responses((status = 200, description = "Done", body = GrantSet), NotDoneToOne),
)]
pub(super) async fn set_grant(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let grant: Grant = caller.body()?;
        let (app, role) = (app(&grant.app)?, grant.role);
        let account = AccountName::parse(&grant.account, "account")?;
        office.grant(&caller.account, &app, &account, role).await?;
        Ok(GrantSet { app, account, role })
    })
    .await
}
