//! Moves the thresholds of policies with a range. Each move is a conditional update and an entry in the audit log: of several workers, one
//! moves the threshold.

use serde_json::json;

use super::FlowError;
use super::policy_counts::recent;
use seckill_domain::policy::{Policy, threshold};
use seckill_domain::threshold::{LoadSeen, next_threshold};
use seckill_postgres::Policies;
use seckill_redis::Gate;
use seckill_redis::limiter::policy_counts::PolicyCounts;

/// The actor in the audit log.
const ACTOR: &str = "controller";

/// Checks all policies once. `interval_s` is the time over which load is read, and the least time between two moves.
pub async fn move_thresholds(policies: &Policies, gate: &Gate, interval_s: i64) -> Result<(), FlowError> {
    for policy in policies.policies(None).await? {
        match move_threshold(policies, gate, interval_s, &policy).await {
            // Thresholds of policies on other masters still move.
            Err(FlowError::Gate(error)) if gate.is_of_one_master(&error) => {
                tracing::debug!(policy = %policy.terms.name, %error, "threshold not looked at");
            }
            moved => moved?,
        }
    }
    Ok(())
}

async fn move_threshold(policies: &Policies, gate: &Gate, interval_s: i64, policy: &Policy) -> Result<(), FlowError> {
    let Some((range, threshold)) = policy.terms.range.zip(threshold(&policy.algorithm)) else { return Ok(()) };
    let PolicyCounts { granted, refused, reports, errors, slow, .. } = recent(gate, policy.id, interval_s).await?;
    let seen = LoadSeen { granted, refused, reports, errors, slow };
    let next = next_threshold(threshold, range, policy.trouble_at, &seen);
    metrics::gauge!("seckill_policy_threshold", "policy" => policy.terms.name.to_string()).set(threshold as f64);
    if next == threshold {
        return Ok(());
    }
    let details = json!({ "from": threshold, "to": next, "seen": seen });
    if policies.move_threshold(policy, threshold, next, interval_s * 1000, ACTOR, details).await? {
        tracing::info!(policy = %policy.terms.name, from = threshold, to = next, "threshold moved");
    }
    Ok(())
}
