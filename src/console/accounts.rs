//! The page of accounts, for admins.

use actix_web::HttpResponse;
use askama::Template;

use super::frame::{Frame, page};
use super::show;
use crate::admin::accounts::ListedAccount;
use crate::http::Ask;

#[derive(Template)]
#[template(path = "console/accounts.html")]
struct AccountsPage {
    frame: Frame,
    accounts: Vec<ListedAccount>,
}

pub async fn list(ask: Ask) -> HttpResponse {
    page(ask, "accounts", async |console, caller, frame| {
        Ok(AccountsPage { frame, accounts: console.accounts(&caller.account).await? })
    })
    .await
}
