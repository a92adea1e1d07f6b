//! Counts of the requests of each policy, by the second, kept for an hour.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use redis::{Cmd, cmd};

use crate::{Gate, GateError};

/// An hour, and the current minute.
const KEPT_S: i64 = 3_660;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PolicyCounts {
    pub granted: u64,
    pub refused: u64,
    /// Time in line, in milliseconds.
    pub waited_ms: u64,
    /// Requests that Redis did not answer.
    pub failed: u64,
    /// Requests for which a script failed in Redis.
    pub broken: u64,
    /// Requests refused because the application's keys take all their memory in Redis.
    pub no_room: u64,
    /// Finished calls that callers reported.
    pub reports: u64,
    pub errors: u64,
    /// Reported calls that were slower than the policy's target.
    pub slow: u64,
}

impl PolicyCounts {
    /// The letters of the counts in the hash fields, in the order of `counts`.
    const LETTERS: [char; 9] = ['g', 'r', 'w', 'f', 'b', 'k', 'o', 'e', 's'];

    pub fn counts(&mut self) -> [&mut u64; 9] {
        let Self { granted, refused, waited_ms, failed, broken, no_room, reports, errors, slow } = self;
        [granted, refused, waited_ms, failed, broken, no_room, reports, errors, slow]
    }
}

impl AddAssign for PolicyCounts {
    fn add_assign(&mut self, mut other: Self) {
        for (sum, count) in self.counts().into_iter().zip(other.counts()) {
            *sum += *count;
        }
    }
}

impl Gate {
    pub async fn now_s(&self) -> Result<i64, GateError> {
        let (seconds, _): (i64, i64) = self.connections.ask_any(&cmd("TIME")).await?;
        Ok(seconds)
    }

    /// Adds one instance's counts of each policy, by its number, to one second. Returns the policies whose counts were not all added:
    /// their server is away.
    pub async fn add_policy_counts(&self, second: i64, counts: &[(i64, PolicyCounts)]) -> Result<Vec<i64>, GateError> {
        let (mut calls, mut policies) = (Vec::new(), Vec::new());
        for (policy, mut counts) in counts.iter().copied() {
            let key = self.keys.policy_counts(policy, second.div_euclid(60));
            for (letter, count) in PolicyCounts::LETTERS.iter().zip(counts.counts()).filter(|(_, count)| **count > 0) {
                let field = format!("{}{letter}", second.rem_euclid(60));
                calls.push((key.clone(), Cmd::hincr(&key, field, *count)));
                policies.push(policy);
            }
            calls.push((key.clone(), Cmd::expire(&key, KEPT_S)));
            policies.push(policy);
        }
        let replies = self.connections.send_each::<i64>(calls).await?;
        let mut failed: Vec<i64> =
            policies.into_iter().zip(replies).filter(|(_, reply)| reply.is_err()).map(|(policy, _)| policy).collect();
        failed.dedup();
        Ok(failed)
    }

    /// The counts of a policy in one minute since the epoch, by the second. Empty seconds are left out.
    pub async fn policy_counts(&self, policy: i64, minute: i64) -> Result<Vec<(i64, PolicyCounts)>, GateError> {
        let key = self.keys.policy_counts(policy, minute);
        let fields: Vec<(String, u64)> = cmd("HGETALL").arg(&key).query_async(&mut self.connections.of(&key)).await?;
        let mut seconds: BTreeMap<i64, PolicyCounts> = BTreeMap::new();
        for (field, value) in fields {
            let mut letters = field.chars();
            let Some(letter) = letters.next_back() else { continue };
            let Ok(second) = letters.as_str().parse::<i64>() else { continue };
            let counts = seconds.entry(minute * 60 + second).or_default();
            if let Some(place) = PolicyCounts::LETTERS.iter().position(|known| *known == letter) {
                *counts.counts()[place] = value;
            }
        }
        Ok(seconds.into_iter().collect())
    }
}
