//! The overview, the alarms and the audit log.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Answer, NotRead, NotReadSome, NotReadSomeGuarded};
use crate::admin::log::{Alarm, LogLine};
use crate::admin::overview::Overview;
use crate::admin::paging::{before_number, limit};
use crate::api::Ask;
use seckill_domain::ids::Invalid;
use seckill_domain::log_filter::LogFilter;

/// A page of the audit log, the newest lines first.
#[derive(Serialize, ToSchema)]
struct AuditLog {
    lines: Vec<LogLine>,
    /// `before` of the next page; null on the last one.
    next_before: Option<i64>,
}

/// A page of alarms.
#[derive(Serialize, ToSchema)]
struct Alarms {
    alarms: Vec<Alarm>,
    /// `before` of the next page; null on the last one.
    next_before: Option<i64>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogQuery {
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
    /// The next page: `next_before` of the page before.
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

const LIMIT: i64 = 100;

fn whole(field: &'static str, text: Option<String>) -> Result<Option<i64>, Invalid> {
    let number = text.map(|text| text.parse::<i64>()).transpose();
    number.map_err(|_| Invalid::new(field, "must be a whole number"))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AlarmQuery {
    /// The next page: `next_before` of the page before.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1)]
    before: Option<String>,
    /// The most entries to return; 100 by default.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

/// The audit log: changes and refused attempts, the newest first
///
/// For admins.
#[utoipa::path(
    get,
    path = "/api/v1/admin/audit-log",
    params(LogQuery),
    responses((status = 200, description = "A page of lines that pass the filter", body = AuditLog), NotReadSomeGuarded),
)]
pub(super) async fn audit_log(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let filter = caller.query::<LogQuery>()?.filter()?;
        let (lines, next_before) = office.audit_log(&caller.account, filter).await?;
        Ok(AuditLog { lines, next_before })
    })
    .await
}

/// The alarms, open ones first
///
/// Alarms that name an application are for admins.
#[utoipa::path(
    get,
    path = "/api/v1/admin/alarms",
    params(AlarmQuery),
    responses((status = 200, description = "A page of alarms", body = Alarms), NotReadSome),
)]
pub(super) async fn alarms(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let AlarmQuery { before, limit: most } = caller.query()?;
        let (alarms, next_before) = office.alarms(&caller.account, before_number(&before)?, limit(&most)?).await?;
        Ok(Alarms { alarms, next_before })
    })
    .await
}

/// How the sales stand, and what needs a person
///
/// Viewers see sales and alarms; alarms that name an application are for admins.
#[utoipa::path(
    get,
    path = "/api/v1/admin/overview",
    responses((status = 200, description = "The overview", body = Overview), NotRead),
)]
pub(super) async fn overview(ask: Ask) -> Answer {
    ask.answer(async |office, caller| office.overview(&caller.account).await).await
}
