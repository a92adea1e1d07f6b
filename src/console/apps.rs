//! Applications, their tokens, and who may see or change their policies. It is for admins.

use actix_web::HttpResponse;
use askama::Template;

use super::frame::{Frame, page};
use super::show;
use crate::admin::policies::App;
use crate::http::Ask;

#[derive(Template)]
#[template(path = "console/apps.html")]
struct AppsPage {
    frame: Frame,
    apps: Vec<App>,
}

/// All applications.
pub async fn list(ask: Ask) -> HttpResponse {
    page(ask, "applications", async |console, caller, frame| {
        Ok(AppsPage { frame, apps: console.apps(&caller.account).await? })
    })
    .await
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::domain::account::{AppToken, Granted};
    use crate::domain::policy::{Name, Role};

    #[test]
    fn an_application_shows_its_tokens_by_their_ids_and_can_be_changed() {
        let app = |name: &str| App {
            name: Name::parse(name, "app").unwrap(),
            created_by: "<b>root</b>".to_owned(),
            created_at: DateTime::from_timestamp_millis(0).unwrap(),
            grants: vec![Granted { account: "ann@shop".to_owned(), role: Role::Owner }],
            tokens: vec![AppToken { id: "0a1b2c3d".to_owned(), created_at_ms: 0, ends_at_ms: Some(5) }],
        };
        let page = |app| AppsPage { frame: Frame::of_admin("applications"), apps: vec![app] }.render().unwrap();
        let shop = page(app("shop"));
        for shown in [
            "0a1b2c3d",
            "/api/v1/admin/apps/shop/tokens",
            "ann@shop",
            "/admin/policies?app=shop",
            "data-show=\"token\"",
        ] {
            assert!(shop.contains(shown), "{shown}: {shop}");
        }
        assert!(!shop.contains("<b>root"));
        assert!(!page(app("seckill")).contains("/tokens"), "it has no token to replace");
    }
}
