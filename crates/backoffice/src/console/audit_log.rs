//! The audit log, with filters. It is for admins.

use actix_web::HttpResponse;
use askama::Template;
use chrono::NaiveDateTime;
use serde::Deserialize;
use url::form_urlencoded::Serializer;

use super::frame::{Frame, page};
use super::show;
use crate::admin::log::LogLine;
use crate::api::Ask;
use seckill_domain::ids::Invalid;
use seckill_domain::log_filter::LogFilter;

const LINES: i64 = 100;

/// The filters, as the page's form sends them. An empty one filters nothing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Filters {
    actor: String,
    action: String,
    subject: String,
    /// In ms since the epoch; or in UTC: `2026-01-31T08:00`.
    from: String,
    to: String,
    before: String,
}

impl Filters {
    fn parse(&self) -> Result<LogFilter, Invalid> {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let before = text(&self.before).map(|text| text.parse::<i64>()).transpose();
        Ok(LogFilter {
            actor: text(&self.actor),
            action: text(&self.action),
            subject: text(&self.subject),
            from_ms: moment("from", &self.from)?,
            to_ms: moment("to", &self.to)?,
            before: before.map_err(|_| Invalid::new("before", "must be the id of a line, 1 or more"))?,
            limit: LINES,
        })
    }

    fn address(&self) -> String {
        let mut query = Serializer::new(String::new());
        for (name, value) in [
            ("actor", &self.actor),
            ("action", &self.action),
            ("subject", &self.subject),
            ("from", &self.from),
            ("to", &self.to),
            ("before", &self.before),
        ] {
            if !value.is_empty() {
                query.append_pair(name, value);
            }
        }
        format!("/admin/audit-log?{}", query.finish())
    }
}

fn moment(field: &'static str, text: &str) -> Result<Option<i64>, Invalid> {
    if text.is_empty() {
        return Ok(None);
    }
    // The page sends moments, because its fields are in the reader's zone.
    if let Ok(ms) = text.parse::<i64>() {
        return Ok(Some(ms));
    }
    // Browsers leave out seconds that are zero.
    let formats = ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S%.f"];
    let at = formats.iter().find_map(|format| NaiveDateTime::parse_from_str(text, format).ok());
    let at = at.ok_or(Invalid::new(field, "must be a time in ms, or in UTC such as 2026-01-31T08:00"))?;
    Ok(Some(at.and_utc().timestamp_millis()))
}

#[derive(Template)]
#[template(path = "console/audit-log.html")]
struct AuditLogPage {
    frame: Frame,
    filters: Filters,
    from_ms: Option<i64>,
    to_ms: Option<i64>,
    lines: Vec<LogLine>,
    older: Option<String>,
}

impl AuditLogPage {
    /// The actor, the action and the subject of a line, each with the page of the lines that have it too: none for a text that cannot
    /// be looked for.
    fn texts(&self, line: &LogLine) -> [(String, Option<String>); 3] {
        let none = Filters::default;
        [
            (&line.actor, Filters { actor: line.actor.clone(), ..none() }),
            (&line.action, Filters { action: line.action.clone(), ..none() }),
            (&line.subject, Filters { subject: line.subject.clone(), ..none() }),
        ]
        .map(|(text, filters)| {
            let can_be_found = filters.parse().and_then(LogFilter::check).is_ok();
            // Control characters have no look of their own in a page.
            (text.replace(char::is_control, "\u{fffd}"), can_be_found.then(|| filters.address()))
        })
    }

    fn details(&self, line: &LogLine) -> String {
        match show::json(&line.details) {
            short if short.is_empty() => short,
            short => serde_json::to_string_pretty(&line.details).unwrap_or(short),
        }
    }
}

pub(crate) async fn list(ask: Ask) -> HttpResponse {
    page(ask, "audit-log", async |office, caller, frame| {
        let filters = caller.query::<Filters>()?;
        let filter = filters.parse()?;
        let (from_ms, to_ms) = (filter.from_ms, filter.to_ms);
        let (lines, next) = office.audit_log(&caller.account, filter).await?;
        let older = next.map(|last| Filters { before: last.to_string(), ..filters.clone() }.address());
        Ok(AuditLogPage { frame, filters, from_ms, to_ms, lines, older })
    })
    .await
}
