//! Moves the thresholds of policies that have a range. Each move is a conditional update and an entry in the audit log;
//! any number of workers may check, and one of them moves the threshold.

use serde_json::json;

use super::FlowError;
use super::policy_counts::recent;
use crate::domain::policy::{Policy, threshold};
use crate::domain::threshold::{LoadSeen, ThresholdState};
use crate::gate::Gate;
use crate::gate::limiter::policy_counts::PolicyCounts;
use crate::ledger::Ledger;

/// The actor in the audit log.
const ACTOR: &str = "controller";

/// Moves the thresholds.
pub struct ThresholdController {
    ledger: Ledger,
    gate: Gate,
    /// How far back load is read, and the least time between two moves.
    interval_s: i64,
}

impl ThresholdController {
    pub fn new(ledger: Ledger, gate: Gate, interval_s: i64) -> Self {
        Self { ledger, gate, interval_s }
    }

    /// Checks all policies once.
    pub async fn check(&self) -> Result<(), FlowError> {
        for policy in self.ledger.policies(None).await? {
            match self.move_threshold(&policy).await {
                // Thresholds of policies on other masters still move.
                Err(FlowError::Gate(error)) if self.gate.is_of_one_master(&error) => {
                    tracing::debug!(policy = %policy.terms.name, %error, "threshold not looked at");
                }
                moved => moved?,
            }
        }
        Ok(())
    }

    async fn move_threshold(&self, policy: &Policy) -> Result<(), FlowError> {
        let Some((range, threshold)) = policy.terms.range.zip(threshold(&policy.algorithm)) else { return Ok(()) };
        let counts = recent(&self.gate, policy.id, self.interval_s).await?;
        let PolicyCounts { granted, refused, reports, errors, slow, .. } = counts;
        let seen = LoadSeen { granted, refused, reports, errors, slow };
        let next =
            ThresholdState { threshold, floor: range.floor, ceiling: range.ceiling, trouble_at: policy.trouble_at }
                .next(&seen);
        metrics::gauge!("seckill_policy_threshold", "policy" => policy.terms.name.to_string()).set(threshold as f64);
        if next == threshold {
            return Ok(());
        }
        let details = json!({ "from": threshold, "to": next, "seen": seen });
        if self.ledger.move_threshold(policy, threshold, next, self.interval_s * 1000, ACTOR, details).await? {
            tracing::info!(policy = %policy.terms.name, from = threshold, to = next, "threshold moved");
        }
        Ok(())
    }
}
