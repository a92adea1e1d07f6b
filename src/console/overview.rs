//! The page that a person sees first.

use actix_web::HttpResponse;
use askama::Template;

use super::frame::{Frame, page};
use super::show;
use crate::admin::overview::Overview;
use crate::http::Ask;

#[derive(Template)]
#[template(path = "console/overview.html")]
struct OverviewPage {
    frame: Frame,
    overview: Overview,
}

impl OverviewPage {
    /// How many sales take orders now.
    fn selling(&self) -> usize {
        self.overview.sales.iter().filter(|sale| sale.phase.as_str() == "open").count()
    }
}

pub async fn show(ask: Ask) -> HttpResponse {
    page(ask, "overview", async |console, caller, frame| {
        let overview = console.overview(&caller.account).await?;
        Ok(OverviewPage { frame, overview })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_shop_has_an_overview() {
        let overview = Overview { now_ms: 0, sales: Vec::new(), alarms: Vec::new(), drift: Vec::new(), work: None };
        let page = OverviewPage { frame: Frame::of_admin("overview"), overview }.render().unwrap();
        assert!(page.contains("aria-current=\"page\">Overview</a>") && page.contains("No alarm is open"), "{page}");
        assert!(page.contains("<meta name=\"csrf\" content=\"token\">") && !page.contains("\"unknown\""), "{page}");
    }
}
