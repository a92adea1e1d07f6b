//! Raises alarms, and clears them. Any number of workers may check: an alarm is a row, and each kind and subject has at
//! most one open row.

use serde_json::json;
use strum::VariantArray;

use super::FlowError;
use super::policy_counts::recent;
use crate::domain::alarm::{AlarmKind, Trouble, too_many_refused};
use crate::domain::message::OutboxKind;
use crate::gate::Gate;
use crate::gate::policy_counts::PolicyCounts;
use crate::ledger::Ledger;
use crate::ledger::flow::alarms::AlarmChanges;

/// When to raise an alarm.
#[derive(Debug, Clone, Copy)]
pub struct AlarmTerms {
    /// The age of a waiting outbox row, in seconds.
    pub outbox_age_s: i64,
    /// The share of refused requests, in percent.
    pub refused_percent: u64,
}

/// Checks for everything that can be wrong.
#[derive(Clone)]
pub struct AlarmWatch {
    pub ledger: Ledger,
    pub gate: Gate,
    pub terms: AlarmTerms,
}

impl AlarmWatch {
    /// How far back refusals count.
    const WINDOW_S: i64 = 60;

    /// Checks once. Alarms about something that cannot be read now stay as they are.
    pub async fn check(&self) -> Result<(), FlowError> {
        let backlog = self.ledger.backlog().await?;
        for message in OutboxKind::VARIANTS.iter().map(|kind| kind.as_str()).chain(["order_event"]) {
            let row = backlog.iter().find(|row| row.kind == message);
            let gauge = |name: &'static str, value: i64| metrics::gauge!(name, "kind" => message).set(value as f64);
            gauge("seckill_outbox_pending", row.map_or(0, |row| row.pending));
            gauge("seckill_outbox_parked", row.map_or(0, |row| row.parked));
            gauge("seckill_outbox_oldest_seconds", row.map_or(0, |row| row.oldest_s));
        }
        for (kind, troubles) in self.ledger.troubles(&backlog, self.terms.outbox_age_s).await? {
            self.update(kind, &troubles).await?;
        }
        let down = self.gate.ping().await.err();
        let down = down.map(|error| Trouble::new("redis", json!({ "error": error.to_string() })));
        self.update(AlarmKind::LimiterDown, down.as_slice()).await?;
        if down.is_none() {
            self.update(AlarmKind::Refusals, &self.refusals().await?).await?;
        }
        Ok(())
    }

    async fn refusals(&self) -> Result<Vec<Trouble>, FlowError> {
        let mut troubles = Vec::new();
        for policy in self.ledger.policies(None).await? {
            let PolicyCounts { granted, refused, .. } = recent(&self.gate, policy.id, Self::WINDOW_S).await?;
            if too_many_refused(granted, refused, self.terms.refused_percent) {
                let subject = format!("{} of {}", policy.terms.name, policy.home);
                troubles.push(Trouble::new(&subject, json!({ "granted": granted, "refused": refused })));
            }
        }
        Ok(troubles)
    }

    async fn update(&self, kind: AlarmKind, troubles: &[Trouble]) -> Result<(), FlowError> {
        let AlarmChanges { raised, cleared } = self.ledger.update_alarms(kind, troubles).await?;
        metrics::gauge!("seckill_alarms", "kind" => kind.as_str()).set(troubles.len() as f64);
        if raised > 0 {
            tracing::error!(kind = kind.as_str(), ?troubles, "alarm raised");
        }
        if cleared > 0 {
            tracing::info!(kind = kind.as_str(), cleared, "alarm cleared");
        }
        Ok(())
    }
}
