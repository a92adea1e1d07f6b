//! Raising alarms, and clearing them. Any number of workers may look: an alarm is a row, and there is one of a kind and
//! subject.

use serde_json::json;
use strum::VariantArray;

use super::FlowError;
use super::policy_counts::recent;
use crate::domain::alarm::{AlarmKind, Trouble, too_many_refused};
use crate::domain::message::OutboxKind;
use crate::gate::Gate;
use crate::ledger::Ledger;

/// When something is wrong.
#[derive(Debug, Clone, Copy)]
pub struct AlarmTerms {
    pub outbox_age_s: i64,
    pub refused_percent: u64,
}

/// Looks at everything that can be wrong.
#[derive(Clone)]
pub struct AlarmWatch {
    pub ledger: Ledger,
    pub gate: Gate,
    pub terms: AlarmTerms,
}

impl AlarmWatch {
    /// How far back refusals are looked at.
    const WINDOW_S: i64 = 60;

    /// One look. What cannot be seen at the moment is left as it was.
    pub async fn look(&self) -> Result<(), FlowError> {
        let backlog = self.ledger.backlog().await?;
        for message in OutboxKind::VARIANTS.iter().map(|kind| kind.as_str()).chain(["order_event"]) {
            let of = backlog.iter().find(|of| of.kind == message);
            let gauge = |name: &'static str, value: i64| metrics::gauge!(name, "kind" => message).set(value as f64);
            gauge("seckill_outbox_pending", of.map_or(0, |of| of.pending));
            gauge("seckill_outbox_parked", of.map_or(0, |of| of.parked));
            gauge("seckill_outbox_oldest_seconds", of.map_or(0, |of| of.oldest_s));
        }
        for (kind, wrong) in self.ledger.troubles(&backlog, self.terms.outbox_age_s).await? {
            self.judge(kind, &wrong).await?;
        }
        let down = self.gate.ping().await.err();
        let down = down.map(|error| Trouble::new("redis", json!({ "error": error.to_string() })));
        self.judge(AlarmKind::LimiterDown, down.as_slice()).await?;
        if down.is_none() {
            self.judge(AlarmKind::Refusals, &self.refusals().await?).await?;
        }
        Ok(())
    }

    async fn refusals(&self) -> Result<Vec<Trouble>, FlowError> {
        let mut wrong = Vec::new();
        for policy in self.ledger.policies(None).await? {
            let [granted, refused, ..] = recent(&self.gate, policy.id, Self::WINDOW_S).await?;
            if too_many_refused(granted, refused, self.terms.refused_percent) {
                let subject = format!("{} of {}", policy.terms.name, policy.home);
                wrong.push(Trouble::new(&subject, json!({ "granted": granted, "refused": refused })));
            }
        }
        Ok(wrong)
    }

    async fn judge(&self, kind: AlarmKind, wrong: &[Trouble]) -> Result<(), FlowError> {
        let (raised, cleared) = self.ledger.judge(kind, wrong).await?;
        metrics::gauge!("seckill_alarms", "kind" => kind.as_str()).set(wrong.len() as f64);
        if raised > 0 {
            tracing::error!(kind = kind.as_str(), ?wrong, "ALARM");
        }
        if cleared > 0 {
            tracing::info!(kind = kind.as_str(), cleared, "alarm is over");
        }
        Ok(())
    }
}
