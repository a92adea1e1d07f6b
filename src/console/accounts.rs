//! The page of accounts, for admins.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use askama::Template;

use super::frame::{Access, Frame, page};
use super::show;
use crate::http::AppState;

#[derive(Template)]
#[template(path = "console/accounts.html")]
struct AccountsPage {
    frame: Frame,
    accounts: Vec<AccountRow>,
}

/// An account as the page shows it.
struct AccountRow {
    name: String,
    role: String,
    disabled: bool,
    sessions: i64,
    created_by: String,
    created_at_ms: i64,
    /// Whether this is the account of the person who looks.
    is_own: bool,
}

pub async fn list(request: HttpRequest, app_state: Data<AppState>) -> HttpResponse {
    page(request, &app_state, Access::Admins, "accounts", async |console, caller, frame| {
        let accounts = console.accounts(&caller.account).await?.into_iter().map(|account| AccountRow {
            is_own: account.name == caller.account.name.as_str(),
            name: account.name,
            role: account.role,
            disabled: account.disabled_at.is_some(),
            sessions: account.sessions,
            created_by: account.created_by,
            created_at_ms: account.created_at.timestamp_millis(),
        });
        Ok(AccountsPage { frame, accounts: accounts.collect() })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_account_can_be_changed_by_the_addresses_of_the_api() {
        let row = |name: &str, disabled| AccountRow {
            name: name.to_owned(),
            role: "manager".to_owned(),
            disabled,
            sessions: 2,
            created_by: "command line".to_owned(),
            created_at_ms: 0,
            is_own: name == "ann",
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
