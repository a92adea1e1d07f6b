//! The alarms, open and cleared, and the runbooks.

use actix_web::HttpResponse;
use askama::Template;
use askama::filters::Safe;
use serde::Deserialize;

use super::frame::{Frame, address, page};
use super::show;
use crate::admin::AdminError;
use crate::admin::log::Alarm;
use crate::admin::paging::before_number;
use crate::api::Ask;
use crate::runbooks;

const SHOWN_MAX: i64 = 200;

#[derive(Template)]
#[template(path = "console/alarms.html")]
struct AlarmsPage {
    frame: Frame,
    open: Vec<Alarm>,
    cleared: Vec<Alarm>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Place {
    before: Option<String>,
}

impl AlarmsPage {
    /// The kind in words; the kind itself, if only a newer version knows it.
    fn meaning<'a>(&self, alarm: &'a Alarm) -> &'a str {
        runbooks::meaning_of(&alarm.kind).unwrap_or(&alarm.kind)
    }
}

pub(crate) async fn list(ask: Ask) -> HttpResponse {
    page(ask, "alarms", async |office, caller, frame| {
        let before = before_number(&caller.query::<Place>()?.before)?;
        let (alarms, next) = office.alarms(&caller.account, before, SHOWN_MAX).await?;
        let (open, cleared) = alarms.into_iter().partition(|alarm| alarm.cleared_at_ms.is_none());
        let next = next.map(|last| address("/admin/alarms", &[], Some(&last)));
        Ok(AlarmsPage { frame, open, cleared, next })
    })
    .await
}

#[derive(Template)]
#[template(path = "console/runbook.html")]
struct RunbookPage {
    frame: Frame,
    title: String,
    is_list: bool,
    text: Safe<String>,
}

pub(crate) async fn runbook(ask: Ask) -> HttpResponse {
    page(ask, "alarms", async |_, caller, frame| {
        let name = Some(caller.part("name")).filter(|name| !name.is_empty()).unwrap_or(runbooks::LIST);
        let text = runbooks::text_of(name).ok_or(AdminError::Unknown("runbook"))?;
        let heading = text.lines().next().unwrap_or_default();
        let title = heading.trim_start_matches("# ").replace('`', "");
        Ok(RunbookPage { frame, title, is_list: name == runbooks::LIST, text: runbooks::rendered(text) })
    })
    .await
}
