//! The alarms: what is wrong now, what was, and what to do about each.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use askama::Template;
use askama::filters::Safe;

use super::frame::{self, Access, Frame};
use super::show;
use crate::admin::log::Alarm;
use crate::http::AppState;
use crate::runbooks;

/// How many alarms the page shows; open ones come first.
const SHOWN_MAX: i64 = 200;

#[derive(Template)]
#[template(path = "console/alarms.html")]
struct AlarmsPage {
    frame: Frame,
    open: Vec<AlarmView>,
    cleared: Vec<AlarmView>,
}

struct AlarmView {
    id: i64,
    kind: String,
    /// The kind in words; the kind itself, if only a newer version knows it.
    meaning: String,
    subject: String,
    details: String,
    raised_at_ms: i64,
    cleared_at_ms: Option<i64>,
    runbook: Option<&'static str>,
    what_to_do: Option<Safe<String>>,
}

impl From<Alarm> for AlarmView {
    fn from(alarm: Alarm) -> Self {
        let meaning = runbooks::meaning_of(&alarm.kind).map_or_else(|| alarm.kind.clone(), str::to_owned);
        let is_open = alarm.cleared_at.is_none();
        Self {
            id: alarm.id,
            meaning,
            details: show::json(&alarm.details),
            raised_at_ms: alarm.raised_at.timestamp_millis(),
            cleared_at_ms: alarm.cleared_at.map(|at| at.timestamp_millis()),
            runbook: runbooks::name_of(&alarm.kind),
            what_to_do: is_open.then(|| runbooks::what_to_do(&alarm.kind)).flatten(),
            kind: alarm.kind,
            subject: alarm.subject,
        }
    }
}

/// The page of the alarms that the account sees.
pub async fn list(request: HttpRequest, app_state: Data<AppState>) -> HttpResponse {
    frame::page(request, &app_state, Access::Viewers, "alarms", async move |console, caller, frame| {
        let alarms = console.alarms(&caller.account, SHOWN_MAX).await?.into_iter().map(AlarmView::from);
        let (open, cleared) = alarms.partition(|alarm| alarm.cleared_at_ms.is_none());
        Ok(AlarmsPage { frame, open, cleared })
    })
    .await
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use serde_json::json;

    use super::*;

    fn alarm(kind: &str, subject: &str, cleared: bool) -> AlarmView {
        let at = |ms| DateTime::from_timestamp_millis(ms).unwrap();
        let cleared_at = cleared.then(|| at(1_767_229_200_000));
        let (kind, subject, raised_at) = (kind.to_owned(), subject.to_owned(), at(1_767_225_600_000));
        Alarm { id: 1, kind, subject, details: json!({ "rows": 3 }), raised_at, cleared_at }.into()
    }

    #[test]
    fn an_open_alarm_says_what_to_do_and_a_cleared_one_links_it() {
        let (open, cleared) = (vec![alarm("parked", "group_placed", false)], vec![alarm("drift", "7", true)]);
        let page = AlarmsPage { frame: Frame::of_admin("alarms"), open, cleared }.render().unwrap();
        for shown in ["/admin/runbooks/parked", "/admin/runbooks/drift", "group_placed", "&#34;rows&#34;:3", "<li>"] {
            assert!(page.contains(shown), "{shown}: {page}");
        }
        assert_eq!(page.matches("What to do").count(), 1, "{page}");
    }

    #[test]
    fn an_alarm_of_a_newer_version_is_shown_as_text() {
        let open = vec![alarm("<b>new</b>", "<script>alert(1)</script>", false)];
        let page = AlarmsPage { frame: Frame::of_admin("alarms"), open, cleared: Vec::new() }.render().unwrap();
        assert!(!page.contains("<b>") && !page.contains("<script>alert"), "{page}");
        assert!(!page.contains("What to do"), "{page}");
    }
}
