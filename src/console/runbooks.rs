//! The runbooks as pages.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use askama::Template;
use askama::filters::Safe;

use super::frame::{self, Access, Frame};
use crate::admin::AdminError;
use crate::http::AppState;
use crate::runbooks::{LIST, rendered, text_of};

#[derive(Template)]
#[template(path = "console/runbook.html")]
struct RunbookPage {
    frame: Frame,
    title: String,
    is_list: bool,
    text: Safe<String>,
}

/// The list of runbooks.
pub async fn list(request: HttpRequest, app_state: Data<AppState>) -> HttpResponse {
    show_named(request, app_state, LIST.to_owned()).await
}

/// A runbook.
pub async fn show(request: HttpRequest, app_state: Data<AppState>) -> HttpResponse {
    let name = request.match_info().query("name").to_owned();
    show_named(request, app_state, name).await
}

async fn show_named(request: HttpRequest, app_state: Data<AppState>, name: String) -> HttpResponse {
    frame::page(request, &app_state, Access::Viewers, "alarms", async move |_, _, frame| {
        let text = text_of(&name).ok_or(AdminError::Unknown("runbook"))?;
        let heading = text.lines().next().unwrap_or_default();
        let title = heading.trim_start_matches("# ").replace('`', "");
        Ok(RunbookPage { frame, title, is_list: name == LIST, text: rendered(text) })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runbooks::RUNBOOKS;

    /// Every runbook fits into the console's frame.
    #[test]
    fn every_runbook_is_a_page() {
        for (name, text) in RUNBOOKS {
            let (frame, text) = (Frame::of_admin("alarms"), rendered(text));
            let page = RunbookPage { frame, title: name.to_owned(), is_list: false, text };
            assert!(page.render().unwrap().contains("</h2>"), "{name}");
        }
    }
}
