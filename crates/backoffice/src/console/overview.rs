//! The page that a person sees first.

use actix_web::HttpResponse;
use askama::Template;

use super::frame::{Frame, page};
use super::show;
use crate::admin::overview::Overview;
use crate::api::Ask;

#[derive(Template)]
#[template(path = "console/overview.html")]
struct OverviewPage {
    frame: Frame,
    overview: Overview,
}

impl OverviewPage {
    fn selling(&self) -> usize {
        self.overview.sales.iter().filter(|sale| sale.phase.as_str() == "open").count()
    }
}

pub(crate) async fn show(ask: Ask) -> HttpResponse {
    page(ask, "overview", async |office, caller, frame| {
        let overview = office.overview(&caller.account).await?;
        Ok(OverviewPage { frame, overview })
    })
    .await
}
