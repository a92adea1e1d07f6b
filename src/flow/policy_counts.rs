//! What was asked of each policy: by the second in Redis for an hour, by the minute in PostgreSQL for long. Instances
//! count in memory, so that no request waits for its being counted; one that dies loses a second of figures at most.

use std::collections::BTreeSet;

use super::FlowError;
use super::policy_cache::PolicyCache;
use super::policy_state::PolicyCounts;
use crate::gate::Gate;
use crate::ledger::Ledger;
use crate::ledger::flow::policy_minutes::PolicyMinute;

/// Adds what this instance has counted since last time to the second that now is.
pub async fn flush(policies: &PolicyCache, gate: &Gate) -> Result<(), FlowError> {
    let entries = policies.entries();
    let counted = entries.iter().map(|entry| (entry, entry.live.counts.take()));
    let counted: Vec<_> = counted.filter(|(_, counts)| counts.iter().any(|count| *count > 0)).collect();
    if counted.is_empty() {
        return Ok(());
    }
    for (entry, [granted, refused, ..]) in &counted {
        let policy = entry.policy.terms.name.to_string();
        metrics::counter!("seckill_permits_total", "policy" => policy.clone(), "answer" => "granted")
            .increment(*granted);
        metrics::counter!("seckill_permits_total", "policy" => policy, "answer" => "refused").increment(*refused);
    }
    let figures: Vec<_> = counted.iter().map(|(entry, counts)| (entry.policy.id, *counts)).collect();
    let added = async { gate.add_figures(gate.second().await?, PolicyCounts::LETTERS, &figures).await };
    if let Err(error) = added.await {
        // Counted again with the next ones, a second or two late.
        counted.iter().for_each(|(entry, counts)| entry.live.counts.put_back(counts));
        return Err(error.into());
    }
    Ok(())
}

/// Writes down the minutes that are over. Sums are written, not added: doing it twice, or from two places, is doing it
/// once.
pub async fn write_minutes(ledger: &Ledger, gate: &Gate) -> Result<(), FlowError> {
    let now = gate.second().await?.div_euclid(60);
    for policy in ledger.policies(None).await? {
        for minute in now - MINUTES_BACK..now {
            let seconds = gate.figures(policy.id, minute, PolicyCounts::LETTERS).await?;
            if seconds.is_empty() {
                continue;
            }
            let sum = |place: usize| seconds.iter().map(|(_, counts)| counts[place]).sum::<u64>();
            let minute = PolicyMinute { minute, granted: sum(0), refused: sum(1), waited_ms: sum(2), failed: sum(3) };
            ledger.write_minute(policy.id, &minute).await?;
        }
    }
    ledger.clear_minutes().await?;
    Ok(())
}

/// Minutes that are looked at again: a worker that was away for less misses none.
const MINUTES_BACK: i64 = 10;

/// The latest whole seconds of a policy, added up.
pub async fn recent(gate: &Gate, policy: i64, seconds: i64) -> Result<[u64; 7], FlowError> {
    let now = gate.second().await?;
    let mut sums = [0; 7];
    let minutes: BTreeSet<i64> = (now - seconds..now).map(|second| second.div_euclid(60)).collect();
    for minute in minutes {
        for (second, counts) in gate.figures(policy, minute, PolicyCounts::LETTERS).await? {
            if (now - seconds..now).contains(&second) {
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
        }
    }
    Ok(sums)
}
