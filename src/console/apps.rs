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
