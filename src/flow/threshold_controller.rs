//! Moves the thresholds of policies with a range. Each move is a conditional update and an entry in the audit log: of several workers, one
//! moves the threshold.

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

pub struct ThresholdController {
    ledger: Ledger,
    gate: Gate,
    /// The time over which load is read, and the least time between two moves.
    interval_s: i64,
}

impl ThresholdController {
    pub fn new(ledger: Ledger, gate: Gate, interval_s: i64) -> Self {
        Self { ledger, gate, interval_s }
    }

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
        let (floor, ceiling, trouble_at) = (range.floor, range.ceiling, policy.trouble_at);
        let next = ThresholdState { threshold, floor, ceiling, trouble_at }.next(&seen);
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
