//! `alarms`: shows open and cleared alarms.

use super::arguments::ListArgs;
use super::print::{self, Row};
use crate::app::stores;
use crate::config::Config;
use crate::domain::alarm::AlarmKind;
use crate::ledger::flow::alarms::Alarm;

pub(super) async fn list(config: &Config, args: &ListArgs) -> anyhow::Result<()> {
    let alarms = stores(config)?.ledger.alarms(args.limit).await?;
    print::rows(alarms.iter().map(AlarmLine::from), args.format)
}

#[derive(Serialize)]
struct AlarmLine {
    kind: String,
    subject: String,
    raised_at: String,
    cleared_at: Option<String>,
    details: String,
    runbook: String,
}

impl From<&Alarm> for AlarmLine {
    fn from(alarm: &Alarm) -> Self {
        Self {
            kind: alarm.kind.clone(),
            subject: alarm.subject.clone(),
            raised_at: print::time(alarm.raised_at.timestamp_millis()),
            cleared_at: alarm.cleared_at.map(|at| print::time(at.timestamp_millis())),
            details: alarm.details.to_string(),
            runbook: AlarmKind::runbook_of(&alarm.kind).unwrap_or_default(),
        }
    }
}
