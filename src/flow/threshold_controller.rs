//! Thresholds that move by themselves, between what their owners allow. Each move is a conditional update and a line in
//! the audit log; any number of workers may look, and one of them moves.

use std::collections::HashMap;

use serde_json::json;

use super::FlowError;
use super::policy_counts::recent;
use crate::domain::policy::{Policy, threshold};
use crate::domain::threshold::{LoadSeen, ThresholdState};
use crate::gate::Gate;
use crate::ledger::Ledger;

/// Who the audit log says it was.
const ACTOR: &str = "controller";

/// Looks at the policies whose thresholds move.
pub struct ThresholdController {
    ledger: Ledger,
    gate: Gate,
    /// How far back to look, and how far apart moves are.
    interval_s: i64,
    trouble_at: HashMap<i64, i64>,
}

impl ThresholdController {
    pub fn new(ledger: Ledger, gate: Gate, interval_s: i64) -> Self {
        Self { ledger, gate, interval_s, trouble_at: HashMap::new() }
    }

    /// One look at all of them.
    pub async fn look(&mut self) -> Result<(), FlowError> {
        for policy in self.ledger.policies(None).await? {
            self.steer(&policy).await?;
        }
        Ok(())
    }

    async fn steer(&mut self, policy: &Policy) -> Result<(), FlowError> {
        let Some((range, threshold)) = policy.terms.range.zip(threshold(&policy.algorithm)) else { return Ok(()) };
        let [granted, refused, _, _, reports, errors, slow] = recent(&self.gate, policy.id, self.interval_s).await?;
        let seen = LoadSeen { granted, refused, reports, errors, slow };
        let trouble_at = self.trouble_at.get(&policy.id).copied();
        let next = ThresholdState { threshold, floor: range.floor, ceiling: range.ceiling, trouble_at }.next(&seen);
        metrics::gauge!("seckill_policy_threshold", "policy" => policy.terms.name.to_string()).set(threshold as f64);
        if next == threshold {
            return Ok(());
        }
        let why = json!({ "from": threshold, "to": next, "seen": seen });
        if self.ledger.move_threshold(policy, next, self.interval_s * 1000, ACTOR, why).await? {
            tracing::info!(policy = %policy.terms.name, from = threshold, to = next, "threshold moved");
            if next < threshold {
                self.trouble_at.insert(policy.id, threshold);
            }
        }
        Ok(())
    }
}
