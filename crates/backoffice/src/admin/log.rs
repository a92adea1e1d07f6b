//! Seeing the audit log and the alarms, as far as the account may.

use serde::Serialize;
use serde_json::Value;
use strum::VariantArray;
use utoipa::ToSchema;

use super::paging::cut;
use super::{AdminError, Office, admins_only};
use seckill_domain::account::Account;
use seckill_domain::alarm::AlarmKind;
use seckill_domain::log_filter::LogFilter;
use seckill_postgres::flow::alarms;

pub use seckill_postgres::audit_log::LogLine;

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
}

impl From<alarms::Alarm> for Alarm {
    fn from(alarms::Alarm { id, kind, subject, details, raised_at, cleared_at }: alarms::Alarm) -> Self {
        let runbook = AlarmKind::runbook_of(&kind);
        let (raised_at_ms, cleared_at_ms) = (raised_at.timestamp_millis(), cleared_at.map(|at| at.timestamp_millis()));
        Self { id, kind, subject, details, raised_at_ms, cleared_at_ms, runbook }
    }
}

/// The kinds of alarms that the account may see, by name. A newer version may have stored a kind that this one does not know:
/// nobody sees it here, because it may name an application.
pub(super) fn visible_kinds(account: &Account) -> Vec<String> {
    let kinds = AlarmKind::VARIANTS.iter().filter(|kind| account.sees_alarms(**kind));
    kinds.map(|kind| kind.as_str().to_owned()).collect()
}

impl Office {
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
        let kinds = (!account.is_admin()).then(|| visible_kinds(account));
        let mut alarms = self.ledger.alarms.alarms(kinds.as_deref(), before, limit + 1).await?;
        let next = cut(&mut alarms, limit).map(|last| last.id);
        Ok((alarms.into_iter().map(Alarm::from).collect(), next))
    }
}
