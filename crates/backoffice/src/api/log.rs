//! The overview, the alarms and the audit log.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Answer, NotChanged, NotDoneToOne, NotRead, NotReadSome, NotReadSomeGuarded};
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

/// A note about an alarm.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AlarmNote {
    /// The note, in one line.
    #[schema(
        max_length = 500,
        pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]*[^\\s\\x00-\\x1F\\x7F-\\x9F][^\\x00-\\x1F\\x7F-\\x9F]*$"
    )]
    note: String,
}

/// How long the webhook is told nothing of an alarm, and why.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MuteForm {
    #[schema(minimum = 1, maximum = 43_200)]
    minutes: i64,
    #[schema(
        max_length = 500,
        pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]*[^\\s\\x00-\\x1F\\x7F-\\x9F][^\\x00-\\x1F\\x7F-\\x9F]*$"
    )]
    note: String,
}

/// The change of an alarm is done.
#[derive(Serialize, ToSchema)]
struct AlarmChanged {
    alarm_id: i64,
}

/// Say that an open alarm is known
///
/// For managers and admins. The alarm stays in all lists until its trouble is over.
#[utoipa::path(
    put,
    path = "/api/v1/admin/alarms/{id}/acknowledgement",
    params(("id" = i64, Path, description = "The alarm", minimum = 1)),
    request_body = AlarmNote,
    responses((status = 200, description = "Done", body = AlarmChanged), NotChanged),
)]
pub(super) async fn acknowledge_alarm(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let (alarm_id, AlarmNote { note }) = (caller.number("alarm")?, caller.body()?);
        office.acknowledge_alarm(&caller.account, alarm_id, &note).await?;
        Ok(AlarmChanged { alarm_id })
    })
    .await
}

/// Mute an alarm
///
/// For managers and admins. Until the end, the webhook is told nothing of alarms of the same kind and subject, also of later ones. The alarm
/// stays in all lists. What was raised meanwhile and is still wrong at the end is told then.
#[utoipa::path(
    put,
    path = "/api/v1/admin/alarms/{id}/mute",
    params(("id" = i64, Path, description = "The alarm", minimum = 1)),
    request_body = MuteForm,
    responses((status = 200, description = "Done", body = AlarmChanged), NotDoneToOne),
)]
pub(super) async fn mute_alarm(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let (alarm_id, MuteForm { minutes, note }) = (caller.number("alarm")?, caller.body()?);
        office.mute_alarm(&caller.account, alarm_id, minutes, &note).await?;
        Ok(AlarmChanged { alarm_id })
    })
    .await
}

/// End the mute of an alarm
///
/// For managers and admins. What was raised meanwhile and is still wrong is told at once.
#[utoipa::path(
    delete,
    path = "/api/v1/admin/alarms/{id}/mute",
    params(("id" = i64, Path, description = "The alarm", minimum = 1)),
    responses((status = 200, description = "Done", body = AlarmChanged), NotChanged),
)]
pub(super) async fn unmute_alarm(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let alarm_id = caller.number("alarm")?;
        office.unmute_alarm(&caller.account, alarm_id).await?;
        Ok(AlarmChanged { alarm_id })
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
