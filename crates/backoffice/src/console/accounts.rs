//! The pages of accounts and of applications, for admins.

use actix_web::HttpResponse;
use askama::Template;

use super::frame::{Frame, page};
use super::show;
use crate::admin::accounts::ListedAccount;
use crate::admin::policies::App;
use crate::api::Ask;

#[derive(Template)]
#[template(path = "console/accounts.html")]
struct AccountsPage {
    frame: Frame,
    accounts: Vec<ListedAccount>,
}

pub(crate) async fn list(ask: Ask) -> HttpResponse {
    page(ask, "accounts", async |office, caller, frame| {
        Ok(AccountsPage { frame, accounts: office.accounts(&caller.account).await? })
    })
    .await
}

#[derive(Template)]
#[template(path = "console/apps.html")]
struct AppsPage {
    frame: Frame,
    apps: Vec<App>,
}

pub(crate) async fn apps(ask: Ask) -> HttpResponse {
    page(ask, "applications", async |office, caller, frame| {
        Ok(AppsPage { frame, apps: office.apps(&caller.account).await? })
    })
    .await
}
