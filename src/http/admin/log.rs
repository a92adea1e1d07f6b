//! The audit log and the alarms.

use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::as_caller;
use crate::domain::ids::Invalid;
use crate::http::AppState;
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
}

/// The newest alarms.
#[derive(Serialize, ToSchema)]
struct Alarms {
    alarms: Vec<Alarm>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LimitQuery {
    /// The most entries to return; 100 by default.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

problems!(NotShown: InvalidRequest, SignedOut, Forbidden, TemporarilyUnavailable);

/// The audit log: changes and refused attempts, the newest first
///
/// For admins.
#[utoipa::path(
    get,
    path = "/api/v1/admin/audit-log",
    operation_id = "audit_log",
    tag = "admin",
    security(("session" = [])),
    params(LimitQuery),
    responses((status = 200, description = "The newest lines", body = AuditLog), NotShown),
)]
pub async fn audit(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let lines = as_caller(request, &app_state, async move |console, caller| {
        console.audit_log(&caller.account, limit(&caller.request)?).await
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
/// For admins.
#[utoipa::path(
    get,
    path = "/api/v1/admin/alarms",
    operation_id = "alarms",
    tag = "admin",
    security(("session" = [])),
    params(LimitQuery),
    responses((status = 200, description = "The newest alarms", body = Alarms), NotShown),
)]
pub async fn alarms(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let alarms = as_caller(request, &app_state, async move |console, caller| {
        console.alarms(&caller.account, limit(&caller.request)?).await
    });
    let alarms = alarms.await?.into_iter().map(|alarm| Alarm {
        id: alarm.id,
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
    match query.into_inner().limit.as_deref().unwrap_or("100").parse() {
        Ok(limit @ 1..=1000) => Ok(limit),
        _ => Err(wrong),
    }
}
