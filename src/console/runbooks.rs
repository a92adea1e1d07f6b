//! The runbooks as pages.

use actix_web::HttpResponse;
use askama::Template;
use askama::filters::Safe;

use super::frame::{Frame, page};
use crate::admin::AdminError;
use crate::http::Ask;
use crate::runbooks::{LIST, rendered, text_of};

#[derive(Template)]
#[template(path = "console/runbook.html")]
struct RunbookPage {
    frame: Frame,
    title: String,
    is_list: bool,
    text: Safe<String>,
}

/// A runbook, or the list of them where the address names none.
pub async fn show(ask: Ask) -> HttpResponse {
    page(ask, "alarms", async |_, caller, frame| {
        let name = Some(caller.part("name")).filter(|name| !name.is_empty()).unwrap_or(LIST);
        let text = text_of(name).ok_or(AdminError::Unknown("runbook"))?;
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
