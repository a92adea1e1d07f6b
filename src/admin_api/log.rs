//! The audit log and the alarms.

use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::domain::alarm::AlarmKind;
use crate::domain::ids::Invalid;
use crate::domain::log_filter::LogFilter;
use crate::http::AppState;
use crate::http::caller::as_caller;
use crate::http::codes::problems;
use crate::http::problem::Problem;

/// A line of the audit log.
#[derive(Serialize, ToSchema)]
#[schema(as = Line)]
struct LogLine {
    id: i64,
    at_ms: i64,
    /// An account, `command line`, or a part of the service.
    actor: String,
    action: String,
    subject: String,
    details: Value,
}

/// The audit log's newest lines.
#[derive(Serialize, ToSchema)]
struct AuditLog {
    lines: Vec<LogLine>,
}

/// An alarm, open or cleared.
#[derive(Serialize, ToSchema)]
struct Alarm {
    id: i64,
    kind: String,
    subject: String,
    details: Value,
    raised_at_ms: i64,
    /// Null while the alarm is open.
    cleared_at_ms: Option<i64>,
    /// The file that says what to do, from the top of the repository. Null for a kind that only a newer version knows.
    runbook: Option<&'static str>,
}

/// The newest alarms.
#[derive(Serialize, ToSchema)]
struct Alarms {
    alarms: Vec<Alarm>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LogQuery {
    /// Only lines of this actor.
    #[param(nullable = false, min_length = 1, max_length = 64)]
    actor: Option<String>,
    /// Only lines with this action.
    #[param(nullable = false, min_length = 1, max_length = 64)]
    action: Option<String>,
    /// Only lines about this subject, such as `sale 7`.
    #[param(nullable = false, min_length = 1, max_length = 1000)]
    subject: Option<String>,
    /// Only lines from this moment on.
    #[param(value_type = Option<i64>, nullable = false, minimum = 0, maximum = 253_402_300_799_999_i64)]
    from_ms: Option<String>,
    /// Only lines before this moment.
    #[param(value_type = Option<i64>, nullable = false, minimum = 0, maximum = 253_402_300_799_999_i64)]
    to_ms: Option<String>,
    /// Only lines older than the one with this id. The last id of an answer leads to the next page.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1)]
    before: Option<String>,
    /// The most lines to return; 100 by default.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

impl LogQuery {
    fn filter(self) -> Result<LogFilter, Invalid> {
        Ok(LogFilter {
            actor: self.actor,
            action: self.action,
            subject: self.subject,
            from_ms: whole("from_ms", self.from_ms)?,
            to_ms: whole("to_ms", self.to_ms)?,
            before: whole("before", self.before)?,
            limit: whole("limit", self.limit)?.unwrap_or(LIMIT),
        })
    }
}

/// The most entries of an answer where the caller names no limit.
const LIMIT: i64 = 100;

fn whole(field: &'static str, text: Option<String>) -> Result<Option<i64>, Invalid> {
    let number = text.map(|text| text.parse::<i64>()).transpose();
    number.map_err(|_| Invalid::new(field, "must be a whole number"))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LimitQuery {
    /// The most entries to return; 100 by default.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

problems!(NotShown: InvalidRequest, SignedOut, Forbidden, TemporarilyUnavailable);
problems!(AlarmsNotShown: InvalidRequest, SignedOut, TemporarilyUnavailable);

/// The audit log: changes and refused attempts, the newest first
///
/// For admins.
#[utoipa::path(
    get,
    path = "/api/v1/admin/audit-log",
    operation_id = "audit_log",
    tag = "admin",
    security(("session" = [])),
    params(LogQuery),
    responses((status = 200, description = "The newest lines that pass the filter", body = AuditLog), NotShown),
)]
pub async fn audit(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let lines = as_caller(request, &app_state, async move |console, caller| {
        let query = Query::<LogQuery>::from_query(caller.request.query_string());
        let query = query.map_err(|_| Invalid::new("each filter", "must be given once"))?.into_inner();
        console.audit_log(&caller.account, query.filter()?).await
    });
    let lines = lines.await?.into_iter().map(|line| LogLine {
        id: line.id,
        at_ms: line.at.timestamp_millis(),
        actor: line.actor,
        action: line.action,
        subject: line.subject,
        details: line.details,
    });
    Ok(HttpResponse::Ok().json(AuditLog { lines: lines.collect() }))
}

/// The alarms, open ones first
///
/// Alarms that name an application are for admins.
#[utoipa::path(
    get,
    path = "/api/v1/admin/alarms",
    operation_id = "alarms",
    tag = "admin",
    security(("session" = [])),
    params(LimitQuery),
    responses((status = 200, description = "The newest alarms", body = Alarms), AlarmsNotShown),
)]
pub async fn alarms(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let alarms = as_caller(request, &app_state, async move |console, caller| {
        console.alarms(&caller.account, limit(&caller.request)?).await
    });
    let alarms = alarms.await?.into_iter().map(|alarm| Alarm {
        id: alarm.id,
        runbook: AlarmKind::runbook_of(&alarm.kind),
        kind: alarm.kind,
        subject: alarm.subject,
        details: alarm.details,
        raised_at_ms: alarm.raised_at.timestamp_millis(),
        cleared_at_ms: alarm.cleared_at.map(|at| at.timestamp_millis()),
    });
    Ok(HttpResponse::Ok().json(Alarms { alarms: alarms.collect() }))
}

fn limit(request: &HttpRequest) -> Result<i64, Invalid> {
    let wrong = Invalid::new("limit", "must be 1 to 1000");
    let query = Query::<LimitQuery>::from_query(request.query_string()).map_err(|_| wrong.clone())?;
    match whole("limit", query.into_inner().limit)?.unwrap_or(LIMIT) {
        limit @ 1..=1000 => Ok(limit),
        _ => Err(wrong),
    }
}
