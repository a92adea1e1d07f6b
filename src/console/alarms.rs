//! The alarms: what is wrong now, what was, and what to do about each.

use actix_web::HttpResponse;
use askama::Template;

use super::frame::{Frame, page};
use super::show;
use crate::admin::log::Alarm;
use crate::http::Ask;
use crate::runbooks;

/// How many alarms the page shows; open ones come first.
const SHOWN_MAX: i64 = 200;

#[derive(Template)]
#[template(path = "console/alarms.html")]
struct AlarmsPage {
    frame: Frame,
    open: Vec<Alarm>,
    cleared: Vec<Alarm>,
}

impl AlarmsPage {
    /// The kind in words; the kind itself, if only a newer version knows it.
    fn meaning<'a>(&self, alarm: &'a Alarm) -> &'a str {
        runbooks::meaning_of(&alarm.kind).unwrap_or(&alarm.kind)
    }
}

/// The page of the alarms that the account sees.
pub async fn list(ask: Ask) -> HttpResponse {
    page(ask, "alarms", async |console, caller, frame| {
        let alarms = console.alarms(&caller.account, SHOWN_MAX).await?.into_iter();
        let (open, cleared) = alarms.partition(|alarm| alarm.cleared_at_ms.is_none());
        Ok(AlarmsPage { frame, open, cleared })
    })
    .await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn alarm(kind: &str, subject: &str, cleared_at_ms: Option<i64>) -> Alarm {
        let (kind, subject) = (kind.to_owned(), subject.to_owned());
        Alarm { id: 1, kind, subject, details: json!({ "rows": 3 }), raised_at_ms: 0, cleared_at_ms, runbook: None }
    }

    #[test]
    fn an_open_alarm_says_what_to_do_and_a_cleared_one_links_it() {
        let (open, cleared) = (
            vec![alarm("parked", "group_placed", None), alarm("<b>new</b>", "x", None)],
            vec![alarm("drift", "7", Some(5))],
        );
        let page = AlarmsPage { frame: Frame::of_admin("alarms"), open, cleared }.render().unwrap();
        for shown in ["/admin/runbooks/parked", "/admin/runbooks/drift", "group_placed", "&#34;rows&#34;:3", "<li>"] {
            assert!(page.contains(shown), "{shown}: {page}");
        }
        assert_eq!(page.matches("What to do").count(), 1, "none for a kind that only a newer version knows: {page}");
        assert!(!page.contains("<b>"), "{page}");
    }
}
