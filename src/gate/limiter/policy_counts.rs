//! What callers asked of each policy: counts by the second, kept for an hour.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use redis::{Cmd, cmd};

use crate::gate::{Gate, GateError};

/// How long counts are kept: an hour, and the minute that is being filled.
const KEPT_S: i64 = 3_660;

/// What callers asked of one policy in some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PolicyCounts {
    pub granted: u64,
    pub refused: u64,
    /// How long callers waited in line, in milliseconds.
    pub waited_ms: u64,
    /// Requests that Redis did not answer.
    pub failed: u64,
    /// Requests for which a script failed in Redis.
    pub broken: u64,
    /// Requests refused because the application's keys take all the memory in Redis that they may take.
    pub no_room: u64,
    /// Calls whose end callers reported.
    pub reports: u64,
    /// Reported calls that failed.
    pub errors: u64,
    /// Reported calls that were slower than the policy's target.
    pub slow: u64,
}

impl PolicyCounts {
    /// Each count with its letter in the hash fields.
    fn by_letter(&mut self) -> [(char, &mut u64); 9] {
        let Self { granted, refused, waited_ms, failed, broken, no_room, reports, errors, slow } = self;
        [
            ('g', granted),
            ('r', refused),
            ('w', waited_ms),
            ('f', failed),
            ('b', broken),
            ('k', no_room),
            ('o', reports),
            ('e', errors),
            ('s', slow),
        ]
    }
}

impl AddAssign for PolicyCounts {
    fn add_assign(&mut self, mut other: Self) {
        for ((_, sum), (_, count)) in self.by_letter().into_iter().zip(other.by_letter()) {
            *sum += *count;
        }
    }
}

impl Gate {
    /// The server's time in whole seconds since the epoch.
    pub async fn now_s(&self) -> Result<i64, GateError> {
        let (seconds, _): (i64, i64) = self.connections.ask_any(&cmd("TIME")).await?;
        Ok(seconds)
    }

    /// Adds one instance's counts of each policy, by its number, to one second. There is one hash a policy and minute.
    /// Returns the policies whose counts were not all added, because their server is away.
    pub async fn add_policy_counts(&self, second: i64, counts: &[(i64, PolicyCounts)]) -> Result<Vec<i64>, GateError> {
        let (mut calls, mut policies) = (Vec::new(), Vec::new());
        for (policy, mut counts) in counts.iter().copied() {
            let key = self.keys.policy_counts(policy, second.div_euclid(60));
            for (letter, count) in counts.by_letter().into_iter().filter(|(_, count)| **count > 0) {
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

    /// The counts of a policy in one minute since the epoch, by the second. Seconds without counts are left out.
    pub async fn policy_counts(&self, policy: i64, minute: i64) -> Result<Vec<(i64, PolicyCounts)>, GateError> {
        let key = self.keys.policy_counts(policy, minute);
        let fields: Vec<(String, u64)> = cmd("HGETALL").arg(&key).query_async(&mut self.connections.of(&key)).await?;
        let mut seconds: BTreeMap<i64, PolicyCounts> = BTreeMap::new();
        for (field, value) in fields {
            let mut letters = field.chars();
            let Some(letter) = letters.next_back() else { continue };
            let Ok(second) = letters.as_str().parse::<i64>() else { continue };
            let counts = seconds.entry(minute * 60 + second).or_default();
            if let Some((_, count)) = counts.by_letter().into_iter().find(|(known, _)| *known == letter) {
                *count = value;
            }
        }
        Ok(seconds.into_iter().collect())
    }
}
