//! Seeing the audit log and the alarms, as far as the account may.

use super::overview::visible_kinds;
use super::{AdminError, Console, admins_only};
use crate::domain::account::Account;
use crate::domain::log_filter::LogFilter;

pub use crate::ledger::audit_log::LogLine;
pub use crate::ledger::flow::alarms::Alarm;

impl Console {
    /// The newest lines of the audit log that pass the filter.
    ///
    /// # Errors
    /// `Denied` for all but admins; `Invalid` names the part of the filter that is out of bounds.
    pub async fn audit_log(&self, account: &Account, filter: LogFilter) -> Result<Vec<LogLine>, AdminError> {
        admins_only(account)?;
        Ok(self.ledger.audit_log(&filter.check()?).await?)
    }

    /// The newest alarms, open ones first. Only admins see those that name an application, and kinds that only a newer
    /// version knows: they may name one.
    pub async fn alarms(&self, account: &Account, limit: i64) -> Result<Vec<Alarm>, AdminError> {
        if account.is_admin() {
            return Ok(self.ledger.alarms(limit).await?);
        }
        Ok(self.ledger.alarms_of(&visible_kinds(account), limit).await?)
    }
}
