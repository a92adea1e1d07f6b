//! `alarms`: shows open and cleared alarms.

use super::arguments::ListArgs;
use super::print::{self, Row};
use crate::app::stores;
use seckill_config::Config;
use seckill_domain::alarm::AlarmKind;
use seckill_postgres::flow::alarms::Alarm;

pub(super) async fn list(config: &Config, args: &ListArgs) -> anyhow::Result<()> {
    let alarms = stores(config)?.ledger.alarms;
    let next = async |last: Option<Alarm>, n| alarms.alarms(None, last.map(|alarm| alarm.id), n).await;
    let row = |alarm: Alarm| {
        Row([
            ("kind", alarm.kind.as_str().into()),
            ("subject", alarm.subject.into()),
            ("raised_at", print::time(alarm.raised_at.timestamp_millis()).into()),
            ("cleared_at", alarm.cleared_at.map(|at| print::time(at.timestamp_millis())).into()),
            ("acknowledged_by", alarm.acknowledged_by.into()),
            ("muted_until", alarm.muted_until.map(|at| print::time(at.timestamp_millis())).into()),
            ("details", alarm.details.to_string().into()),
            ("runbook", AlarmKind::runbook_of(&alarm.kind).unwrap_or_default().into()),
        ])
    };
    print::pages(args, next, row).await
}
