//! Applications, their tokens, and who may see or change their policies. It is for admins.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use askama::Template;

use super::frame::{Access, Frame, page};
use super::show;
use crate::admin::policies::App;
use crate::domain::account::{AppToken, Granted};
use crate::domain::policy::HOUSE_APP;
use crate::http::AppState;

#[derive(Template)]
#[template(path = "console/apps.html")]
struct AppsPage {
    frame: Frame,
    apps: Vec<AppView>,
}

struct AppView {
    name: String,
    created_by: String,
    created_at_ms: i64,
    grants: Vec<GrantView>,
    tokens: Vec<AppToken>,
    /// The service itself needs no token.
    is_house: bool,
}

struct GrantView {
    account: String,
    role: &'static str,
}

impl From<Granted> for GrantView {
    fn from(granted: Granted) -> Self {
        Self { account: granted.account, role: granted.role.as_str() }
    }
}

impl From<App> for AppView {
    fn from(app: App) -> Self {
        Self {
            is_house: app.name.as_str() == HOUSE_APP,
            name: app.name.to_string(),
            created_by: app.created_by,
            created_at_ms: app.created_at.timestamp_millis(),
            grants: app.grants.into_iter().map(GrantView::from).collect(),
            tokens: app.tokens,
        }
    }
}

/// All applications.
pub async fn list(request: HttpRequest, app_state: Data<AppState>) -> HttpResponse {
    page(request, &app_state, Access::Admins, "applications", async |console, caller, frame| {
        let apps = console.apps(&caller.account).await?.into_iter().map(AppView::from).collect();
        Ok(AppsPage { frame, apps })
    })
    .await
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
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
        let page =
            |app| AppsPage { frame: Frame::of_admin("applications"), apps: vec![AppView::from(app)] }.render().unwrap();
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
