//! Seeing the audit log and the alarms, as far as the account may.

use serde::Serialize;
use serde_json::Value;
use strum::VariantArray;
use utoipa::ToSchema;

use super::paging::cut;
use super::{AdminError, Office, admins_only, operators_only};
use seckill_domain::account::Account;
use seckill_domain::alarm::AlarmKind;
use seckill_domain::ids::Invalid;
use seckill_domain::log_filter::LogFilter;
use seckill_domain::text;
use seckill_postgres::flow::alarm_handling::HandledAlarm;
use seckill_postgres::flow::alarms;

pub use seckill_postgres::audit_log::LogLine;

/// Nobody forgets a mute for longer.
const MUTE_MINUTES_MAX: i64 = 43_200;

/// An alarm, open or cleared.
#[derive(Serialize, ToSchema)]
pub(crate) struct Alarm {
    pub id: i64,
    pub kind: String,
    pub subject: String,
    pub details: Value,
    pub(crate) raised_at_ms: i64,
    /// Null while the alarm is open.
    pub(crate) cleared_at_ms: Option<i64>,
    /// The file that says what to do, from the top of the repository. Null for a kind that only a newer version knows.
    pub(crate) runbook: Option<String>,
    /// Who has said that the alarm is known.
    pub(crate) acknowledged: Option<Acknowledgement>,
    /// Until when the webhook is told nothing of the alarm.
    pub(crate) muted: Option<Mute>,
}

/// Who knows of an alarm, since when, and their note.
#[derive(Serialize, ToSchema)]
pub(crate) struct Acknowledgement {
    pub(crate) by: String,
    pub(crate) at_ms: i64,
    pub(crate) note: String,
}

/// An alarm is not sent to the webhook.
#[derive(Serialize, ToSchema)]
pub(crate) struct Mute {
    pub(crate) by: String,
    pub(crate) until_ms: i64,
    pub(crate) note: String,
}

impl From<alarms::Alarm> for Alarm {
    fn from(of: alarms::Alarm) -> Self {
        let acknowledged = of.acknowledged_by.zip(of.acknowledged_at).map(|(by, at)| Acknowledgement {
            by,
            at_ms: at.timestamp_millis(),
            note: of.note.unwrap_or_default(),
        });
        let muted = of.muted_by.zip(of.muted_until).map(|(by, until)| Mute {
            by,
            until_ms: until.timestamp_millis(),
            note: of.mute_note.unwrap_or_default(),
        });
        Self {
            id: of.id,
            runbook: AlarmKind::runbook_of(&of.kind),
            kind: of.kind,
            subject: of.subject,
            details: of.details,
            raised_at_ms: of.raised_at.timestamp_millis(),
            cleared_at_ms: of.cleared_at.map(|at| at.timestamp_millis()),
            acknowledged,
            muted,
        }
    }
}

/// The kinds of alarms that the account may see, by name. A newer version may have stored a kind that this one does not know:
/// nobody sees it here, because it may name an application.
pub(super) fn visible_kinds(account: &Account) -> Vec<String> {
    let kinds = AlarmKind::VARIANTS.iter().filter(|kind| account.sees_alarms(**kind));
    kinds.map(|kind| kind.as_str().to_owned()).collect()
}

/// The kinds of alarms that the account sees and handles; `None`: all.
fn seen_kinds(account: &Account) -> Option<Vec<String>> {
    (!account.is_admin()).then(|| visible_kinds(account))
}

fn handled(outcome: HandledAlarm, refused: &str) -> Result<(), AdminError> {
    match outcome {
        HandledAlarm::Done => Ok(()),
        HandledAlarm::Unknown => Err(AdminError::Unknown("alarm")),
        HandledAlarm::Refused => Err(AdminError::Conflict(refused.to_owned())),
    }
}

impl Office {
    pub(crate) async fn acknowledge_alarm(&self, account: &Account, id: i64, note: &str) -> Result<(), AdminError> {
        operators_only(account)?;
        let (note, kinds) = (text::line(note, "note", 1..=500)?, seen_kinds(account));
        let actor = account.name.as_str();
        let outcome = self.ledger.alarms.acknowledge_alarm(id, kinds.as_deref(), &note, actor).await?;
        handled(outcome, "the alarm is cleared")
    }

    pub(crate) async fn mute_alarm(
        &self,
        account: &Account,
        id: i64,
        minutes: i64,
        note: &str,
    ) -> Result<(), AdminError> {
        operators_only(account)?;
        if !(1..=MUTE_MINUTES_MAX).contains(&minutes) {
            return Err(Invalid::new("minutes", "must be 1 to 43200, which is 30 days").into());
        }
        let (note, kinds) = (text::line(note, "note", 1..=500)?, seen_kinds(account));
        let actor = account.name.as_str();
        handled(self.ledger.alarms.mute_alarm(id, kinds.as_deref(), minutes, &note, actor).await?, "")
    }

    pub(crate) async fn unmute_alarm(&self, account: &Account, id: i64) -> Result<(), AdminError> {
        operators_only(account)?;
        let (kinds, actor) = (seen_kinds(account), account.name.as_str());
        handled(self.ledger.alarms.unmute_alarm(id, kinds.as_deref(), actor).await?, "the alarm is not muted")
    }

    /// A page of lines, and the `before` of the next page.
    pub(crate) async fn audit_log(
        &self,
        account: &Account,
        filter: LogFilter,
    ) -> Result<(Vec<LogLine>, Option<i64>), AdminError> {
        admins_only(account)?;
        let filter = filter.check()?;
        let more = LogFilter { limit: filter.limit + 1, ..filter };
        let mut lines = self.ledger.accounts.audit_log(&more).await?;
        let next = cut(&mut lines, more.limit - 1).map(|last| last.id);
        Ok((lines, next))
    }

    /// A page of alarms, the newest first and open ones before all others, and the `before` of the next page. Only admins see alarms
    /// that name an application, and kinds that only a newer version knows: they may name one.
    pub(crate) async fn alarms(
        &self,
        account: &Account,
        before: Option<i64>,
        limit: i64,
    ) -> Result<(Vec<Alarm>, Option<i64>), AdminError> {
        let kinds = seen_kinds(account);
        let mut alarms = self.ledger.alarms.alarms(kinds.as_deref(), before, limit + 1).await?;
        let next = cut(&mut alarms, limit).map(|last| last.id);
        Ok((alarms.into_iter().map(Alarm::from).collect(), next))
    }
}
