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

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    #[test]
    fn each_account_can_be_changed_by_the_addresses_of_the_api() {
        let row = |name: &str, disabled| ListedAccount {
            name: name.to_owned(),
            role: "manager".to_owned(),
            disabled,
            sessions: 2,
            created_by: "command line".to_owned(),
            created_at: DateTime::UNIX_EPOCH,
        };
        let accounts = vec![row("ann", false), row("bob@shop", true)];
        let page = AccountsPage { frame: Frame::of_admin("accounts"), accounts }.render().unwrap();
        for shown in [
            "data-api=\"/api/v1/admin/accounts/bob@shop\" data-method=\"PUT\"",
            "data-api=\"/api/v1/admin/sessions?account=ann\" data-method=\"DELETE\"",
            "<option value=\"manager\" selected>",
        ] {
            assert!(page.contains(shown), "{shown}: {page}");
        }
    }
}
