//! Counts the requests of each policy: by the second in Redis for an hour, by the minute in PostgreSQL for ninety days. Instances count in
//! memory, so that no request waits; an instance that dies loses at most one second of counts.

use std::collections::BTreeSet;

use super::FlowError;
use super::policy_cache::PolicyCache;
use seckill_postgres::Policies;
use seckill_postgres::flow::policy_minutes::PolicyMinute;
use seckill_redis::Gate;
use seckill_redis::limiter::policy_counts::PolicyCounts;

/// Adds this instance's counts since the last call to the present second in Redis. Counts that Redis did not take are added next time.
pub async fn flush(policies: &PolicyCache, gate: &Gate) -> Result<(), FlowError> {
    let entries = policies.entries();
    let counted = entries.iter().map(|entry| (entry, entry.state.counters.take()));
    let counted: Vec<_> = counted.filter(|(_, counts)| *counts != PolicyCounts::default()).collect();
    if counted.is_empty() {
        return Ok(());
    }
    let counts: Vec<_> = counted.iter().map(|(entry, counts)| (entry.policy.id, *counts)).collect();
    let added = async { gate.add_policy_counts(gate.now_s().await?, &counts).await }.await;
    let is_lost = |policy: i64| added.as_ref().map_or(true, |failed| failed.contains(&policy));
    for (entry, counts) in &counted {
        if is_lost(entry.policy.id) {
            entry.state.counters.put_back(*counts);
            continue;
        }
        let policy = entry.policy.terms.name.to_string();
        for (answer, count) in [("granted", counts.granted), ("refused", counts.refused)] {
            metrics::counter!("seckill_permits_total", "policy" => policy.clone(), "answer" => answer).increment(count);
        }
        metrics::counter!("seckill_too_many_keys_total", "policy" => policy).increment(counts.no_room);
    }
    Ok(added.map(drop)?)
}

/// Writes finished minutes to PostgreSQL. It replaces sums and adds nothing, so workers may repeat it.
pub async fn write_minutes(policies: &Policies, gate: &Gate) -> Result<(), FlowError> {
    let now = gate.now_s().await?.div_euclid(60);
    for policy in policies.policies(None).await? {
        // Workers that were away for less time miss no minute.
        for minute in now - 10..now {
            let seconds = match gate.policy_counts(policy.id, minute).await {
                // Minutes that lie on other masters are still written.
                Err(error) if gate.is_of_one_master(&error) => break,
                seconds => seconds?,
            };
            if seconds.is_empty() {
                continue;
            }
            let PolicyCounts { granted, refused, waited_ms, failed, .. } = sum(seconds.into_iter());
            policies.write_minute(policy.id, &PolicyMinute { minute, granted, refused, waited_ms, failed }).await?;
        }
    }
    policies.clear_minutes().await?;
    Ok(())
}

/// The sum of a policy's counts in the last whole seconds.
pub async fn recent(gate: &Gate, policy: i64, seconds: i64) -> Result<PolicyCounts, FlowError> {
    let now = gate.now_s().await?;
    let range = now - seconds..now;
    let mut total = PolicyCounts::default();
    let minutes: BTreeSet<i64> = range.clone().map(|second| second.div_euclid(60)).collect();
    for minute in minutes {
        let counts = gate.policy_counts(policy, minute).await?.into_iter();
        total += sum(counts.filter(|(second, _)| range.contains(second)));
    }
    Ok(total)
}

fn sum(seconds: impl Iterator<Item = (i64, PolicyCounts)>) -> PolicyCounts {
    seconds.fold(PolicyCounts::default(), |mut sum, (_, counts)| {
        sum += counts;
        sum
    })
}
